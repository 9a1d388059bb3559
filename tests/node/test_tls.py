"""TLS between nodes and to clients: certificates that admit a peer, and the error for one that does not."""

from __future__ import annotations

import json
import ssl
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trio
from click.testing import CliRunner, Result

from quorumq.cli.main import main
from quorumq.client import connect
from quorumq.core.values.errors import PeerError, TooFewReplicas, UsageError
from quorumq.core.values.types import Now
from quorumq.lab import leash, local
from quorumq.lab.ports import free_ports
from quorumq.node.config import make_config
from quorumq.node.health import Health
from quorumq.node.tls import Certificates, TlsTransport
from quorumq.node.transport import RECEIVE_BYTES_MAX, ConnectionLost, Outflow
from quorumq.wire.tls import (
    CHUNK_BYTES,
    RECORD_BYTES,
    client_context,
    expiry_of,
    names_in,
    peer_context,
    server_context,
)
from sim.shell.memory import Log, MemoryTransport, pair
from tests.node.certificates import Files
from tests.node.memory import Quiet
from tests.patience import PATIENCE_S, until

HOST = "127.0.0.1"
PAST = datetime.now(UTC) - timedelta(days=1)
FUTURE = datetime.now(UTC) + timedelta(days=1)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def ends(
    files: Files, listener: str, dialler: str, capacity: int = 4096, **of_dialler: Any
) -> tuple[TlsTransport, TlsTransport, MemoryTransport]:
    """Two nodes' ends of a connection, and the stream below the second."""
    below, other = pair(capacity)
    server = TlsTransport(below, server_context(*files.issue(listener), files.ca), server_side=True)
    context = peer_context(*files.issue(dialler, **of_dialler), files.ca)
    return server, TlsTransport(other, context, server_side=False), other


async def copied(reader: TlsTransport, into: bytearray, size: int) -> None:
    while len(into) < size:
        into += await reader.receive()


async def test_bytes_arrive_through_small_buffers_and_both_sides_are_authenticated(files: Files) -> None:
    server, dialler, _ = ends(files, "n1", "n2")
    sent = bytes(range(256)) * 4096  # four chunks, through a pipe of 4 KiB
    assert len(sent) > 3 * CHUNK_BYTES
    got, drained = bytearray(), trio.Event()

    def lost(reason: str) -> None:
        raise AssertionError(reason)

    async with trio.open_nursery() as nursery:
        out = Outflow(dialler, nursery, 30.0, Quiet(), lost, drained.set)
        for start in range(0, len(sent), 1000):
            out.put([sent[start : start + 1000]])
        out.flush()
        assert out.sent == 0, "nothing is sent before the handshake"
        nursery.start_soon(dialler.receive)
        nursery.start_soon(copied, server, got, len(sent))
        with trio.fail_after(PATIENCE_S):
            await drained.wait()
            while len(got) < len(sent):
                await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    assert bytes(got) == sent
    assert out.sent == len(sent)
    assert (server.names, dialler.names) == ({"n2"}, {"n1"})


async def shaken(one: TlsTransport, other: TlsTransport) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(one.receive)
        nursery.start_soon(other.receive)
        while not (one._established.is_set() and other._established.is_set()):
            await trio.sleep(0)
        nursery.cancel_scope.cancel()


class Turned(trio.abc.Instrument):
    """Counts the turns of all tasks."""

    def __init__(self) -> None:
        self.turns = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.turns += 1


