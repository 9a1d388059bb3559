"""Ctrl-C and SIGTERM in commands that wait for payload: what was moved stays, and repeating the command goes on."""

from __future__ import annotations

import signal
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from quorumq.lab.leash import end, logged
from quorumq.lab.local import LocalCluster
from quorumq.lab.ports import HeldPorts
from tests.cli.shell import Running, Shell
from tests.patience import until

pytestmark = [pytest.mark.e2e, pytest.mark.soak]

SLOW = "move_bytes_per_s = 1\n"


class Growing(Shell):
    """Runs commands on three nodes and a fourth, d, that was added; nodes copy payload a byte a second."""

    def __init__(self, cluster: LocalCluster, file: Path) -> None:
        super().__init__(cluster)
        self.files = [file, *map(cluster.config_path, cluster.nodes)]

    def limit(self, before: str, after: str) -> None:
        """Change the limit of moves in the files of all nodes, which run on."""
        for file in self.files:
            assert before in file.read_text()
            file.write_text(file.read_text().replace(before, after))
        limit = 1 if after == SLOW else 0
        for node in self.cluster.nodes:
            until(
                lambda node=node: self.cluster.status(node)["move_bytes_per_s"] == limit, "it reads its file"
            )

    def made(self, topic: str) -> str:
        """Make a topic of one replica with messages; return its node."""
        (line,) = self(f"topics create {topic} --rf 1 --json").lines()
        for number in range(4):
            self(f"publish {topic} {number}{'x' * 500}")
        return str(line["replicas"][0][0])


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Growing]:
    folder, held = tmp_path_factory.mktemp("added"), HeldPorts(1)
    address, file = f"127.0.0.1:{held.numbers[0]}", folder / "node.toml"
    with LocalCluster(3, hold_time_max=2.0, settings={"move_bytes_per_s": 1}) as cluster:
        values = tomllib.loads(cluster.config_path("n1").read_text())
        file.write_text(
            f'node = "d"\ncluster_id = "{values["cluster_id"]}"\nsecret_file = "{values["secret_file"]}"\n'
            f'data_dir = "data"\nlisten = "{address}"\n{SLOW}join = ["{cluster.addresses[0]}"]\n'
        )
        shell = Growing(cluster, file)
        shell(f"nodes add d --address {address}")
        held.release()
        process = logged([*cluster.command("n1")[:-1], str(file)], folder / "node.log", folder)
        try:
            until(lambda: all(row["up"] for row in shell("nodes list --json").lines()), "d takes part")
            yield shell
        finally:
            end([process], 10.0)


@pytest.mark.parametrize(
    ("command", "how", "code"),
    [
        ("partitions move TOPIC/0 --from FROM --to TO --wait", signal.SIGINT, 130),
        ("topics alter TOPIC --rf 3 --wait", signal.SIGTERM, 143),
        ("nodes drain FROM --to d", signal.SIGINT, 130),
    ],
)
def test_a_command_that_waits_for_payload_is_broken_off_and_repeated(
    shell: Growing, start: Callable[..., Running], command: str, how: signal.Signals, code: int
) -> None:
    topic = f"jobs-{code}-{len(command)}"
    source = shell.made(topic)
    to = next(name for name in ("n1", "n2") if name != source)
    words = [{"FROM": source, "TO": to}.get(word, word).replace("TOPIC", topic) for word in command.split()]
    running = start(*words)
    until(lambda: f"{topic}/0" in running.err.read_text(), "it waits, and says so")
    assert running.send(how) == code
    assert "Traceback" not in running.err.read_text()
    shell.limit(SLOW, "move_bytes_per_s = 0\n")
    shell(" ".join(words))
    shell(" ".join(words))
    assert shell.states(topic) == {"ready": 4}
    shell.limit("move_bytes_per_s = 0\n", SLOW)
    if words[0] == "nodes":
        address = next(
            row["address"] for row in shell("nodes list --json").lines() if row["node"] == words[2]
        )
        shell(f"nodes add {words[2]} --address {address}")
