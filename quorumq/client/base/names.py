"""Names of topics and groups, and of messages, as requests have them.

The dead letters of group g are read as group "g!dead" of the same topic, or as topic "t.deadletters" of group g.
Nodes take either; the client works with the first form throughout, because registers, receipts and replica
sets are those of the topic itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from quorumq.client.base.message import MessageId, check_topic, ids_of
from quorumq.core.values.deadnames import DEAD_LETTER_TOPIC, DEAD_SUFFIX, dead_letter_names
from quorumq.core.values.errors import UsageError
from quorumq.core.values.limits import FETCH_NAMED_MAX
from quorumq.core.values.spanlists import merge_spans
from quorumq.core.values.types import Span, Topic


def names_of(topics: Sequence[str], group: str) -> tuple[tuple[str, ...], str]:
    """Return topics and group as nodes know them: ("jobs.deadletters",), "g" are ("jobs",), "g!dead".

    Raises:
        UsageError: topics and their dead letters are mixed, or a name is no text.
    """
    check_texts((*(topics if isinstance(topics, Iterable) else (topics,)), group))
    dead_topics = [name for name in topics if name.endswith(DEAD_LETTER_TOPIC)]
    if dead_topics and len(dead_topics) < len(topics):
        raise UsageError(
            f"{', '.join(topics)}: topics and dead letters cannot be read together: make a consumer for each"
        )
    return dead_letter_names(tuple(topics), group)


def check_texts(names: Iterable[object]) -> None:
    """Check that names are text.

    Raises:
        UsageError: one is not.
    """
    for name in names:
        if not isinstance(name, str):
            raise UsageError(f"{name!r} is no name of a topic or a group: names are text")


def source_of(topic: str, group: str) -> tuple[str, str]:
    """Return the topic and the group that keep the records: those of a dead-letter queue are its source's."""
    (topic,), group = names_of((topic,), group)
    return topic, group.removesuffix(DEAD_SUFFIX)


def is_dead(group: str) -> bool:
    """Return True if this is a group of dead letters."""
    return group.endswith(DEAD_SUFFIX)


def spans_of(
    register: Topic, ids: Iterable[MessageId | str] | MessageId | str
) -> list[tuple[int, tuple[Span, ...]]]:
    """Return messages as spans, by partition, as many at once as a request may name; UsageError for another topic."""
    by_partition: dict[int, list[Span]] = {}
    for name in sorted(ids_of(ids)):
        check_topic(name, register)
        by_partition.setdefault(name.partition.number, []).append(
            Span(name.producer_id, name.seq, name.seq + 1)
        )
    return [
        (number, merge_spans(spans[at : at + FETCH_NAMED_MAX]))
        for number, spans in sorted(by_partition.items())
        for at in range(0, len(spans), FETCH_NAMED_MAX)
    ]
