"""Options of a message that is published."""

from __future__ import annotations

import inspect
import json as jsons
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from difflib import get_close_matches
from functools import wraps
from typing import Any, Final, ParamSpec, TypedDict, TypeVar, Unpack, cast

from quorumq.client.base.message import Source
from quorumq.client.base.times import Duration
from quorumq.core.values.errors import utf8
from quorumq.wire.batch import HeaderValue
from quorumq.wire.batch import Message as Parts

P = ParamSpec("P")
T = TypeVar("T")

CONTENT_TYPE = "content-type"
JSON_TYPE = "application/json"


class Options(TypedDict, total=False):
    """The keyword arguments of everything that publishes, with the meaning that `Producer.send` gives them."""

    json: Any
    key: bytes | str | None
    headers: Mapping[str, HeaderValue] | None
    partition: int | None
    derived_from: Source | None
    index: int
    delay: Duration | None
    not_before: datetime | None
    ttl: Duration | None
    timeout: float | None
    dedup: str | None
    window: Duration | None


MEANT: Final = {
    "body": "payload", "data": "payload", "message": "payload", "value": "payload", "MessageBody": "payload",
    "countdown": "delay", "delay_seconds": "delay", "DelaySeconds": "delay",
    "eta": "not_before", "at": "not_before", "deliver_at": "not_before",
    "MessageDeduplicationId": "dedup", "dedup_id": "dedup", "msg_id": "dedup", "message_id": "dedup",
    "expires": "ttl", "expiration": "ttl", "expire": "ttl",
    "routing_key": "key", "group_id": "key", "MessageGroupId": "key", "partition_key": "key",
    "ordering_key": "key", "properties": "headers", "attributes": "headers", "MessageAttributes": "headers",
    "auto_offset_reset": "start", "deliver_policy": "start",
    "visibility_timeout": "hold_time", "ack_wait": "hold_time", "lease": "hold_time",
    "prefetch_count": "max_unsettled", "workers": "concurrency", "threads": "concurrency",
    "max_retries": "max_deliveries", "num_partitions": "partitions", "replication_factor": "rf",
    "autoretry_for": "retry", "retries": "retry", "deadline": "timeout",
}  # fmt: skip
"""Options of other queues, with their counterparts here."""

PRIORITY: Final = "there are no priorities: use a topic for each, and a pool for each"

ELSEWHERE: Final = {
    "priority": PRIORITY,
    "max_retries": "the topic has max_deliveries=, which create_topic() takes",
}
"""Hints for options of other queues, if a call has no counterpart."""


def refuse(call: str, given: Mapping[str, object], known: Iterable[str]) -> None:
    """Refuse options that there are not, by a TypeError that names one, and an option that may have been meant."""
    names = list(known)
    for name in given:
        if name in names:
            continue
        near = [MEANT[name]] if MEANT.get(name) in names else get_close_matches(name, names, 1)
        hint = f"here it is {near[0]}=" if near else "there is nothing near"
        if MEANT.get(name) not in names:
            hint = ELSEWHERE.get(name, hint)
        raise TypeError(f"{call}() has no option {name!r}: {hint}. It has {', '.join(names)}")


def refusing(function: Callable[P, T]) -> Callable[P, T]:
    """Return the function, or the method. If an option is unknown to it, `refuse` says so when it is called."""
    code = cast("Any", function).__code__
    if code.co_flags & inspect.CO_VARKEYWORDS:
        return function
    known = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    taken = frozenset(known)

    def refuse_some(given: Mapping[str, object]) -> None:
        refuse(called.__qualname__, given, [name for name in known if name not in ("self", "cls")])

    async def awaited(*args: P.args, **more: P.kwargs) -> Any:
        if not more.keys() <= taken:
            refuse_some(more)
        return await function(*args, **more)  # type: ignore[misc]

    def plain(*args: P.args, **more: P.kwargs) -> T:
        if not more.keys() <= taken:
            refuse_some(more)
        return function(*args, **more)

    called = wraps(function)(
        cast("Callable[P, T]", awaited if inspect.iscoroutinefunction(function) else plain)
    )
    return called


class NewMessage:
    """A message for `Producer.publish_many` that has options of its own.

    Args:
        payload: the message; None if ``json`` is given.
        options: as `Producer.send` takes them. They go before those of the call.
    """

    __slots__ = ("options", "payload")

    def __init__(self, payload: bytes | None = None, **options: Unpack[Options]) -> None:
        refuse("NewMessage", options, ("payload", *Options.__annotations__))
        self.payload = payload
        self.options = options


Outgoing = bytes | NewMessage
"""Items that `Producer.publish_many` takes, in any number."""


def parts_of(
    payload: bytes | None, json: Any, key: bytes | str | None, headers: Mapping[str, HeaderValue] | None
) -> Parts:
    """Return the parts of a message that is published with these; ``json`` is Ellipsis if it is not given.

    Raises:
        TypeError: there is neither a payload nor JSON, or both; or ``json`` cannot be written as JSON.
        ValueError: ``json`` has a number that JSON does not have.
    """
    if isinstance(key, str):
        key = utf8(key, "key")
    if json is ...:
        if payload is None:
            raise TypeError("a message has a payload or json=, and neither was given")
        return Parts(payload, key, headers or {})
    if payload is not None:
        raise TypeError("a message has a payload or json=, and both were given")
    text = jsons.dumps(json, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Parts(utf8(text, "json"), key, {CONTENT_TYPE: JSON_TYPE, **(headers or {})})
