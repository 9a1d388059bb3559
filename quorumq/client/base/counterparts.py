"""Blocking counterparts: objects whose calls run in a trio run elsewhere, while their caller waits.

The client for threads is made of them (client/blocking.py), and a plain handler of a pool on trio or asyncio gets its
message as one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial, update_wrapper
from operator import attrgetter
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, cast

import trio

from quorumq.client.base import message as delivered
from quorumq.client.base.hints import hinted
from quorumq.client.base.message import MessageId, Outcome
from quorumq.client.transport.nodes import CLOSED, Closed
from quorumq.core.values.types import Death, Stamp
from quorumq.wire.batch import HeaderValue
from quorumq.wire.values import SignedNamed

P = ParamSpec("P")
T = TypeVar("T")
Inner = TypeVar("Inner")


class Caller(Protocol):
    """Runs calls in a trio run, while the thread that asks for them waits."""

    def call(self, function: Callable[..., Awaitable[T]], *args: Any, **more: Any) -> T:
        """Return the result of ``function``, called there."""
        ...


def blocking(method: Callable[Concatenate[Any, P], Awaitable[T]]) -> Callable[Concatenate[Any, P], T]:
    """Return a method of an async class as one of its counterpart here."""

    def called(self: Any, /, *args: P.args, **more: P.kwargs) -> T:
        return cast("T", self.portal.call(method, self.inner, *args, **more))

    return update_wrapper(called, method)


@hinted
class Counterpart(Generic[Inner]):
    """Blocking counterpart of ``inner``, an object of `quorumq.client` whose calls run in ``portal``."""

    __slots__ = ("inner", "portal")

    def __init__(self, portal: Caller, inner: Inner) -> None:
        self.portal = portal
        self.inner = inner


def same(name: str, doc: str = "") -> Any:
    """Return an attribute of the async message as a property; ``doc`` if that has no docstring of its own."""
    doc = doc or getattr(delivered.Message, name).__doc__
    return property(attrgetter(f"inner.{name}"), doc=doc)


class Message(Counterpart[delivered.Message]):
    """One delivered message: as `quorumq.client.Message`, settled without await."""

    __slots__ = ()

    payload: bytes = same("payload", "The bytes that were published.")
    key: bytes | None = same("key", "The key it was published with, or None.")
    headers: Mapping[str, HeaderValue] = same("headers", "Its headers; do not change them.")
    id: MessageId = same("id")
    topic: str = same("topic")
    group: str = same("group")
    partition: int = same("partition")
    attempt: int = same("attempt")
    interruptions: int = same("interruptions")
    suspect: bool = same("suspect")
    fencing_token: Stamp = same("fencing_token")
    published_ms: int = same("published_ms")
    death: Death | None = same("death")
    receipt: SignedNamed = same("receipt")
    is_live: bool = same("is_live")
    deadline: float = same("deadline", "End of its certain hold, by the client's clock.")
    outcome: Outcome | None = same("outcome", "What became of it, once settled.")
    failure: Exception | None = same("failure", "Why the last attempt to settle it failed; None otherwise.")

    def json(self) -> Any:
        """Return the payload, read as JSON. As `quorumq.client.Message.json`."""
        return self.inner.json()

    def __repr__(self) -> str:
        return repr(self.inner)

    ack = blocking(delivered.Message.ack)
    reject = blocking(delivered.Message.reject)
    dead_letter = blocking(delivered.Message.dead_letter)
    extend = blocking(delivered.Message.extend)


class PoolRun:
    """Stands for a portal in a thread of a pool on trio or asyncio: calls run in the pool's own trio run."""

    def __init__(self) -> None:
        self._token = trio.lowlevel.current_trio_token()

    def call(self, function: Callable[..., Awaitable[T]], *args: object, **more: object) -> T:
        try:
            return trio.from_thread.run(partial(function, *args, **more), trio_token=self._token)
        except trio.RunFinishedError:
            raise Closed(CLOSED) from None


def for_thread(message: delivered.Message) -> Message:
    """Return a message as a plain handler gets it: it is settled without await. Call it in the pool's trio run."""
    return Message(PoolRun(), message)
