"""Bounds of one HTTP request: its body, its time, and the client that may leave while it waits."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import unquote_to_bytes

import trio

from quorumq.core.values.errors import Busy, TooLarge
from quorumq.gateway.identity import Owner
from quorumq.gateway.shares import turn

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Scope, Send

BODY_BYTES_MAX: Final = 4 * 1024 * 1024
"""Bytes of a body: a batch of 1 MiB, escaped three times its size."""

BODIES_BYTES_MAX: Final = 256 * 1024 * 1024
"""Bytes of all bodies of a gateway under way together."""

OWNER_SHARE: Final = 8
"""Divisor of `BODIES_BYTES_MAX`: one owner may have that share of it."""

BODY_S: Final = 30.0
"""Seconds within which a body has to be complete."""

VALUES_MAX: Final = 50_000
"""Values of a body of JSON: 1,000 messages with 40 headers each have some 46,000."""

LONG_BYTES: Final = 4 * 1024
"""Bytes of a body that takes about a millisecond to check and to decode, without a turn: a form may be all names."""

_MARKS: Final = (b",", b"[", b"{")

FORM_CHUNK: Final = 16 * 1024
"""Characters of a form that are unescaped in one step, some two milliseconds: a form of 4 MiB may take 0.4 s."""

DRAIN_S: Final = 2.0
"""Seconds for which the end of an answer waits for the rest of a body that its request did not read."""

Receive = Callable[[], Awaitable[Any]]
T = TypeVar("T")


class Left(Exception):
    """The client hung up before its answer: nothing is to be sent."""


class Stopping(Exception):
    """The gateway stops: a request that waits for messages is to be answered without."""


def has_more_values(text: bytes | bytearray, most: int = VALUES_MAX) -> bool:
    """Return True if a JSON text has more than ``most`` values, before it is decoded.

    Why: a decoder makes an object of each, 1.4 million in 4 MiB. That is a step of a second, in which no other user is
    served, and a thread would hold Python's lock for all of it. Here functions in C alone look at each byte.
    """
    if sum(map(text.count, _MARKS)) <= most:
        return False
    plain = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    if plain.count(b'"') > 4 * most:
        return True  # a string is a value, or the name of one
    outside = b"".join(plain.split(b'"')[::2])
    return sum(map(outside.count, _MARKS)) > most


def form_fields(text: str, most: int, errors: str = "strict") -> Generator[None, None, list[tuple[str, str]]]:
    """Return names and values of a form, in steps of `FORM_CHUNK` characters.

    Args:
        most: fields that it may have.
        errors: treatment of escapes that are no UTF-8, as `bytes.decode` names it.

    Raises:
        ValueError: it has more fields, or is no UTF-8.
    """
    fields = text.split("&", most)
    if len(fields) > most:
        raise ValueError(f"it has more than {most} fields")
    pairs: list[tuple[str, str]] = []
    for name, _, value in (field.partition("=") for field in fields if field):
        pairs.append(((yield from _unescaped(name, errors)), (yield from _unescaped(value, errors))))
    return pairs


def _unescaped(text: str, errors: str) -> Generator[None, None, str]:
    text = text.replace("+", " ")
    parts: list[bytes] = []
    begin = 0
    while begin < len(text):
        end = begin + FORM_CHUNK
        if (escape := text.find("%", end - 2, end)) >= 0:
            end = escape
        parts.append(unquote_to_bytes(text[begin:end]))
        begin = end
        if begin < len(text):
            yield
    return b"".join(parts).decode(errors=errors)


def length_of(headers: Iterable[tuple[bytes, bytes]]) -> int:
    """Return the bytes of a body that the head of a request names; 0 if it names none."""
    return next((int(text) for name, text in headers if name.lower() == b"content-length"), 0)


def awaits_continue(scope: Mapping[str, Any]) -> bool:
    """Return True if a body is too long, and its client sends it only after ``100 Continue``."""
    headers = scope["headers"]
    return length_of(headers) > BODY_BYTES_MAX and any(name.lower() == b"expect" for name, _ in headers)


def owner_of(scope: Mapping[str, Any], name: str = "") -> Owner:
    address, _ = scope.get("client") or ("", 0)
    return address, name


class Bodies:
    """Bodies of the requests under way, within a bound for all of them and one for each owner.

    Attributes:
        bytes: bytes of all bodies.
        by_owner: bytes by owner; one without any is not there.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self.by_owner: dict[Owner, int] = {}

    @contextmanager
    def unread(self, owner: Owner, size: int) -> Iterator[None]:
        """Count a part of an answer until its client has taken it. New requests find less capacity meanwhile."""
        self._count(owner, size)
        try:
            yield
        finally:
            self._count(owner, -size)

    @asynccontextmanager
    async def read(
        self, receive: Receive, owner: Owner, most: int = BODY_BYTES_MAX, *, length: int = 0
    ) -> AsyncIterator[bytearray]:
        """Give the body of a request. It counts until the ``async with`` ends.

        Args:
            length: bytes that its head names. A body that is too long is refused before it is read.

        Raises:
            TooLarge: it has more than ``most`` bytes.
            Busy: there is no memory for it now, or the client sent it too slowly.
            Left: the client hung up.
        """
        body = bytearray()
        if length > most:
            raise TooLarge(f"a body of {length} bytes: {most} at most, send less at once")
        try:
            with trio.move_on_after(BODY_S) as scope:
                more = True
                while more:
                    await turn()
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Left
                    chunk = message.get("body", b"")
                    if len(body) + len(chunk) > most:
                        raise TooLarge(f"a body of more than {most} bytes: send less at once")
                    self._check_capacity(owner, len(chunk))
                    self._count(owner, len(chunk))
                    body += chunk
                    more = message.get("more_body", False)
            if scope.cancelled_caught:
                raise Busy(f"the body did not come within {BODY_S:g} s: send it again")
            yield body
        finally:
            self._count(owner, -len(body))

    def _check_capacity(self, owner: Owner, size: int) -> None:
        if self.bytes + size > BODIES_BYTES_MAX:
            raise Busy("the gateway has no room for more bodies now: try again", delay=1.0)
        if self.by_owner.get(owner, 0) + size > BODIES_BYTES_MAX // OWNER_SHARE:
            text = "the gateway has no room for more bodies of this client now: wait for some of its requests"
            raise Busy(text, delay=1.0)

    def _count(self, owner: Owner, size: int) -> None:
        self.bytes += size
        remaining = self.by_owner.pop(owner, 0) + size
        if remaining:
            self.by_owner[owner] = remaining


