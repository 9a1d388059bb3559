"""The process of a gateway: its sockets, its start and its end."""

from __future__ import annotations

import itertools
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import h11
import pytest
import trio
from click.testing import CliRunner

pytest.importorskip("hypercorn", reason="the extra quorumq[gateway] is not installed")

from quorumq.cli.main import main
from quorumq.client import TooFewReplicas, connect
from quorumq.gateway import gateway, requests
from quorumq.gateway import serve as process
from quorumq.gateway.connections import CONNECTIONS_MAX, OTHER_FILES, Connections, Head
from quorumq.gateway.serve import ending, http_config, serve
from quorumq.gateway.settings import Settings
from quorumq.gateway.shares import Shares
from quorumq.node import tls
from quorumq.wire.tls import client_context, names_in
from tests.node.certificates import Files
from tests.patience import PATIENCE_S, until
from tests.virtual import in_real_time


def test_connections_do_not_wait_for_ever_for_their_clients() -> None:
    (listener,) = (
        http_config(Settings(nodes=("a:1",), listen="127.0.0.1:0"), Shares())
        .create_sockets()
        .insecure_sockets
    )
    with listener:
        listener.listen()
        with socket.create_connection(listener.getsockname()):
            listener.setblocking(True)
            with listener.accept()[0] as accepted:
                timeout = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
    assert timeout == 1000 * process.UNREAD_S


def test_one_address_has_half_of_the_connections_and_nodes_have_files() -> None:
    connections = Connections(1_000_000)
    assert connections.most == CONNECTIONS_MAX
    connections.most = 6
    assert [connections.enter("a") for _ in range(4)] == [True, True, True, False]
    assert [connections.enter(address) for address in "bcde"] == [True, True, True, False]
    connections.release("a")
    assert connections.enter("e")
    assert Connections(OTHER_FILES + 2_000).most == 2_000
    assert Connections(256).most == 128


def test_a_gateway_takes_as_many_files_as_the_system_gives() -> None:
    code = (
        "import resource as r; from quorumq.gateway.connections import file_limit; "
        "r.setrlimit(r.RLIMIT_NOFILE, (100, 200)); print(file_limit(), *r.getrlimit(r.RLIMIT_NOFILE))"
    )
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE).stdout == b"200 200 200\n"