async def test_chunks_are_encrypted_in_one_call_and_read_in_one_turn(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, dialler, _ = ends(files, "n1", "n2", 1 << 20)
    await shaken(server, dialler)
    calls: Counter[str] = Counter()

    def counted(name: str) -> None:
        real = getattr(ssl.SSLObject, name)

        def count(self: ssl.SSLObject, *args: Any) -> Any:
            calls[name] += 1
            return real(self, *args)

        monkeypatch.setattr(ssl.SSLObject, name, count)

    counted("write")
    counted("read")
    said = bytes(range(256)) * 160
    assert dialler.send_some([memoryview(said)[at : at + 100] for at in range(0, len(said), 100)]) == len(
        said
    )
    turned = Turned()
    trio.lowlevel.add_instrument(turned)
    try:
        assert await server.receive() == said
    finally:
        trio.lowlevel.remove_instrument(turned)
    assert calls == {"write": 1, "read": -(-len(said) // RECORD_BYTES)}, (
        "and none to hear that there is no more"
    )
    assert turned.turns <= 1


async def test_a_byte_of_a_chunk_that_did_not_fit_is_owed_until_the_rest_has_left(files: Files) -> None:
    server, dialler, below = ends(files, "n1", "n2")
    await shaken(server, dialler)
    chunk = [memoryview(bytes(20_000))]
    assert dialler.send_some(chunk) == 19_999
    assert dialler.send_some([memoryview(b"x")]) == 0, "there is no room still"
    got = bytearray()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(copied, server, got, 20_000)
        while not (owed := dialler.send_some([memoryview(b"x")])):
            await trio.sleep(0)
    assert (owed, len(got)) == (1, 20_000)
    below.close()


async def handshake(one: TlsTransport, other: TlsTransport) -> str:
    """Why a handshake fails at the first end; "" if it does not."""
    reason = ""

    async def other_end() -> None:
        with pytest.raises((PeerError, ConnectionLost)):
            await other.receive()
        other.close()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other_end)
        try:
            await one.receive()
        except (PeerError, ConnectionLost) as error:
            reason = str(error)
        one.close()
    return reason


class Asked:
    """Below a transport: has nothing to read, and notes how much it was asked for."""

    def __init__(self) -> None:
        self.most: list[int] = []

    async def receive(self, most: int = 0) -> bytes:
        return self.receive_now(most)

    def receive_now(self, most: int = 0) -> bytes:
        self.most.append(most)
        return b""


async def test_tls_reads_as_much_at_a_time_as_plain_tcp(files: Files) -> None:
    server, dialler, _ = ends(files, "n1", "n2")
    await shaken(server, dialler)
    below = server._inner = Asked()  # type: ignore[assignment]
    server.receive_now(RECEIVE_BYTES_MAX)
    await server.receive(RECEIVE_BYTES_MAX)
    assert below.most == [RECEIVE_BYTES_MAX] * 2


async def test_a_certificate_of_another_authority_or_time_is_refused(files: Files, tmp_path: Path) -> None:
    strangers = Files(tmp_path, "others")
    below, other = pair()
    server = TlsTransport(below, server_context(*files.issue("n1"), files.ca), server_side=True)
    stranger = TlsTransport(other, peer_context(*strangers.issue("n2"), files.ca), server_side=False)
    assert "certificate is refused" in await handshake(server, stranger)
    server, late, _ = ends(files, "n1", "n3", not_after=PAST)
    assert "certificate has expired" in await handshake(server, late)
    server, early, _ = ends(files, "n1", "n4", not_before=FUTURE, not_after=FUTURE + timedelta(days=1))
    assert "not yet valid" in await handshake(server, early), "as where a clock is behind"


async def test_an_old_version_of_tls_and_what_is_not_tls_are_refused(files: Files) -> None:
    below, other = pair()
    server = TlsTransport(below, server_context(*files.issue("n1"), files.ca), server_side=True)
    context = peer_context(*files.issue("n2"), files.ca)
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    assert "unsupported protocol" in await handshake(server, TlsTransport(other, context, server_side=False))
    below, other = pair()
    other.send_some([memoryview(b"\xabQQ\x01" + bytes(40))])
    plain = TlsTransport(below, server_context(*files.issue("n1"), files.ca), server_side=True)
    with pytest.raises(PeerError, match="does the other side speak TLS"):
        await plain.receive()


def test_the_end_of_a_certificate_is_read_from_its_file(files: Files, tmp_path: Path) -> None:
    """F12: nothing showed the day on which the cluster would fall apart."""
    for end in (
        PAST,
        FUTURE,
        datetime(2049, 12, 31, 23, 59, 59, tzinfo=UTC),
        datetime(2051, 1, 2, tzinfo=UTC),
    ):
        cert, key = files.issue("n1", not_after=end)
        assert expiry_of(cert) == int(end.timestamp())
    config = make_config({
        "node": "n1", "cluster_id": "c", "secret": "s" * 32, "data_dir": str(tmp_path), "tls_cert": cert,
        "tls_key": key,
    })  # fmt: skip
    health = Health(config, lambda: Now(0.0, int(datetime(2051, 1, 1, tzinfo=UTC).timestamp() * 1000)))
    assert health.certificate_left() == 86400
    for wrong in (files.ca, key):
        Path(cert).write_bytes(Path(wrong).read_bytes()[:200])
        assert health.certificate_left() is None


async def test_files_that_change_count_from_the_next_connection_and_wrong_ones_not(files: Files) -> None:
    cert, key = files.issue("old", file="node")
    log = Log()
    certificates = Certificates(cert, key, files.ca, log)
    context = peer_context(*files.issue("n2"), files.ca)

    async def shown() -> frozenset[str]:
        below, other = pair()
        ours, theirs = certificates.accepted(below), TlsTransport(other, context, server_side=False)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ours.receive)
            nursery.start_soon(theirs.receive)
            while not theirs.names:
                await trio.sleep(0)
            nursery.cancel_scope.cancel()
        return theirs.names

    assert await shown() == {"old"}
    files.issue("new", file="node")
    await trio.sleep(1.1)
    assert await shown() == {"new"}
    Path(cert).write_text("no certificate")
    await trio.sleep(1.1)
    assert await shown() == {"new"}
    assert [event for _, event, _ in log.lines] == ["certificates_read", "certificates_ignored"]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda f, c, k: server_context(c, f.ca, f.ca), "tls_cert"),
        (lambda f, c, k: server_context("/nowhere", k, f.ca), "No such file"),
        (lambda f, c, k: server_context(c, k, k), "tls_ca"),
        (lambda f, c, k: client_context("/nowhere"), "tls_ca /nowhere: No such file"),
        (lambda f, c, k: client_context(k), "tls_ca"),
    ],
)
def test_files_that_cannot_be_used_are_named(files: Files, make: Callable[..., object], words: str) -> None:
    cert, key = files.issue("n1")
    with pytest.raises(UsageError) as caught:
        make(files, cert, key)
    assert words in str(caught.value)
    assert "give" in str(caught.value)


