"""Names of messages: of an output, made from the name of its input, and of a message that its publisher names.

A worker that takes a message, publishes its output, and acks, may die between any two of these. The message
is then delivered again, and published again: were the second output numbered anew, it would be another message. So
an output is named after its input, by everyone in the same way, and the second publish is a retry of the first
(docs/protocol.md, section 3, PUBLISH, and promise G6): an output that is there already is not stored again.

The name is (partition, producer id, number). The number is the input's. The producer id is a hash of the input's
partition and producer id, the output's topic and index, and the group. The partition must be the same at every retry,
so nothing goes into it that may change: neither how many partitions the topic has today, nor a turn that a producer
keeps.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from datetime import datetime
from typing import Final, NamedTuple

from quorumq.client.base.message import MessageId, Source
from quorumq.client.base.times import Duration, number_of
from quorumq.client.produce.partitioner import Partitioner
from quorumq.core.values.errors import UsageError, utf8
from quorumq.core.values.limits import NAME_NUMBERS, NAME_SLOTS, NAME_WINDOW_MAX_S, NAME_WINDOW_MIN_S
from quorumq.core.values.names import slots_of, window_from
from quorumq.core.values.spanlists import merge_spans
from quorumq.core.values.types import DERIVED, NAMED, ProducerId, Span, Topic

DEDUP_BYTES_MAX: Final = 1024
"""Bytes of a publisher's own name for a message."""


def derived_producer_id(source: MessageId, group: str, output: bytes, index: int) -> ProducerId:
    """Return the producer id of what ``group`` derives from ``source``. Part of the API: it never changes.

    Args:
        group: that the input was delivered to: two groups that read one topic derive apart from each other.
        index: number of this output among several of one input; 0 or more.
    """
    (topic, number), (node, n, nonce, k), _ = source
    parts = ("quorumq derived", topic.hex(), number, node, n, nonce, k, output.hex(), index, group)
    digest = hashlib.blake2b("\0".join(map(str, parts)).encode(), digest_size=16).digest()
    n, k, nonce = (int.from_bytes(digest[at:end], "big") for at, end in ((0, 4), (4, 8), (8, 16)))
    return ProducerId(DERIVED, n, nonce, k)


def derived_partition(source: MessageId, key: bytes | None, topic: Topic, partitioner: Partitioner) -> int:
    """Return the partition of an output, among those that its topic was created with.

    By its key; without one, the outputs of one input partition stay together. If the topic has as many partitions
    as the input's, numbers are then as dense as the inputs', and nodes keep runs of them (docs/protocol.md, section 1,
    "span").
    """
    born = topic.born or 1  # created before registers said so: the only count that it certainly had
    return partitioner(key, born) if key is not None else source.partition.number % born


def runs_of(names: Iterable[tuple[ProducerId, int]]) -> tuple[Span, ...]:
    """Return names as the sections of a batch: one for each run of numbers."""
    return merge_spans(Span(producer_id, seq, seq + 1) for producer_id, seq in names)


class Name(NamedTuple):
    """A publisher's own name for a message, as the parts of the id that it determines."""

    where: int  # decides the partition
    slot: int
    seq: int

    @classmethod
    def of(cls, text: str) -> Name:
        """Return the parts of a name, which never change: part of the API. UsageError if it is none, or too long."""
        if not isinstance(text, str) or not 0 < len(utf8(text, "dedup")) <= DEDUP_BYTES_MAX:
            raise UsageError(f"dedup is {text!r:.80}: it must be text of 1 to {DEDUP_BYTES_MAX} bytes")
        digest = hashlib.blake2b(b"quorumq named\0" + text.encode(), digest_size=16).digest()
        where, slot, seq = (int.from_bytes(digest[at:end], "big") for at, end in ((0, 4), (4, 8), (8, 16)))
        return cls(where, slot % NAME_SLOTS, seq % NAME_NUMBERS)

    def slot_of(self, window_s: int) -> int:
        """Return the slot in windows of this length."""
        return self.slot % slots_of(window_s)

    def partition(self, topic: Topic) -> int:
        """Return the partition, among those that the topic was created with: the key has no part in it."""
        return self.where % (topic.born or 1)

    def kept_for_good(self) -> ProducerId:
        """Return the producer id of a name that is kept as long as its topic."""
        return ProducerId(NAMED, 0, self.slot, 0)


class EncodedMessage(NamedTuple):
    """An encoded message, with its partition and times."""

    record: bytes
    key: bytes | None
    partition: int | None
    derived_from: Source | None
    output: int
    times: tuple[Duration | None, datetime | None, Duration | None] | None  # delay, not_before, ttl
    timeout: float | None
    name: Name | None  # that its publisher gives it
    window: int  # seconds for which it is kept; 0: as long as the topic
    numbered: bool  # by a session: it is neither derived nor named

    def partition_in(self, topic: Topic, partitioner: Partitioner) -> int:
        """Return the partition of a derived or named message: the same at every retry."""
        if self.name is not None:
            return self.name.partition(topic)
        assert self.derived_from is not None
        if self.partition is not None:
            return self.partition
        return derived_partition(self.derived_from.id, self.key, topic, partitioner)

    def name_in(self, topic: bytes, producer_id: ProducerId | None) -> tuple[ProducerId, int]:
        """Return producer id and number of a derived or named message.

        Args:
            topic: id of the topic that it is published to.
            producer_id: that of its window there, if it has one.
        """
        if self.name is not None:
            return producer_id or self.name.kept_for_good(), self.name.seq
        assert self.derived_from is not None
        source = self.derived_from.id
        return derived_producer_id(source, self.derived_from.group, topic, self.output), source.seq


def window_of(seconds: Duration | None) -> int:
    """Return for how many seconds a name is kept: the shortest of `NAME_WINDOWS` that is long enough; 0 for the topic's
    life.

    Raises:
        UsageError: out of bounds.
    """
    if seconds is None:
        return 0
    window = number_of("window", seconds)
    if not NAME_WINDOW_MIN_S <= window <= NAME_WINDOW_MAX_S:
        raise UsageError(
            f"window is {window:g} s: it must be from {NAME_WINDOW_MIN_S} to {NAME_WINDOW_MAX_S} s, or None for the "
            "topic's life"
        )
    return window_from(window)
