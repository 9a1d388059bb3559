"""Consumers that read for each group through this node: messages delivered and settled in the last minute.

For people (`quorumq groups describe`), and for nothing else: it is in memory, it decides nothing, and a start begins
with nothing. Bounds: if there are too many consumers or flows, those that were silent longest are dropped first. When
another one is added, those that were silent for a minute are dropped.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from quorumq.core import messages as m
from quorumq.core.values.deadnames import dead_letter_names
from quorumq.core.values.patterns import is_pattern, matching
from quorumq.core.values.types import PartitionId, Topic
from quorumq.wire.values import WireSlice

SPAN_S: Final = 60.0
"""Seconds after which a delivery or a settlement is no longer counted."""

SLOTS: Final = 12
"""Parts of that span that are counted apart. When one is over, the oldest is dropped as a whole."""

TRACKED_MAX: Final = 4096
"""Most fetching consumers, and most pairs of a consumer and a partition, that this node counts."""

TOLD_MAX: Final = 64
"""Most consumers of one group in an answer. If there are more, it has those that fetched last."""

TOLD_OF_MANY: Final = 8
"""The same if the answer is about several groups."""

PATTERNS_MAX: Final = 64
"""Most lists of topics with a pattern that one answer compares with topics. If there are more, the last ones count."""

NAME_CHARS_MAX: Final = 100
DONE: Final = frozenset({"acked", "acked_after_expiry", "acked_unproven", "ok"})


class Who(NamedTuple):
    """A consumer as a node knows it: if several have one name and version on one machine, they are one."""

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
        slot = int(now / SPAN_S * SLOTS)
        before = self.counts.get(slot, (0, 0))
        self.counts[slot] = (before[0] + delivered, before[1] + settled)
        if len(self.counts) > SLOTS:
            self.counts = {at: count for at, count in self.counts.items() if at > slot - SLOTS}

    def sums(self, now: float) -> tuple[int, int]:
        """Return the messages delivered and settled within the last minute."""
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

    def describe(
        self,
        replies: Sequence[m.DescribedGroup],
        topics: Mapping[bytes, Topic],
        now: float,
    ) -> tuple[m.DescribedGroup, ...]:
        """Return ``replies`` with the counts of this node, and some consumers of each."""
        most = TOLD_MAX if len(replies) == 1 else TOLD_OF_MANY
        flows: dict[tuple[bytes, str], list[m.GroupFlow]] = {}
        counts: dict[
            tuple[bytes, str], dict[Who, dict[int, int]]
        ] = {}  # delivered, by consumer and partition
        described = {(reply.topic, reply.group) for reply in replies}
        for (partition, group, who), window in self._flows.items():
            group_key = (partition.topic, group)
            if group_key not in described or not any(sums := window.sums(now)):
                continue
            if who is None:
                flows.setdefault(group_key, []).append(m.GroupFlow(partition.number, *sums))
            else:
                counts.setdefault(group_key, {}).setdefault(who, {})[partition.number] = sums[0]
        asking = self._asking_for({group_key: topics[group_key[0]] for group_key in described}, now)
        described_replies = []
        for reply in replies:
            group_key = (reply.topic, reply.group)
            consumers: dict[Who, dict[int, int]] = {}
            for who, partitions in asking.get(group_key, ()):
                asked = consumers.setdefault(who, dict(counts.get(group_key, {}).get(who, {})))
                for number in partitions or range(topics[reply.topic].partitions):
                    asked.setdefault(number, 0)
            shown = tuple(
                m.GroupConsumer(
                    *who, tuple(sorted(asked)), tuple(count for _, count in sorted(asked.items()))
                )
                for who, asked in list(consumers.items())[:most]
            )
            left_out = max(0, len(consumers) - most)
            few = reply._replace(
                flows=tuple(sorted(flows.get(group_key, ()))), consumers=shown, left_out=left_out
            )
            described_replies.append(few)
        return tuple(described_replies)

    def _asking_for(
        self, groups: Mapping[tuple[bytes, str], Topic], now: float
    ) -> dict[tuple[bytes, str], list[tuple[Who, tuple[int, ...]]]]:
        """Return consumers that asked for each topic and group within the minute, the last one first."""
        by_group: dict[str, dict[str, tuple[bytes, str]]] = {}
        for group_key, topic in groups.items():
            by_group.setdefault(group_key[1], {})[topic.name] = group_key
        asking: dict[tuple[bytes, str], list[tuple[Who, tuple[int, ...]]]] = {}
        matched: dict[tuple[str, tuple[str, ...]], list[str]] = {}
        patterns = 0
        for (group, who, names, partitions), window in reversed(self._asking.items()):
            here = by_group.get(group)
            if here is None or window.at <= now - SPAN_S:
                continue
            key = (group, names)
            if key not in matched:
                if not any(map(is_pattern, names)):
                    matched[key] = [name for name in dict.fromkeys(names) if name in here]
                elif patterns < PATTERNS_MAX:
                    patterns += 1
                    matched[key] = [name for name in here if any(matching(one, (name,)) for one in names)]
            for name in matched.get(key, ()):
                asking.setdefault(here[name], []).append((who, partitions))
        return asking


def who_asks(fetch: m.Fetch, software: str, address: str) -> Who:
    """Return the consumer of a FETCH."""
    names = (fetch.consumer, fetch.version, software, address)
    return Who(*[name[:NAME_CHARS_MAX] for name in names])


def touched(table: OrderedDict[Any, Window], key: object, now: float) -> Window:
    """Return the entry of a key, which becomes the last one. Drop old entries, and the first if there are too many."""
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