# ---------------------------------------------------------------------- real processes


@contextmanager
def running(folder: Path, files: Files, impostor: str = "", **settings: Any) -> Iterator[list[str]]:
    """Three nodes that speak TLS; the impostor has the certificate of another."""
    ports = free_ports(6)
    nodes = {f"n{number}": f"{HOST}:{port}" for number, port in enumerate(ports[:3], 1)}
    tables = {"nodes": nodes}
    if settings.pop("apart", False):
        tables["peers"] = {f"n{number}": f"{HOST}:{port}" for number, port in enumerate(ports[3:], 1)}
    processes = []
    for node in nodes:
        cert, key = files.issue("n9" if node == impostor else node, HOST, file=node)
        values = {
            "node": node, "cluster_id": "c", "secret": "0123456789abcdef", "data_dir": node,
            "tls_cert": cert, "tls_key": key, "tls_ca": files.ca, **settings,
        }  # fmt: skip
        lines = [f'{name} = "{value}"' for name, value in values.items()]
        lines += ["hold_time_max = 2.0"]
        for table, locations in tables.items():
            lines += [f"[{table}]", *(f'{name} = "{location}"' for name, location in locations.items())]
        path = folder / f"{node}.toml"
        path.write_text("\n".join(lines) + "\n")
        path.chmod(0o600)
        command = [sys.executable, "-m", "quorumq.node", "--config", str(path)]
        processes.append(local.logged(command, folder / f"{node}.log", folder))
    try:
        yield [*nodes.values(), *tables.get("peers", {}).values()]
    finally:
        leash.end(processes, PATIENCE_S)


async def refused(address: str, cause: str, **options: Any) -> None:
    """Fail to connect, and read the cause. A handshake on a busy machine may need more than a second."""
    for timeout in (1.0, 5.0, 25.0, 125.0):
        with pytest.raises(TooFewReplicas) as caught:
            async with connect(address, timeout=timeout, **options):
                pass
        if cause in str(caught.value):
            return
    pytest.fail(str(caught.value))


