"""Carries connections of a cluster, and does to them the harm that networks do.

One listener for each directed pair of dialler and dialled. A pair that is blocked carries nothing in that
direction: bytes wait, as if packets were lost, and connections stay. The proxy has a thread of its own, so that a
handler that computes for long is no network fault.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import partial

import trio

CHUNK = 65_536
IN_FLIGHT = 64
"""Chunks that one direction of a connection may have under way."""

POLL_S = 0.01
"""Seconds between two looks of a blocked direction."""

Pair = tuple[str, str]


class Proxy:
    """A context manager: it listens inside of its ``with``.

    Args:
        listeners: dialler, dialled, and the port of the dialled one, keyed by the port to listen on.
    """

    def __init__(self, listeners: Mapping[int, tuple[str, str, int]]) -> None:
        self.listeners = listeners
        self.carried: Counter[Pair] = Counter()
        self._blocked: Counter[Pair] = Counter()
        self._delays: dict[Pair, float] = {}
        self._open: dict[Pair, dict[trio.CancelScope, None]] = {}
        self._lock = threading.Lock()
        self._ready = threading.Event()
        self._failed: BaseException | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        self._scope = trio.CancelScope()
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)

    def __enter__(self) -> Proxy:
        self._thread.start()
        self._ready.wait()
        if self._failed is not None:
            raise self._failed
        return self

    def __exit__(self, *exc_info: object) -> None:
        with contextlib.suppress(trio.RunFinishedError):
            if self._token is not None:
                self._token.run_sync_soon(self._scope.cancel)
        if self._thread.ident is not None:  # it was entered
            self._thread.join(10.0)

    # ------------------------------------------------------------------- faults, from any thread

    def block(self, pairs: Iterable[Pair]) -> None:
        """Block these pairs until `unblock`; counted, as faults may overlap."""
        with self._lock:
            self._blocked.update(pairs)

    def unblock(self, pairs: Iterable[Pair]) -> None:
        """Undo one `block`."""
        with self._lock:
            self._blocked.subtract(pairs)

    def delay(self, pairs: Iterable[Pair], seconds: float) -> None:
        """Delay the bytes of these pairs by ``seconds`` from now on; 0: no longer."""
        with self._lock:
            for pair in pairs:
                self._delays[pair] = seconds

    def cut(self, pairs: Iterable[Pair]) -> None:
        """Break connections that the first of a pair made to the second."""

        def break_them(pairs: list[Pair]) -> None:
            for pair in pairs:
                for scope in list(self._open.get(pair, ())):
                    scope.cancel()

        if self._token is not None:
            self._token.run_sync_soon(break_them, list(pairs))

    def heal(self) -> None:
        """Carry everything at once."""
        with self._lock:
            self._blocked.clear()
            self._delays.clear()

    # ------------------------------------------------------------------- its thread

    def _run(self) -> None:
        try:
            trio.run(self._serve)
        except BaseException as error:  # it has no other way to say it
            self._failed = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        with self._scope:
            async with trio.open_nursery() as nursery:
                for port, (source, target, at) in self.listeners.items():
                    (listener,) = await trio.open_tcp_listeners(port, host="127.0.0.1")
                    serve = partial(self._connection, pair=(source, target), port=at)
                    nursery.start_soon(trio.serve_listeners, serve, [listener])
                self._token = trio.lowlevel.current_trio_token()
                self._ready.set()

    async def _connection(self, here: trio.SocketStream, pair: Pair, port: int) -> None:
        """Carry one connection until an end closes it, or it is cut."""
        scopes = self._open.setdefault(pair, {})
        with trio.CancelScope() as scope:
            scopes[scope] = None
            try:
                await self._free(pair)
                with contextlib.suppress(OSError):
                    async with (
                        await trio.open_tcp_stream("127.0.0.1", port) as there,
                        trio.open_nursery() as nursery,
                    ):
                        nursery.start_soon(self._carry, here, there, pair, scope)
                        nursery.start_soon(self._carry, there, here, (pair[1], pair[0]), scope)
            finally:
                del scopes[scope]
                await trio.aclose_forcefully(here)

    async def _carry(
        self, source: trio.SocketStream, target: trio.SocketStream, pair: Pair, scope: trio.CancelScope
    ) -> None:
        """Carry one direction; the connection ends with it."""
        send, receive = trio.open_memory_channel[tuple[float, bytes]](IN_FLIGHT)

        async def deliver() -> None:
            with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                async with receive:
                    async for due, chunk in receive:
                        await trio.sleep_until(due)
                        await self._free(pair)
                        await target.send_all(chunk)
                        self.carried[pair] += len(chunk)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(deliver)
            with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                async with send:
                    while chunk := bytes(await source.receive_some(CHUNK)):
                        await send.send((trio.current_time() + self._delays.get(pair, 0.0), chunk))
        scope.cancel()

    async def _free(self, pair: Pair) -> None:
        """Wait until nothing blocks that direction."""
        while self._blocked[pair] > 0:
            await trio.sleep(POLL_S)
