"""What groups are called, and where they begin to read.

The dead letters of group g are read as group "g!dead" of the same topic, or as topic "t.deadletters" of group g.
Nodes take either; the client works with the first form throughout, because registers, receipts and replica
sets are those of the topic itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal

from quorumq.core.errors import UsageError
from quorumq.core.partition.group import DEAD_LETTER_TOPIC, DEAD_SUFFIX, dead_letter_names

Start = Literal["earliest", "latest"] | datetime
"""Where a group begins: with the oldest message, with what is published from now on, or at a time of day."""


def names_of(topics: Sequence[str], group: str) -> tuple[tuple[str, ...], str]:
    """Topics and group as nodes know them: ("jobs.deadletters",), "g" are ("jobs",), "g!dead".

    Raises:
        UsageError: topics and their dead letters are mixed, or a name is no text.
    """
    for name in (*topics, group):
        if not isinstance(name, str):
            raise UsageError(f"{name!r} is no name of a topic or a group: names are text")
    found = [name for name in topics if name.endswith(DEAD_LETTER_TOPIC)]
    if found and len(found) < len(topics):
        raise UsageError(
            f"{', '.join(topics)}: topics and dead letters cannot be read together: make a consumer for each"
        )
    return dead_letter_names(tuple(topics), group)


def source_of(topic: str, group: str) -> tuple[str, str]:
    """The topic and the group that keep the records: those of a dead-letter queue are its source's."""
    (topic,), group = names_of((topic,), group)
    return topic, group.removesuffix(DEAD_SUFFIX)


def is_dead(group: str) -> bool:
    """Whether this is a group of dead letters."""
    return group.endswith(DEAD_SUFFIX)


def start_fields(start: Start) -> tuple[str, int]:
    """``start`` and ``from_ms`` of a SetGroup.

    Raises:
        UsageError: neither of the words, nor a datetime with a time zone.
    """
    if isinstance(start, datetime):
        if start.tzinfo is None:
            raise UsageError(f"{start} has no time zone: give a datetime with tzinfo, such as timezone.utc")
        return "time", max(0, round(start.timestamp() * 1000))
    if start not in ("earliest", "latest"):
        raise UsageError(f"{start!r} is no place to begin: give 'earliest', 'latest' or a datetime")
    return start, 0