@pytest.mark.e2e
async def test_a_cluster_speaks_tls_and_a_node_with_the_certificate_of_another_is_kept_out(
    tmp_path: Path, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path, files, impostor="n3") as addresses:
        logs = {name: tmp_path / f"{name}.log" for name in ("n1", "n2", "n3")}
        with trio.fail_after(PATIENCE_S):
            while not all("node_started" in log.read_text() for log in logs.values()):
                await trio.sleep(0.1)
        await refused(addresses[0], "QUORUMQ_TLS_CA")
        await refused(addresses[0], "the certificate is refused: ", tls_ca=Files(tmp_path, "wrong").ca)
        with trio.fail_after(PATIENCE_S):
            while "n9" not in logs["n1"].read_text() or "link_up" not in logs["n2"].read_text():
                await trio.sleep(0.1)
        monkeypatch.setenv("QUORUMQ_TLS_CA", files.ca)
        command = [sys.executable, "-m", "quorumq", "status", "--json", "--node", addresses[0]]
        done = await trio.run_process(command, capture_stdout=True, check=False)
        peers = json.loads(done.stdout)["nodes"][0]["peers"]
        assert {name: peer["up"] for name, peer in peers.items()} == {"n2": True, "n3": False}
        async with connect(addresses[:3], tls_ca=files.ca) as client:
            assert not (await client.metadata()).topics


@pytest.mark.e2e
def test_the_commands_work_on_a_cluster_that_asks_everybody_who_he_is(
    tmp_path: Path, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = str(tmp_path / "clients.toml")

    def ask(*arguments: str, token: str = "") -> Result:
        return CliRunner().invoke(main, arguments, env={"QUORUMQ_TOKEN": token or None})

    def run(*arguments: str, token: str = "", code: int = 0) -> str:
        """Run a command; return its output, or its error output if it failed."""
        done = ask(*arguments, token=token)
        assert done.exit_code == code, done.output
        return done.stderr if code else done.stdout

    def add(name: str, *rights: str) -> str:
        return str(json.loads(run("clients", "add", name, "--file", clients, *rights, "--json"))["token"])

    monkeypatch.delenv("QUORUMQ_TOKEN", raising=False)
    shop = add("shop", "--publish", "orders.*")
    biller = add("billing", "--consume", "orders.*", "billing")
    boss = add("boss", "--publish", "*", "--consume", "*", "*", "--admin", "*")
    with running(tmp_path, files, apart=True, clients_file=clients) as addresses:
        monkeypatch.setenv("QUORUMQ_NODES", ",".join(addresses[:3]))
        logs = [tmp_path / f"{node}.log" for node in ("n1", "n2", "n3")]
        until(lambda: all("node_started" in log.read_text() for log in logs), "all nodes have started")
        assert "QUORUMQ_TLS_CA" in run("publish", "orders.eu", "x", code=69)
        assert "QUORUMQ_TLS_CA" in run("status", code=69)
        monkeypatch.setenv("QUORUMQ_TLS_CA", files.ca)
        run("topics", "create", "orders.eu", "--timeout", "600", token=boss)
        assert run("publish", "orders.eu", "first", token=shop)

        assert "token" in run("publish", "orders.eu", "x", code=77)
        assert "token" in run("publish", "orders.eu", "x", token=shop[:-3] + "AAA", code=77)
        assert "publish" in run("publish", "orders.eu", "x", token=biller, code=77)
        take = ("consume", "orders.eu", "--max", "1", "--wait", "600", "--group")
        assert "consume" in run(*take, "billing", token=shop, code=77)
        assert "consume" in run(*take, "other", token=biller, code=77)
        assert "admin" in run("topics", "delete", "orders.eu", "--yes", token=shop, code=77)
        assert "first" in run(*take, "billing", token=biller)

        assert "serves clients at" in run("status", "--node", addresses[3], token=boss, code=77)
        status = json.loads(run("status", "--json", token=boss))
        assert [len(node["peers"]) for node in status["nodes"]] == [2, 2, 2]
        assert all(peer["up"] for node in status["nodes"] for peer in node["peers"].values())

        run("clients", "revoke", "shop", "--file", clients)
        end = time.monotonic() + PATIENCE_S
        while not (done := ask("publish", "orders.eu", "x", token=shop)).exit_code:
            assert time.monotonic() < end, "the nodes read the file again"
        assert (done.exit_code, "token" in done.stderr) == (77, True), done.stderr
        assert run("publish", "orders.eu", "second", token=boss)


def test_a_certificate_is_of_its_dns_names_and_not_of_its_common_name() -> None:
    subject = ((("commonName", "n2"),),)
    of_address = {"subject": subject, "subjectAltName": (("IP Address", "10.0.0.1"),)}
    assert names_in(of_address) == names_in({"subject": subject}) == names_in(None) == frozenset()
    assert names_in({**of_address, "subjectAltName": (("DNS", "n1"), ("DNS", "host"))}) == {"n1", "host"}
