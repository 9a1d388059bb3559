"""Bounds of one HTTP request: its body, its time, and the client that may leave while it waits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar

import trio

from quorumq.core.values.errors import Busy, QuorumqError, TooLarge, Transient, Unauthorized, UsageError

BODY_BYTES_MAX: Final = 4 * 1024 * 1024
"""Bytes of a body: a batch of 1 MiB, escaped three times its size."""

BODIES_BYTES_MAX: Final = 256 * 1024 * 1024
"""Bytes of all bodies of a gateway under way together."""

BODY_S: Final = 30.0
"""Seconds within which a body has to come."""

Receive = Callable[[], Awaitable[Any]]
T = TypeVar("T")


class Left(Exception):
    """The client hung up before its answer: nothing is to be sent."""


class Stopping(Exception):
    """The gateway stops: a request that waits for messages is to be answered without."""


class Bodies:
    """Reads bodies, within a bound for all of them together."""

    def __init__(self) -> None:
        self.bytes = 0

    async def read(self, receive: Receive, most: int = BODY_BYTES_MAX) -> bytes:
        """Read the body of a request.

        Raises:
            TooLarge: it has more than ``most`` bytes.
            Busy: there is no room for it now, or it came too slowly.
            Left: the client hung up.
        """
        chunks: list[bytes] = []
        size = 0
        try:
            with trio.move_on_after(BODY_S) as scope:
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Left
                    chunk = message.get("body", b"")
                    size += len(chunk)
                    self.bytes += len(chunk)
                    if size > most:
                        raise TooLarge(f"a body of more than {most} bytes: send less at once")
                    if self.bytes > BODIES_BYTES_MAX:
                        raise Busy("the gateway has no room for more bodies now: try again", delay=1.0)
                    chunks.append(chunk)
                    if not message.get("more_body", False):
                        break
            if scope.cancelled_caught:
                raise Busy(f"the body did not come within {BODY_S:g} s: send it again")
        finally:
            self.bytes -= size
        return b"".join(chunks)


async def while_there(
    receive: Receive,
    call: Callable[[], Awaitable[T]],
    *,
    stopping: trio.Event | None = None,
    undo: Callable[[T], Awaitable[None]] | None = None,
) -> T:
    """Return the result of ``call()``, which is cancelled if the client hangs up. The body must have been read.

    Args:
        receive: next message of ASGI.
        call: the work; what it holds it gives back if it is cancelled.
        stopping: cancels it too.
        undo: called with a result that came when the client had left already.

    Raises:
        Left: the client hung up before ``call`` returned.
        Stopping: the gateway stops.
        Exception: raised by ``call``, as it is.
    """
    results: list[T] = []
    failures: list[Exception] = []

    async def work() -> None:
        try:
            results.append(await call())
        except Exception as error:  # raised below, and not in a group
            failures.append(error)
        nursery.cancel_scope.cancel()

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        failures.append(Left())
        nursery.cancel_scope.cancel()

    async def watch_stop(stop: trio.Event) -> None:
        await stop.wait()
        failures.append(Stopping())
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(work)
        nursery.start_soon(watch)
        if stopping is not None:
            nursery.start_soon(watch_stop, stopping)
    if results and not any(isinstance(failure, Left) for failure in failures):
        return results[0]
    if results and undo is not None:
        await undo(results[0])
    raise failures[0]


def is_from_page(headers: Mapping[str, str]) -> bool:
    """Return True if a page in a browser made a POST: any page may, to a gateway on the browser's own machine.

    Args:
        headers: headers of the request, with names in lower case.
    """
    return "origin" in headers or "sec-fetch-site" in headers


def status_of(error: QuorumqError) -> int:
    """Return the HTTP status of an error: 503 if repeating the request can help, 403 for a right, else 400."""
    if isinstance(error, Transient):
        return 503
    return 403 if isinstance(error, Unauthorized) else 400 if isinstance(error, UsageError) else 500