def draining(app: ASGIApp) -> ASGIApp:
    """Return an application that reads the rest of a request's body before its answer is complete.

    A client that waits for ``100 Continue`` before a body that is too long gets none, and sends none.

    Why: the server queues a few parts of a body. If they are never read, the part behind them waits for room in the
    queue, and the end of the answer waits behind that part: the connection is never closed. And a client that sends
    a body can read the refusal of it only if the connection is not reset meanwhile.
    """

    async def drained(scope: Scope, receive: Receive, send: Send) -> None:
        ended = scope["type"] != "http" or awaits_continue(scope)

        async def next_message() -> Any:
            nonlocal ended
            message = await receive()
            ended = message["type"] == "http.disconnect" or not message.get("more_body", False)
            return message

        async def drain(most: float) -> None:
            size = 0
            while not ended and size <= most:
                size += len((await next_message()).get("body", b""))

        async def put(message: Any) -> None:
            if ended or message["type"] != "http.response.body" or message.get("more_body", False):
                await send(message)
                return
            with trio.move_on_after(DRAIN_S):
                await drain(BODY_BYTES_MAX)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(drain, math.inf)  # until the server closes the connection
                await send(message)
                nursery.cancel_scope.cancel()

        await app(scope, next_message, put)

    return drained


async def while_there(
    receive: Receive,
    call: Callable[[], Awaitable[T]],
    *,
    stopping: trio.Event | None = None,
    undo: Callable[[T], Awaitable[None]] | None = None,
) -> T:
    """Return the result of ``call()``, which is cancelled if the client hangs up. The body must have been read.

    Args:
        call: the work; what it holds it gives back if it is cancelled.
        stopping: cancels it too.
        undo: called with the result if the client had hung up before.

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
    """Return True if a page in a browser made a POST: any page may, to a gateway on the browser's own machine."""
    return "origin" in headers or "sec-fetch-site" in headers
