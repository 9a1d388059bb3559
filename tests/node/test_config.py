"""The configuration: all errors are named, and the page documents all settings."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from quorumq.node.config import ConfigError, ServeConfig, load_config, make_config

GOOD: dict[str, Any] = {"node": "a", "cluster_id": "c", "secret": "s" * 32, "data_dir": "/data"}
PAGE = Path(__file__).parents[2] / "docs" / "operations.md"


def problem(**values: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        make_config({key: value for key, value in {**GOOD, **values}.items() if value is not None})
    assert caught.value.exit_code == 78
    return str(caught.value)


def test_four_keys_are_enough() -> None:
    config = make_config(GOOD)
    assert (config.listen, config.hold_time_max) == ("127.0.0.1:7401", 60.0)
    core = config.core()
    assert (core.nodes, core.addresses) == (("a",), (("a", "127.0.0.1:7401"),))


def test_advertise_listen_and_nodes_say_which_address_clients_are_told() -> None:
    nodes = {"a": "10.0.0.1:1", "b": "10.0.0.2:1"}
    assert make_config({**GOOD, "nodes": nodes}).advertised == "10.0.0.1:1"
    assert make_config({**GOOD, "nodes": nodes, "advertise": "q.example:9"}).advertised == "q.example:9"
    assert dict(make_config({**GOOD, "nodes": nodes, "advertise": "q.example:9"}).core().addresses) == {
        "a": "q.example:9",
        "b": "10.0.0.2:1",
    }


def test_others_reach_a_node_unless_it_listens_on_its_own_machine_or_asks_them_who_they_are() -> None:
    def exposed(**values: Any) -> bool:
        return bool(make_config({**GOOD, **values}).exposed)

    assert [exposed(listen=f"{host}:1") for host in ("127.0.0.1", "127.9.9.9", "localhost", "[::1]")] == [
        False
    ] * 4
    assert [exposed(listen=f"{host}:1") for host in ("0.0.0.0", "[::]", "10.0.0.1", "a.example")] == [
        True
    ] * 4
    tls = {"listen": "0.0.0.0:1", "tls_cert": "a.pem"}
    assert exposed(**tls)
    assert exposed(listen="0.0.0.0:1", clients_file="c.toml")
    assert not exposed(**tls, clients_file="c.toml")
    apart = {"nodes": {"a": "127.0.0.1:1"}, "peers": {"a": "10.0.0.1:2"}}
    assert make_config({**GOOD, **apart}).exposed == "10.0.0.1:2", "nodes are asked by their certificates"
    assert exposed(**apart, tls_cert="a.pem")
    assert not exposed(**apart, tls_cert="a.pem", tls_ca="ca.pem")


def test_a_node_listens_where_the_others_dial_it_unless_it_is_told_otherwise() -> None:
    nodes = {"a": "10.0.0.1:7", "b": "10.0.0.2:7"}
    assert make_config({**GOOD, "nodes": nodes}).listen == "10.0.0.1:7"
    elsewhere = {
        listen: make_config({**GOOD, "nodes": nodes, "listen": listen}).elsewhere
        for listen in ("10.0.0.1:7", "0.0.0.0:7", "[::]:7", "0.0.0.0:8", "127.0.0.1:7", "10.0.0.3:7")
    }
    assert [listen for listen, (dialled, _) in elsewhere.items() if dialled] == [
        "0.0.0.0:8", "127.0.0.1:7", "10.0.0.3:7"
    ]  # fmt: skip
    assert make_config(GOOD).elsewhere == ("", ""), "a node alone is dialled by nobody"


def test_nodes_reach_each_other_at_addresses_of_their_own_where_they_have_some() -> None:
    nodes = {"a": "10.0.0.1:7", "b": "10.0.0.2:7"}
    peers = {"a": "10.9.0.1:8", "b": "10.9.0.2:8"}
    config = make_config({**GOOD, "nodes": nodes, "peers": peers})
    assert (config.listen, config.peer_listen, config.dialled) == ("10.0.0.1:7", "10.9.0.1:8", peers)
    assert config.core().addresses == tuple(nodes.items()), "which clients are told"
    assert config.elsewhere == ("", "")
    elsewhere = make_config({**GOOD, "nodes": nodes, "peers": peers, "peer_listen": "127.0.0.1:8"}).elsewhere
    assert elsewhere == ("10.9.0.1:8", "127.0.0.1:8")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"hold_time_mx": 5}, ["'hold_time_mx'", "did you mean 'hold_time_max'?"]),
        ({"zzz": 5}, ["'zzz'", "docs/operations.md"]),
        ({"node": None}, ["node is missing"]),
        ({"nodes": {"a": "0.0.0.0:7"}}, ["nodes.a = '0.0.0.0:7'", "this one as listen"]),
        ({"advertise": "[::]:7"}, ["advertise = '[::]:7'", "this one as listen"]),
        ({"secret": None}, ["secret is missing", "openssl rand -hex 32"]),
        ({"secret": "3f1c…64 hex digits…"}, ["the placeholder of the documentation"]),
        ({"hold_time_max": "long"}, ["hold_time_max = 'long'", "number"]),
        ({"hold_time_max": 0.01}, ["hold_time_max = 0.01", ">= 0.1"]),
        ({"hold_time_max": float("inf")}, ["hold_time_max = inf", "<="]),
        ({"heartbeat": float("inf")}, ["heartbeat = inf", "<="]),
        ({"stop_timeout": float("inf")}, ["stop_timeout = inf", "<="]),
        ({"nodes": {"a": "h..example:1"}}, ["nodes.a = 'h..example:1'", "not a name"]),
        ({"request_timeout": 0}, ["request_timeout = 0", "> 0"]),
        ({"auto_create_topics": "yes"}, ["auto_create_topics = 'yes'", "true or false"]),
        ({"log_format": "xml"}, ["log_format = 'xml'"]),
        ({"connections_max": 0}, ["connections_max = 0"]),
        ({"connections_max": 1.5}, ["connections_max = 1.5", "an integer"]),
        ({"node": "A"}, ["'A'", "a-z"]),
        ({"node": "aa", "nodes": {"a": "h:1"}}, ["'aa' is not in nodes (a)", "did you mean 'a'?"]),
        ({"nodes": {"a": "h:1", "b b": "h:2"}}, ["'b b'"]),
        ({"nodes": {"a": "h:1", "b": "h:1"}}, ["nodes.a and nodes.b are both 'h:1'"]),
        ({"nodes": {"a": "h"}}, ["nodes.a = 'h'", "host:port"]),
        ({"nodes": {"a": "h:1"}, "machines": {"b": "x"}}, ["machines and nodes differ in 'a', 'b'"]),
        ({"nodes": {"a": "h:1"}, "machines": {"a": "\n"}}, ["machines.a = '\\n'", "can be printed"]),
        ({"peer_listen": "h:1"}, ["peer_listen without peers"]),
        ({"nodes": {"a": "h:1"}, "peers": {"b": "h:2"}}, ["peers and nodes differ in 'a', 'b'"]),
        ({"nodes": {"a": "h:1"}, "peers": {"a": "h:1"}}, ["nodes.a and peers.a are both 'h:1'"]),
        ({"nodes": {"a": "h:1"}, "peers": {"a": "h"}}, ["peers.a = 'h'", "host:port"]),
        (
            {"nodes": {"a": "h:1"}, "peers": {"a": "h:2"}, "listen": "i:1", "peer_listen": "i:1"},
            ["listen and peer_listen are both 'i:1'"],
        ),
        ({"nodes": ["a"]}, ["nodes = ['a']", "table"]),
        ({"listen": "7401"}, ["listen = '7401'", "host:port"]),
        ({"listen": "h:0"}, ["listen = 'h:0'", "1 to 65535"]),
        ({"listen": "::1:7401"}, ["brackets"]),
        ({"segment_bytes": 2**40}, ["segment_bytes = 1099511627776", "<= 1073741824"]),
        ({"disk_reserve_bytes": 2**63}, ["disk_reserve_bytes = 9223372036854775808", "<="]),
        ({"inflight_bytes_max": 2**70}, ["inflight_bytes_max = ", "<="]),
        ({"link_bytes_max": 2**63}, ["link_bytes_max = ", "<="]),
        ({"tls_key": "k"}, ["tls_key without tls_cert"]),
        ({"tls_cert": "c", "nodes": {"a": "h:1", "b": "h:2"}}, ["tls_ca is missing"]),
        ({"cluster_id": ""}, ["cluster_id = ''"]),
        ({"data_dir": ""}, ["data_dir is empty"]),
    ],
)
def test_each_mistake_is_named_with_its_value_and_remedy(values: dict[str, Any], words: list[str]) -> None:
    text = problem(**values)
    for word in words:
        assert word in text


def test_every_mistake_is_named_at_once() -> None:
    text = problem(node=None, hold_time_max="x", listn="h:1", listen="nowhere")
    for word in ("node is missing", "hold_time_max", "'listn'", "listen = 'nowhere'"):
        assert word in text


def test_no_error_shows_the_secret() -> None:
    for secret in ("short one", "x" * 65, 123456789):
        text = problem(secret=secret)
        assert "secret" in text
        assert str(secret) not in text


def test_a_file_is_read_and_its_paths_count_from_its_directory(tmp_path: Path) -> None:
    path = tmp_path / "node.toml"
    path.write_text(
        'node = "a"\ncluster_id = "c"\nsecret = "0123456789abcdef"\ndata_dir = "here"\nhistory = "h.jsonl"\n'
    )
    with pytest.raises(ConfigError, match="everybody on this machine can open it: chmod 600"):
        load_config(path)
    path.chmod(0o600)
    config = load_config(path)
    assert (config.data_dir, config.history) == (str(tmp_path / "here"), str(tmp_path / "h.jsonl"))
    path.write_text("node = a")
    with pytest.raises(ConfigError, match=r"node\.toml: is not TOML.*line 1"):
        load_config(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path / "missing.toml")


def test_paths_beside_a_link_follow_it_when_it_changes(tmp_path: Path) -> None:
    """Kubernetes replaces the directory behind the links of a mounted secret, and deletes the old one."""
    for version in ("1", "2"):
        (tmp_path / version).mkdir()
        path = tmp_path / version / "a.toml"
        path.write_text('node = "a"\ncluster_id = "c"\nsecret_file = "secret"\ndata_dir = "/data"\n')
        (tmp_path / version / "secret").write_text(version * 32)
        (tmp_path / version / "secret").chmod(0o600)
    for name in ("a.toml", "secret"):
        (tmp_path / name).symlink_to(f"data/{name}")
    (tmp_path / "data").symlink_to("1")
    config = load_config(tmp_path / "a.toml")
    assert (config.secret_file, config.secret) == (str(tmp_path / "secret"), "1" * 32)
    (tmp_path / "data").unlink()
    (tmp_path / "data").symlink_to("2")
    assert Path(config.secret_file).read_text() == "2" * 32


def test_a_secret_may_have_a_file_and_another_that_is_accepted(tmp_path: Path) -> None:
    path, file = tmp_path / "node.toml", tmp_path / "key"
    path.write_text('node = "a"\ncluster_id = "c"\nsecret_file = "key"\ndata_dir = "here"\n')
    with pytest.raises(ConfigError, match="key cannot be read"):
        load_config(path)
    file.write_text("n" * 32 + "\n\n" + "o" * 32 + "\n")
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="everybody on this machine can open it: chmod 600"):
        load_config(path)
    file.chmod(0o600)
    assert load_config(path).secrets == (b"n" * 32, b"o" * 32)
    file.write_text("n" * 32 + "\nshort\n")
    with pytest.raises(ConfigError, match="secret has 5 bytes"):
        load_config(path)
    file.write_text("\n".join(char * 32 for char in "vwxyz"))
    with pytest.raises(ConfigError, match="5 secrets, one a line: at most 4"):
        load_config(path)
    assert "keep one" in problem(secret_file=str(file))


def test_the_page_lists_every_key_with_its_default() -> None:
    rows = re.findall(
        r"^\| `(\w+)` \| (.+?) \|", PAGE.read_text().split("### Keys")[1].split("\n## ")[0], re.M
    )
    assert [name for name, _ in rows] == [field.name for field in msgspec.structs.fields(ServeConfig)]
    defaults = dict(rows)
    for field in msgspec.structs.fields(ServeConfig):
        shown = defaults[field.name]
        if field.required:
            assert shown == "required"
        elif field.name.startswith("secret"):
            assert shown.startswith("this or the ")
        elif isinstance(field.default, bool):
            assert shown == str(field.default).lower()
        elif isinstance(field.default, int | float):
            assert float(shown) == field.default, field.name
        elif isinstance(field.default, str) and field.default:
            assert shown == f'`"{field.default}"`', field.name
