# quorumq/wire/versions.py: what messages look like in versions of the protocol that are older than the newest.
#
# Fields are only ever appended, so an older version is told by counts: how many fields a class had. A side that speaks
# it writes and reads no more than these. That alone would be wrong in a few places, where a field of today says what
# the others mean: those are turned from and into what the older version means by them.
#
# A version is frozen by the release that first speaks it; tests/wire/test_versions.py has version 1 written down.
"""Older versions of messages and values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from quorumq.core import messages as m
from quorumq.core.limits import TOPIC_BACKOFF_S
from quorumq.core.topics import SETTINGS
from quorumq.core.types import STAMP_ZERO, Topic

FIELDS: Final[Mapping[int, Mapping[str, int]]] = {
    1: {
        "Topic": 9, "Granted": 4, "NotDue": 4, "Acked": 2, "Counted": 3, "Delivery": 3,
        "Store": 3, "Tombed": 5, "PutGroup": 2, "PeekRequest": 6, "PeekReply": 4, "SyncOffer": 6, "SyncState": 5,
        "SyncPull": 2, "CreateTopic": 6, "Publish": 1, "Fetch": 11, "PeekAsk": 7, "PeekPage": 4,
        "Heartbeat": 3, "Welcome": 10,
    },
}  # fmt: skip
"""Version -> class -> how many fields it has there; all that it has now, where it is not named."""

_STAMPED_IN_1: Final = 2
"""Settings of a topic that version 1 has: the first of SETTINGS."""


def _topic_of_1(topic: Topic) -> Topic:
    """Version 1 has one stamp for the settings that it knows; of the others it says nothing."""
    unsaid = (STAMP_ZERO,) * (len(SETTINGS) - _STAMPED_IN_1)
    if topic.stamp == STAMP_ZERO:
        return topic
    return topic._replace(stamps=(topic.stamp,) * _STAMPED_IN_1 + unsaid)


def _create_of_1(request: m.CreateTopic) -> m.CreateTopic:
    """Of a topic that is there, version 1 compares nothing but the RF."""
    return request._replace(unnamed=("partitions", *SETTINGS))


def _reject_for_1(request: Any) -> Any:
    """Version 1 has no backoff lists: what is left to the list is not delayed."""
    return request._replace(delay=0.0) if request.delay == TOPIC_BACKOFF_S else request


AFTER_READING: Final[Mapping[int, Mapping[type, Callable[[Any], Any]]]] = {
    1: {Topic: _topic_of_1, m.CreateTopic: _create_of_1},
}
"""Version -> class -> what makes today's value of what was read."""

BEFORE_WRITING: Final[Mapping[int, Mapping[type, Callable[[Any], Any]]]] = {
    1: {m.Reject: _reject_for_1, m.RejectRequest: _reject_for_1},
}
"""Version -> class -> what makes a value that the version can carry of today's."""

HARMLESS: Final = frozenset({
    ("Publish", "age_ms"), ("CreateTopic", "unnamed"),
})  # fmt: skip
"""Fields of requests that may be left out for an older version: without them it does what it always did."""


def lost(message: Any, version: int) -> str:
    """What of a client's request a version cannot carry though it matters, by name; "" if it can carry all of it."""
    kind = type(message)
    count = FIELDS.get(version, {}).get(kind.__name__)
    fields: tuple[str, ...] = message._fields
    for field, value in zip(fields[count:], message[count:], strict=True) if count is not None else ():
        if value != kind._field_defaults[field] and (kind.__name__, field) not in HARMLESS:
            return f"{kind.__name__}.{field}"
    if version < 2 and isinstance(message, m.Publish):
        header = message.batch.header
        if header.delay_ms or header.ttl_ms:
            return "a batch's delay_ms" if header.delay_ms else "a batch's ttl_ms"
    return ""
