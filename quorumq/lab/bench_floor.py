"""The least that one message at a time can take here: programs that pass on the frames of nodes, and decide nothing.

A coordinator, two replicas and a client exchange as many frames as a message that is published, delivered and acked
costs three nodes, one after the other, and write and sync as often. There is no codec, no protocol and no bound. Once
their sockets are waited for by epoll (by `selectors`, if there is no epoll), and once by tasks of trio.
"""

from __future__ import annotations

import os
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import trio

from quorumq.lab.bench_ledger import percentiles
from quorumq.lab.leash import Leashed

FRAME_BYTES: Final = 1024
LEGS: Final = (b"p", b"d", b"a")
"""Publish, deliver, ack: how the frames of each begin."""

SYNCED: Final = frozenset({b"p", b"a"})
LOOPS: Final = ("epoll", "trio")
WARM_UP: Final = 100


@dataclass(eq=False)
class Passer:
    """One node of those that decide nothing: a replica, or the coordinator if it has ``replicas``."""

    _file: int
    _replicas: Sequence[socket.socket]
    _buffers: dict[socket.socket, bytes] = field(default_factory=dict)
    _client: socket.socket = field(init=False)
    _open: bytes = b""  # the client's request that no replica has answered

    def take(self, sock: socket.socket, data: bytes) -> None:
        """This has come."""
        data = self._buffers.get(sock, b"") + data
        while len(data) >= FRAME_BYTES:
            frame, data = data[:FRAME_BYTES], data[FRAME_BYTES:]
            if sock not in self._replicas:
                self._ask(sock, frame)
            elif frame == self._open:  # with ours it is a majority
                self._open = b""
                self._client.sendall(frame)
        self._buffers[sock] = data

    def _ask(self, sock: socket.socket, frame: bytes) -> None:
        for replica in self._replicas:
            replica.sendall(frame)
        if frame[:1] in SYNCED:
            os.write(self._file, frame)
            os.fdatasync(self._file)
        if self._replicas:
            self._client, self._open = sock, frame
        else:
            sock.sendall(frame)


def dialled(port: int) -> socket.socket:
    """Return a connection to another of these processes."""
    sock = socket.create_connection(("127.0.0.1", port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def serve(directory: str, loop: str, ports: Sequence[int]) -> None:
    """Be one node until the process that dialled hangs up; prints the port that it listens on."""
    replicas = [dialled(port) for port in ports]
    with socket.create_server(("127.0.0.1", 0)) as listener, tempfile.TemporaryFile(dir=directory) as file:
        sys.stdout.write(f"{listener.getsockname()[1]}\n")
        sys.stdout.flush()
        caller, _ = listener.accept()
        caller.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        passer = Passer(file.fileno(), replicas)
        try:
            (serve_by_trio if loop == "trio" else serve_by_epoll)(passer, [caller, *replicas])
        except* ConnectionError:  # raised if an answer that no process waits for is on its way
            pass


def serve_by_epoll(passer: Passer, socks: Sequence[socket.socket]) -> None:
    """Read all until one ends."""
    with selectors.DefaultSelector() as selector:
        for sock in socks:
            selector.register(sock, selectors.EVENT_READ, sock)
        while True:
            for key, _ in selector.select():
                data = key.data.recv(65536)
                if not data:
                    return
                passer.take(key.data, data)


def serve_by_trio(passer: Passer, socks: Sequence[socket.socket]) -> None:
    """Read all until one ends, with a task of trio for each."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:

            async def read(sock: socket.socket) -> None:
                while True:
                    await trio.lowlevel.wait_readable(sock)
                    data = sock.recv(65536)
                    if not data:
                        nursery.cancel_scope.cancel()
                    passer.take(sock, data)

            for sock in socks:
                nursery.start_soon(read, sock)

    trio.run(main)


def frames_of(number: int) -> list[bytes]:
    """Return the client's frames for one message."""
    return [(leg + number.to_bytes(8, "big")).ljust(FRAME_BYTES, b".") for leg in LEGS]


def ask_by_epoll(sock: socket.socket, messages: int) -> list[float]:
    """Send one frame after the other; return the seconds that each message took."""
    seconds = []
    with selectors.DefaultSelector() as selector:
        selector.register(sock, selectors.EVENT_READ)
        for number in range(messages):
            began = time.perf_counter()
            for frame in frames_of(number):
                sock.sendall(frame)
                expected = frame
                while expected:
                    selector.select()
                    expected = expected.removeprefix(sock.recv(len(expected)))
            seconds.append(time.perf_counter() - began)
    return seconds


def ask_by_trio(sock: socket.socket, messages: int) -> list[float]:
    """Send one frame after the other on trio's stream; return the seconds that each message took."""

    async def main() -> list[float]:
        seconds = []
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(sock))
        for number in range(messages):
            began = time.perf_counter()
            for frame in frames_of(number):
                await stream.send_all(frame)
                expected = frame
                while expected:
                    expected = expected.removeprefix(await stream.receive_some(len(expected)))
            seconds.append(time.perf_counter() - began)
        return seconds

    return trio.run(main)


def measure(messages: int, loop: str, directory: Path) -> dict[str, Any]:
    """Return percentiles, in milliseconds, of messages sent one at a time; the nodes write to ``directory``."""
    with ExitStack() as stack:

        def begin(*ports: int) -> int:
            program = (sys.executable, "-m", "quorumq.lab.bench_floor")
            command = (*program, str(directory), loop, *map(str, ports))
            process = stack.enter_context(Leashed(command, stdout=subprocess.PIPE, text=True))
            stack.callback(process.terminate)
            assert process.stdout is not None
            return int(process.stdout.readline())

        sock = stack.enter_context(dialled(begin(begin(), begin())))
        ask = ask_by_trio if loop == "trio" else ask_by_epoll
        return percentiles(ask(sock, messages + WARM_UP)[WARM_UP:])


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2], [int(port) for port in sys.argv[3:]])
