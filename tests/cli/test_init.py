"""`quorumq init`: files that nodes start with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from quorumq.cli.main import main
from quorumq.core.values.errors import QuorumqError
from quorumq.node.config import load_config


def run(*args: str | Path) -> Result:
    return CliRunner().invoke(main, ["init", *map(str, args)])


def test_three_files_that_agree_and_that_no_one_else_can_read(tmp_path: Path) -> None:
    result = run(tmp_path / "or ders")
    assert result.exit_code == 0, result.output
    configs = [load_config(tmp_path / "or ders" / f"n{number}.toml") for number in (1, 2, 3)]
    assert len({config.secret for config in configs}) == 1
    assert len(configs[0].secret) == 64
    assert {config.cluster_id for config in configs} == {"or-ders"}
    assert len({config.data_dir for config in configs}) == 3
    for config in configs:
        assert config.listen == config.nodes[config.node]
        assert Path(config.data_dir).parent == tmp_path / "or ders"
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in (tmp_path / "or ders").iterdir())
    assert f"serve --config '{tmp_path}/or ders/n1.toml'" in result.output
    assert "QUORUMQ_NODES=127.0.0.1:7401,127.0.0.1:7402,127.0.0.1:7403" in result.output


def test_every_cluster_has_its_own_secret(tmp_path: Path) -> None:
    for name in ("one", "two"):
        assert run(tmp_path / name).exit_code == 0
    assert len({load_config(tmp_path / name / "n1.toml").secret for name in ("one", "two")}) == 2


def test_named_nodes_on_their_own_machines(tmp_path: Path) -> None:
    nodes = ("--node", "a=10.0.0.1:7401", "--node", "b=10.0.0.2:7401")
    result = run(tmp_path, *nodes, "--cluster-id", 'o"1', "--data-dir", "/var/lib/quorumq", "--json")
    assert result.exit_code == 0, result.output
    shown = json.loads(result.output)
    assert shown["addresses"] == {"a": "10.0.0.1:7401", "b": "10.0.0.2:7401"}
    assert "do not start without TLS" in run(tmp_path / "shown", *nodes).output, (
        "or an operator finds out node by node"
    )
    first = load_config(shown["files"][0])
    assert (first.node, first.cluster_id, first.data_dir) == ("a", 'o"1', "/var/lib/quorumq")


def test_nodes_at_one_host_share_a_machine(tmp_path: Path) -> None:
    nodes = [f"{name}=10.0.0.{host}:{port}" for host, port, name in ((1, 1, "a"), (1, 2, "b"), (2, 1, "c"))]
    arguments = [word for node in nodes for word in ("--node", node)]
    files = json.loads(run(tmp_path, *arguments, "--json").output)["files"]
    assert {tuple(load_config(file).machines.items()) for file in files} == {
        (("a", "10.0.0.1"), ("b", "10.0.0.1"), ("c", "10.0.0.2"))
    }


def test_nothing_is_overwritten_and_nothing_half_written(tmp_path: Path) -> None:
    (tmp_path / "n2.toml").write_text("mine")
    result = run(tmp_path)
    assert result.exit_code == 64
    assert "n2.toml is there already" in result.output
    assert [path.name for path in tmp_path.iterdir()] == ["n2.toml"]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--node", "a"), "write ID=HOST:PORT"),
        (("--node", "a=h:1", "--node", "a=h:2"), "given twice"),
        (("--node", "A_B=h:1"), "A_B"),
        (("--node", "a=h:99999"), "99999"),
        (("--data-dir", "/data"), "each needs a directory of its own"),
    ],
)
def test_impossible_settings_fail_before_a_write(tmp_path: Path, flags: tuple[str, ...], words: str) -> None:
    result = run(tmp_path / "new", *flags)
    assert result.exit_code != 0
    assert words in result.output
    assert not (tmp_path / "new").exists()


def test_keys_can_be_appended_to_what_was_written_and_where_a_table_is_last_the_error_says_so(
    tmp_path: Path,
) -> None:
    """F14: the appended lines fell into [nodes], and six complaints named no cause."""
    assert run(tmp_path / "c").exit_code == 0
    path = tmp_path / "c" / "n1.toml"
    with path.open("a") as file:
        file.write("connections_max = 7\n")
    assert load_config(path).connections_max == 7
    with path.open("a") as file:
        file.write('[peers]\nn1 = "127.0.0.1:1"\ntls_cert = "x"\n')
    with pytest.raises(QuorumqError, match=r"tls_cert stands in the table \[peers\]"):
        load_config(path)