@in_real_time
async def test_a_connection_ends_with_its_client_and_none_is_taken_beyond_the_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A file was open for 75 s after each client that had closed its connection: 14 a second took all of 1,024."""
    made: list[Connections] = []

    def few(files: int) -> Connections:
        made.append(Connections(files))
        made[0].most = 4
        return made[0]

    monkeypatch.setattr(process, "Connections", few)
    monkeypatch.setattr(process, "KEEP_ALIVE_S", 3600.0)
    urls: list[str] = []
    stop, started = trio.Event(), trio.Event()

    async def ask(end: bytes) -> bytes:
        stream = await trio.open_tcp_stream("127.0.0.1", int(urls[0].rpartition(":")[2]))
        async with stream:
            with suppress(trio.BrokenResourceError):
                await stream.send_all(b"GET /ready HTTP/1.1\r\nHost: 127.0.0.1\r\n" + end)
                return await stream.receive_some() if end else b""
        return b""

    def start(url: str) -> None:
        urls.append(url)
        started.set()

    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve, Settings(nodes=("127.0.0.1:1",), listen="127.0.0.1:0"), start, stop)
            await started.wait()
            for end in (b"", b"\r\n") * 4:
                await ask(end)
                while made[0].by_address:
                    await trio.sleep(0.01)
            made[0].by_address["127.0.0.1"] = 2
            assert await ask(b"\r\n") == b""
            made[0].by_address.clear()
            assert (await ask(b"\r\n")).startswith(b"HTTP/1.1 200")
            stop.set()


@asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[Callable[[], Awaitable[trio.SocketStream]]]:
    """Run a gateway without nodes; yield a function that connects to it."""
    given = Settings(nodes=("127.0.0.1:1",), listen="127.0.0.1:0", **settings)
    urls: list[str] = []
    stop, started = trio.Event(), trio.Event()

    def start(url: str) -> None:
        urls.append(url)
        started.set()

    async def connect() -> trio.SocketStream:
        return await trio.open_tcp_stream("127.0.0.1", int(urls[0].rpartition(":")[2]))

    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve, given, start, stop)
            await started.wait()
            yield connect
            stop.set()


async def test_a_connection_that_comes_as_the_gateway_stops_is_not_waited_for() -> None:
    connections, began = Connections(100), trio.current_time()
    connections.stop()
    ours, theirs = trio.socket.socketpair()
    with ours, theirs:
        assert await connections.first_byte(trio.SocketStream(ours), 10.0) == b""
    assert trio.current_time() == began


@in_real_time
async def test_connections_that_end_together_do_so_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """4,000 connections that were closed at once kept `/ready` waiting for a second of the processor."""
    counts: list[int] = []

    class Passes(trio.abc.Instrument):
        def after_io_wait(self, timeout: float) -> None:
            counts.append(made[0].by_address.total())

    made = [Connections(10_000)]
    monkeypatch.setattr(process, "Connections", lambda files: made[0])
    async with serving() as connect:
        streams = [await connect() for _ in range(60)]
        for stream in streams:
            await stream.send_all(b"GET /ready HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            await stream.receive_some()
        trio.lowlevel.add_instrument(passes := Passes())
        for stream in streams:
            stream.socket.close()
        while made[0].by_address:
            await trio.sleep(0.001)
        trio.lowlevel.remove_instrument(passes)
    assert counts[0] == 60
    assert max(before - after for before, after in itertools.pairwise(counts)) <= 4


@in_real_time
async def test_a_connection_that_has_sent_nothing_is_one_task_and_ends_with_its_gateway() -> None:
    """Four thousand that were opened at once kept `/ready` waiting for 0.3 to 0.9 s of the processor."""
    spawned: list[str] = []

    class Spawned(trio.abc.Instrument):
        def task_spawned(self, task: trio.lowlevel.Task) -> None:
            spawned.append(task.name)

    async with serving() as connect:
        await trio.testing.wait_all_tasks_blocked(0.05)
        trio.lowlevel.add_instrument(instrument := Spawned())
        streams = [await connect() for _ in range(20)]
        while sum("_run_handler" in name for name in spawned) < 20:
            await trio.sleep(0.001)
        await trio.testing.wait_all_tasks_blocked(0.05)
        trio.lowlevel.remove_instrument(instrument)
        began = trio.current_time()
    assert len([name for name in spawned if "hypercorn" in name]) == 0
    assert trio.current_time() - began < process.GRACE_S / 2
    for stream in streams:
        assert await stream.receive_some() == b""


@in_real_time
async def test_a_client_of_nodes_learns_that_this_is_a_gateway() -> None:
    """It waited for the whole of its timeout, and said that there was no connection."""
    async with serving() as gateway:
        stream = await gateway()
        port = stream.socket.getpeername()[1]
        await stream.aclose()
        with pytest.raises(
            TooFewReplicas, match="looks like HTTP, as a gateway speaks it; give the address of a node"
        ):
            async with connect(f"127.0.0.1:{port}", timeout=1.0):
                pass


@in_real_time
async def test_no_connection_ends_the_gateway_and_all_are_of_http_1(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One request of HTTP/2, with a byte in its path that is no ASCII, ended the process."""
    async with serving() as connect:

        async def ask(request: bytes) -> bytes:
            async with await connect() as stream:
                await stream.send_all(request)
                return (await stream.receive_some())[:12]

        get = b"GET /v1/openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n%b\r\n\r\n"
        assert await ask(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n") == b"HTTP/1.1 505"
        for upgrade in (b"h2c\r\nHTTP2-Settings: AAM", b"websocket"):
            assert await ask(get % (b"Connection: Upgrade\r\nUpgrade: " + upgrade)) == b"HTTP/1.1 200"
        half = b"POST /v1/nope HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\n"
        for _ in range(40):
            assert await ask(b"GET /v1/openapi.json HTTP/1.0\r\n\r\n\r\n") == b"HTTP/1.1 200", (
                "a line too many"
            )
            async with await connect() as stream:
                await stream.send_all(half)
                await stream.send_eof()
                while await stream.receive_some():
                    pass
        assert not caplog.text
        with monkeypatch.context() as patch:
            patch.setattr(Head, "next_event", {}.popitem)
            assert await ask(get % b"X: y") == b""
        assert "KeyError" in caplog.text
        assert await ask(get % b"X: y") == b"HTTP/1.1 200"


@in_real_time
async def test_steps_of_a_connection_count_for_the_user_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Shares()
    monkeypatch.setattr(gateway, "Shares", lambda: made)
    share = made.of(("127.0.0.1", ""))
    async with serving() as connect, await connect() as stream:
        await stream.send_all(b"GET /v1/none HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        answer = b""
        while not answer.endswith(b"}"):
            answer += await stream.receive_some()
        await trio.testing.wait_all_tasks_blocked(0.05)
        before = share.worked
        await stream.send_all(b"G")
        with trio.fail_after(process.KEEP_ALIVE_S / 2):
            while share.worked == before:
                await trio.sleep(0.001)


@in_real_time
async def test_a_body_that_is_too_long_is_refused_before_it_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its client got ``100 Continue``, and sent 4 MiB of it for nothing."""
    monkeypatch.setattr(requests, "DRAIN_S", 3600.0)
    async with serving() as connect:
        for path in ("/v1/topics/jobs/messages", "/", "/console/login"):
            async with await connect() as stream:
                head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nExpect: 100-continue\r\nContent-Length: "
                await stream.send_all(f"{head}157286400\r\n\r\n".encode())
                answer = b""
                while part := await stream.receive_some():
                    answer += part
                assert answer.startswith(b"HTTP/1.1 4"), answer
                assert b"157286400 bytes" in answer
        async with await connect() as stream:
            await stream.send_all(f"{head}2\r\n\r\n".encode())
            assert (await stream.receive_some()).startswith(b"HTTP/1.1 100")


@in_real_time
async def test_a_certificate_counts_from_the_next_connection_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A gateway read its certificate once, and showed it until a restart."""
    monkeypatch.setattr(tls, "REREAD_S", 0.0)
    files = Files(tmp_path)
    cert, key = files.issue("old", file="gateway")
    trusting = client_context(files.ca)
    trusting.check_hostname = False
    trusting.set_alpn_protocols(["h2", "http/1.1"])

    async with serving(tls_cert=cert, tls_key=key) as connect:

        async def begin() -> trio.SSLStream[trio.SocketStream]:
            stream = trio.SSLStream(await connect(), trusting, https_compatible=True)
            await stream.do_handshake()
            return stream

        async def shown(stream: trio.SSLStream[trio.SocketStream]) -> frozenset[str]:
            await stream.send_all(b"GET /ready HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            answer = b""
            while not answer.endswith(b"ready\n"):
                answer += await stream.receive_some()
            assert stream.selected_alpn_protocol() == "http/1.1"
            return names_in(stream.getpeercert())

        first = await begin()
        assert await shown(first) == {"old"}
        other = Path(files.issue("new")[0]).read_bytes()
        Path(cert).write_bytes(other)  # its key is written later
        assert await shown(await begin()) == {"old"}
        assert "certificates_ignored" in caplog.text
        files.issue("new", file="gateway")
        assert await shown(await begin()) == {"new"}
        assert await shown(first) == {"old"}


@in_real_time
async def test_headers_that_trickle_end_with_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "KEEP_ALIVE_S", 0.3)
    async with serving() as connect, await connect() as stream:
        sent = 0
        with suppress(trio.BrokenResourceError):
            await stream.send_all(b"GET /ready HTTP/1.1\r\nX: ")
            while True:
                await stream.send_all(b"x")
                sent += 1
                await trio.sleep(0.01)
        assert sent < 16 * 1024, "else it ended as it was too long"


def test_a_process_ends_at_last_unless_it_has_ended_before() -> None:
    ends: list[int] = []
    with ending(ends.append) as end_after:
        end_after(3600)
    assert ends == []
    with ending(ends.append) as end_after:
        end_after(0)
        until(lambda: ends, "it ends")
    assert ends == [0]


@in_real_time
async def test_an_address_in_use_is_one_error_and_no_group() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(OSError, match="in use"):
            await serve(Settings(nodes=("a:1",), listen=listen), lambda url: None, trio.Event())


def test_a_gateway_beside_that_of_dev_says_which_one_to_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        done = CliRunner().invoke(main, ["gateway", "--listen", listen, "--node", "127.0.0.1:1"])
    assert done.exit_code == 74
    assert f"cannot listen at {listen}: Address already in use" in done.stderr
    assert "`quorumq dev`" in done.stderr
    assert "--listen" in done.stderr


@pytest.mark.soak
@pytest.mark.e2e
def test_a_client_that_does_not_read_keeps_no_gateway_from_its_end(gateway_process: Any) -> None:
    url, process_of_it = gateway_process
    host, _, port = url.removeprefix("http://").rpartition(":")
    with socket.create_connection((host, int(port))) as client:
        request = b"GET /v1/openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        client.settimeout(1)
        with pytest.raises(TimeoutError):  # the gateway reads no more, as it cannot write
            client.sendall(200_000 * request)
        began = time.monotonic()
        process_of_it.send_signal(signal.SIGTERM)
        assert process_of_it.wait(process.GRACE_S + process.LAST_S + PATIENCE_S) == 0
        assert time.monotonic() - began < process.UNREAD_S


def test_bytes_after_the_last_request_of_a_connection_are_not_kept() -> None:
    head = Head(h11.SERVER)
    head.receive_data(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert [type(head.next_event()) for _ in range(2)] == [h11.Request, h11.EndOfMessage]
    head.receive_data(b"x" * 1000)
    assert head.trailing_data[0] == b""
