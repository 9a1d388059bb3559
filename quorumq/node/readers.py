"""Consumers that read for each group through this node: messages delivered and settled in the last minute.

For people (`quorumq groups describe`), and for nothing else: it is in memory, it decides nothing, and a start begins
with nothing. Bounds: the number of consumers and flows is limited, and those that were silent longest go first. None
is kept for longer than a minute once something else has come.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from quorumq.core import messages as m
from quorumq.core.cluster.topics import matching
from quorumq.core.values.deadnames import dead_letter_names
from quorumq.core.values.types import PartitionId, Topic
from quorumq.wire.values import WireSlice

SPAN_S: Final = 60.0
"""Seconds after which a delivery or a settlement is no longer counted."""

SLOTS: Final = 12
"""Parts of that span that are counted apart; the oldest goes as a whole."""

TRACKED_MAX: Final = 4096
"""Most fetching consumers, and most pairs of a consumer and a partition, that this node counts."""

TOLD_MAX: Final = 64
"""Most consumers of one group in an answer: those that fetched last."""

NAME_CHARS_MAX: Final = 100
DONE: Final = frozenset({"acked", "acked_after_expiry", "acked_unproven", "ok"})


class Who(NamedTuple):
    """A consumer, as far as a node can tell: several of one name and version on one machine are one."""

    name: str
    version: str
    software: str
    address: str


@dataclass(slots=True, eq=False)
class Window:
    """Two counts of messages, over the last minute."""

    at: float = 0.0
    counts: dict[int, tuple[int, int]] = field(default_factory=dict)

    def add(self, now: float, delivered: int, settled: int) -> None:
        """Add counts at ``now``."""
        slot = int(now / SPAN_S * SLOTS)
        before = self.counts.get(slot, (0, 0))
        self.counts[slot] = (before[0] + delivered, before[1] + settled)
        if len(self.counts) > SLOTS:
            self.counts = {at: count for at, count in self.counts.items() if at > slot - SLOTS}

    def sums(self, now: float) -> tuple[int, int]:
        """Delivered and settled within the last minute."""
        first = int(now / SPAN_S * SLOTS) - SLOTS
        recent = [count for slot, count in self.counts.items() if slot > first]
        return sum(count[0] for count in recent), sum(count[1] for count in recent)


@dataclass(slots=True, eq=False)
class Readers:
    """Counts of a node's deliveries and settlements by consumer. Times are monotonic seconds."""

    _asking: OrderedDict[tuple[str, Who, tuple[str, ...], tuple[int, ...]], Window] = field(
        default_factory=OrderedDict
    )
    """Consumers by topics and partitions asked for. The one that is silent longest is the first; so below."""
    _flows: OrderedDict[tuple[PartitionId, str, Who | None], Window] = field(default_factory=OrderedDict)
    """None: of all consumers together."""

    def fetching(self, fetch: m.Fetch, software: str, address: str, now: float) -> None:
        """Note a FETCH that has come."""
        topics, group = dead_letter_names(fetch.topics, fetch.group)
        key = (group, who_asks(fetch, software, address), topics, fetch.partitions)
        touched(self._asking, key, now)

    def delivered(self, fetch: m.Fetch, reply: m.FetchReply, software: str, address: str, now: float) -> None:
        """Note the answer to a FETCH with messages."""
        who = who_asks(fetch, software, address)
        _, group = dead_letter_names(fetch.topics, fetch.group)
        parts: tuple[m.Slice | WireSlice, ...] = (
            reply.slices
        )  # those that another node won are as it sent them
        for part in parts:
            partition = part.header.partition
            count = part.header.size if isinstance(part, WireSlice) else part.stop - part.first
            touched(self._flows, (partition, group, None), now).add(now, count, 0)
            touched(self._flows, (partition, group, who), now).add(now, count, 0)

    def settled(self, request: m.AckRequest | m.RejectRequest, reply: m.SettleReply, now: float) -> None:
        """Note the answer to an ACK or REJECT."""
        for verdict in reply.verdicts:
            if verdict.outcome in DONE:
                receipt = request.items[verdict.item].receipt
                key = (receipt.partition, receipt.group, None)
                touched(self._flows, key, now).add(now, 0, verdict.span.size)

    def describe(self, reply: m.DescribeGroupReply, topic: Topic, now: float) -> m.DescribeGroupReply:
        """Return ``reply`` with the counts of this node."""
        flows: list[m.GroupFlow] = []
        counts: dict[Who, dict[int, int]] = {}  # delivered, by partition
        for (partition, group, who), window in self._flows.items():
            sums = window.sums(now)
            if (partition.topic, group) != (topic.id, reply.group) or not any(sums):
                continue
            if who is None:
                flows.append(m.GroupFlow(partition.number, *sums))
            else:
                counts.setdefault(who, {})[partition.number] = sums[0]
        consumers: dict[Who, dict[int, int]] = {}
        for (group, who, topics, partitions), window in reversed(self._asking.items()):
            named = any(matching(pattern, (topic.name,)) for pattern in topics)
            if group == reply.group and named and window.at > now - SPAN_S:
                asked = consumers.setdefault(who, dict(counts.get(who, {})))
                for number in partitions or range(topic.partitions):
                    asked.setdefault(number, 0)
        shown = tuple(
            m.GroupConsumer(*who, tuple(sorted(asked)), tuple(count for _, count in sorted(asked.items())))
            for who, asked in list(consumers.items())[:TOLD_MAX]
        )
        return reply._replace(
            flows=tuple(sorted(flows)), consumers=shown, left_out=max(0, len(consumers) - TOLD_MAX)
        )


def who_asks(fetch: m.Fetch, software: str, address: str) -> Who:
    """Return the consumer of a FETCH."""
    names = (fetch.consumer, fetch.version, software, address)
    return Who(*[name[:NAME_CHARS_MAX] for name in names])


def touched(table: OrderedDict[Any, Window], key: object, now: float) -> Window:
    """Return the entry of a key, which becomes the last one. Old entries, and those beyond the most, go."""
    window = table.get(key)
    if window is None:
        window = table[key] = Window()
        if len(table) > TRACKED_MAX:
            table.popitem(last=False)
    window.at = now
    table.move_to_end(key)
    while table[first := next(iter(table))].at <= now - SPAN_S:
        del table[first]
    return window
