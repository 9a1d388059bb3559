"""Under which names dead letters are read.

A group's dead letters are messages of the same topic that a group of another name reads, and a topic's
dead letters have a topic's name too. Both are names only: the records are the group's own.
"""

from __future__ import annotations

DEAD_SUFFIX = "!dead"
"""The dead letters of group ``g`` are read as group ``g!dead``."""

DEAD_LETTER_TOPIC = ".deadletters"
"""The dead letters of topic ``t`` have the name ``t.deadletters`` too."""


def source_of(group: str) -> str:
    """The group that keeps the records: of dead letters that where they died."""
    return group.removesuffix(DEAD_SUFFIX)


def dead_letter_names(topics: tuple[str, ...], group: str) -> tuple[tuple[str, ...], str]:
    """Topics and group as they are known: ``orders.deadletters`` of group g are g!dead's messages of ``orders``."""
    for name in topics:
        if not name.endswith(DEAD_LETTER_TOPIC):
            return topics, group
    if not topics:
        return topics, group
    group = group if group.endswith(DEAD_SUFFIX) else group + DEAD_SUFFIX
    return tuple(name.removesuffix(DEAD_LETTER_TOPIC) for name in topics), group
