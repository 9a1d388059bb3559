"""Names under which dead letters are read.

A group's dead letters are messages of the same topic that a group of another name reads, and a topic's
dead letters have a topic's name too. Both are names only: the records are the group's own.
"""

from __future__ import annotations

DEAD_SUFFIX = "!dead"
"""Suffix of the group of dead letters: those of group ``g`` are read as group ``g!dead``."""

DEAD_LETTER_TOPIC = ".deadletters"
"""Suffix of the topic of dead letters: those of topic ``t`` have the name ``t.deadletters`` too."""


def source_of(group: str) -> str:
    """Return the group that keeps the records: for dead letters, the group in which they died."""
    return group.removesuffix(DEAD_SUFFIX)


def dead_letter_names(topics: tuple[str, ...], group: str) -> tuple[tuple[str, ...], str]:
    """Return topics and group as known: ``orders.deadletters`` of group g are g!dead's messages of ``orders``."""
    for name in topics:
        if not name.endswith(DEAD_LETTER_TOPIC):
            return topics, group
    if not topics:
        return topics, group
    group = group if group.endswith(DEAD_SUFFIX) else group + DEAD_SUFFIX
    return tuple(name.removesuffix(DEAD_LETTER_TOPIC) for name in topics), group
