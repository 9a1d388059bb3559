"""Bounds of one HTTP request: its body, its time, and the client that may leave while it waits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
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


async def while_there(receive: Receive, call: Callable[[], Awaitable[T]]) -> T:
    """Return the result of ``call()``, which is cancelled if the client hangs up. The body must have been read.

    Raises:
        Left: the client hung up before ``call`` returned.
        BaseException: raised by ``call``, as it is.
    """
    result: list[T] = []
    failure: list[Exception] = []

    async def work() -> None:
        try:
            result.append(await call())
        except Exception as error:  # raised below, and not in a group
            failure.append(error)
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(work)
        while (await receive())["type"] != "http.disconnect":
            pass
        nursery.cancel_scope.cancel()
    if failure:
        raise failure[0]
    if not result:
        raise Left
    return result[0]


def status_of(error: QuorumqError) -> int:
    """Return the HTTP status of an error: 503 if repeating the request can help, 403 for a right, else 400."""
    if isinstance(error, Transient):
        return 503
    return 403 if isinstance(error, Unauthorized) else 400 if isinstance(error, UsageError) else 500
