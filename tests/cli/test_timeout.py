"""No command waits longer for nodes than its --timeout says."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import click
import pytest
import trio
from click.testing import CliRunner
from trio.testing import MockClock

from quorumq.cli.common import Where, cluster
from quorumq.cli.main import main
from quorumq.core.messages import Welcome
from quorumq.core.values.errors import QuorumqError
from quorumq.core.values.types import Incarnation
from quorumq.lab.bench import WORKLOADS
from quorumq.lab.ports import free_ports
from quorumq.wire.codec import encode_message
from tests.cli.tree import commands

ID = f"{bytes(16).hex()}/0/n1.1.{0:016x}.0/0"
COMMANDS = {
    "publish": ("jobs", "x"),
    "consume": ("jobs", "--group", "g"),
    "peek": ("jobs", "--group", "g"),
    "show": ("jobs", ID),
    "deadletters list": ("jobs", "--group", "g"),
    "deadletters redrive": ("jobs", "--group", "g", "--limit", "1"),
    "deadletters purge": ("jobs", "--group", "g"),
    "purge": ("jobs", "--group", "g"),
    "groups create": ("jobs", "g"),
    "groups rewind": ("jobs", "g", "--to", "latest"),
    "groups delete": ("jobs", "g", "--yes"),
    "groups describe": ("jobs", "g"),
    "groups list": (),
    "groups backlog": (),
    "groups pause": ("jobs", "g"),
    "groups resume": ("jobs", "g"),
    "groups limit": ("jobs", "g", "--off"),
    "deadletters count": ("jobs", "--group", "g"),
    "topics label": ("jobs",),
    "status": (),
    "topics create": ("jobs",),
    "topics set": ("jobs", "--ttl", "1"),
    "topics alter": ("jobs", "--rf", "3"),
    "topics delete": ("jobs", "--yes"),
    "topics list": (),
    "survivors declare": (),
    "partitions move": ("jobs/0", "--from", "n1", "--to", "n2"),
    "partitions balance": (),
    "nodes add": ("n4", "--address", "127.0.0.1:1"),
    "nodes list": (),
    "nodes drain": ("n4",),
    "nodes remove": ("n4",),
    "nodes voters": (),
    "nodes replace": ("n4", "n5", "--address", "127.0.0.1:1"),
}
"""Every command with a --timeout for nodes, and its other arguments."""

OTHERWISE = {"work", "gateway", *(f"bench {workload.name}" for workload in WORKLOADS)}
"""Those that go on until they are stopped, or have measured: `work` has its --timeout for a handler."""


@contextmanager
def node(*, welcomes: bool) -> Iterator[str]:
    """The address of a node that accepts, answers HELLO if ``welcomes`` is set, and then says nothing."""
    welcome = Welcome(1, "cluster", "n1", Incarnation(1, 2), 3, int(time.time() * 1000), 5, ())
    accepted: list[socket.socket] = []

    def serve() -> None:
        while True:
            try:
                accepted.append(listener.accept()[0])
                if welcomes:
                    accepted[-1].sendall(b"".join(encode_message(welcome, request=1)))
            except OSError:  # closed
                return

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
            for one in accepted:
                one.close()


def test_every_command_that_talks_to_a_cluster_has_a_timeout() -> None:
    names = {
        " ".join(path)
        for path, command in commands(main, ())
        if any(param.name == "nodes" and isinstance(param, click.Option) for param in command.params)
        and path not in (("dev",), ("init",))
    }
    assert names - OTHERWISE == set(COMMANDS)


@pytest.mark.parametrize("welcomes", [False, True], ids=["says nothing", "stands still after HELLO"])
def test_a_node_that_does_not_answer_is_given_up_when_the_time_is_over(welcomes: bool) -> None:
    with node(welcomes=welcomes) as address:
        for name, arguments in COMMANDS.items():
            began = time.monotonic()
            done = CliRunner().invoke(
                main, [*name.split(), *arguments, "--node", address, "--timeout", "0.1"], input="y\n"
            )
            assert time.monotonic() - began < 0.5 * Where._field_defaults["timeout"], name
            assert done.exit_code in (69, 75), f"{name}: {done.output} {done.exception}"


@pytest.mark.parametrize("listens", [True, False], ids=["a node that says nothing", "nobody"])
def test_looking_for_a_node_takes_no_longer_than_the_timeout(listens: bool) -> None:
    async def took(address: str) -> float:
        began = trio.current_time()
        with pytest.raises(QuorumqError, match="no node answers"):
            async with cluster(Where((address,), 1.0)):
                pass
        return trio.current_time() - began

    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        if listens:
            silent.listen()
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        assert trio.run(took, address, clock=MockClock(autojump_threshold=0.01)) < 1.5


def test_a_silent_node_allows_time_for_the_others() -> None:
    async def connect(addresses: tuple[str, ...]) -> None:
        async with cluster(Where(addresses, 4.0)) as client:
            assert client.timeout > 1.0, "the silent one has half of the time at most"

    with node(welcomes=False) as silent, node(welcomes=True) as there:
        for _ in range(4):  # it begins with any
            trio.run(connect, (silent, there))


def test_a_declaration_tells_nodes_that_do_not_answer_from_nodes_that_are_not_trusted() -> None:
    (port,) = free_ports(1)
    done = CliRunner().invoke(main, ["survivors", "declare", "--dry-run", "--node", f"127.0.0.1:{port}"])
    assert done.exit_code == 75
    assert f"no node answers at 127.0.0.1:{port}: start every node of the cluster first" in done.stderr
