"""Anti-entropy of one partition: what replicas compare, what they tell each other, and which payload they pull.

Nothing is merged here: the replica merges what it is told, as it merges what any other message says.
"""

from __future__ import annotations

import functools
from itertools import zip_longest

from quorumq.core import limits
from quorumq.core import messages as m
from quorumq.core.effects import Effect, Send, SendStored
from quorumq.core.partition.batches import Batches
from quorumq.core.partition.duty import Duty
from quorumq.core.partition.fate import Lease
from quorumq.core.partition.group import GroupView
from quorumq.core.partition.hashing import mix, salt_of
from quorumq.core.partition.views import Views
from quorumq.core.pieces import pieces_of
from quorumq.core.spans import merge_spans, subtract
from quorumq.core.types import NodeId, Now, Origin, Record, Span

SYNC_BUCKETS = 64

SYNC_DIGESTS_MAX = 4000
"""Digests in one piece of a full offer."""

PULL_BATCHES_MAX = 64
PULL_BYTES_MAX = 4 * limits.MIB

CLOSED_SALT = 0x9E3779B97F4A7C15
"""Sets the digest of closed origins apart from that of present ones."""


class Sync(Duty):
    """Anti-entropy of one partition.

    Attributes:
        pulling_until: a pull is under way until then (monotonic seconds).
    """

    __slots__ = ("pulling_until",)

    def __init__(self, batches: Batches, views: Views) -> None:
        super().__init__(batches, views)
        self.pulling_until = 0.0

    # ---------------------------------------------------------------- digests

    def offer(self, epoch: int) -> m.SyncOffer:
        """Step 1: a digest of all that we have, by bucket."""
        buckets = [0] * SYNC_BUCKETS
        for origin in self.batches.known_origins():
            buckets[bucket_of(origin)] ^= mix(self.batches.digest(origin).digest)
        closed = self.batches.closed.numbers
        for family in closed.origins():
            buckets[bucket_of(family)] ^= mix(closed.digest(family) ^ CLOSED_SALT)
        for view in self.views.groups.values():
            salt = salt_of(view.name)
            for origin in view.lasting_origins():
                buckets[bucket_of(origin)] ^= mix(view_digest(view, origin).digest ^ salt)
        return m.SyncOffer(self.batches.partition, epoch, tuple(buckets))

    def _closed_digests(self) -> list[m.Digest]:
        numbers = self.batches.closed.numbers
        return [
            m.Digest(family, numbers.messages_of(family), numbers.digest(family))
            for family in numbers.origins()
        ]

    def answer(self, offer: m.SyncOffer, now: Now) -> list[m.SyncOffer] | list[m.SyncState]:
        """Step 2: where we differ, offer ours in full; to a full offer, tell what differs of ours."""
        if offer.buckets:
            return self.states(offer, now)
        ours = self.offer(offer.epoch).digests
        if len(offer.digests) != len(ours):
            return []
        differing = [at for at in range(SYNC_BUCKETS) if ours[at] != offer.digests[at]]
        return self._full_offers(differing, offer.epoch) if differing else []

    def _full_offers(self, buckets: list[int], epoch: int) -> list[m.SyncOffer]:
        """By origin, for these buckets, in pieces that fit a frame."""
        present: dict[int, list[m.Digest]] = {bucket: [] for bucket in buckets}
        for origin in self.batches.known_origins():
            if bucket_of(origin) in present:
                present[bucket_of(origin)].append(self.batches.digest(origin))
        views: list[tuple[GroupView, dict[int, list[m.Digest]]]] = []
        for view in self.views.sorted():
            found: dict[int, list[m.Digest]] = {bucket: [] for bucket in buckets}
            for origin in view.lasting_origins():
                if bucket_of(origin) in found:
                    found[bucket_of(origin)].append(view_digest(view, origin))
            views.append((view, found))
        pieces: list[list[int]] = [[]]
        size = 0
        for bucket in buckets:
            size += len(present[bucket]) + sum(len(found[bucket]) for _, found in views)
            if size > SYNC_DIGESTS_MAX and pieces[-1]:
                pieces.append([])
                size = 0
            pieces[-1].append(bucket)
        closed = self._closed_digests()
        return [
            m.SyncOffer(
                partition=self.batches.partition,
                epoch=epoch,
                digests=(),
                buckets=tuple(piece),
                origins=tuple(digest for bucket in piece for digest in present[bucket]),
                groups=tuple(
                    m.GroupDigest(
                        view.name,
                        view.generation,
                        tuple(digest for bucket in piece for digest in found[bucket]),
                    )
                    for view, found in views
                ),
                closed=tuple(digest for digest in closed if bucket_of(digest.origin) in piece),
            )
            for piece in pieces
        ]

    # ----------------------------------------------------------------- states

    def states(self, offer: m.SyncOffer, now: Now) -> list[m.SyncState]:
        """What we have in the buckets of a full offer and differs from it, in pieces that fit a frame."""
        covered = dict.fromkeys(offer.buckets)
        theirs = {digest.origin: digest for digest in offer.origins}
        spans: list[Span] = []
        gone: list[Span] = []
        for origin in self.batches.known_origins():
            if bucket_of(origin) in covered and theirs.get(origin) != self.batches.digest(origin):
                spans += self.batches.present.spans_of(origin)
                gone += self.batches.reclaimed.spans_of(origin)
        shut = {digest.origin: digest for digest in offer.closed}
        over = [
            span
            for ours in self._closed_digests()
            if bucket_of(ours.origin) in covered and shut.get(ours.origin) != ours
            for span in self.batches.closed.numbers.spans_of(ours.origin)
        ]
        offered = {group.group: group for group in offer.groups}
        groups: list[m.GroupState] = []
        for view in self.views.sorted():
            other = offered.get(view.name)
            heard = {digest.origin: digest for digest in other.origins} if other is not None else {}
            origins = [
                origin
                for origin in view.lasting_origins()
                if bucket_of(origin) in covered and heard.get(origin) != view_digest(view, origin)
            ]
            if origins:
                groups += group_states(view, origins, now)
        empty = m.SyncState(self.batches.partition, offer.epoch, (), ())
        limit = limits.SPANS_PER_REQUEST_MAX
        return [
            *(empty._replace(groups=(group,)) for group in groups),
            *(empty._replace(closed=piece) for piece in pieces_of(over, limit // 2)),
            *(empty._replace(spans=piece) for piece in pieces_of(spans, limit // 2)),
            *(empty._replace(reclaimed=piece) for piece in pieces_of(gone, limit // 2)),
        ]

    def everything(self, start: int, most: int, epoch: int, now: Now) -> tuple[list[m.SyncState], int]:
        """All that this replica has, from bucket ``start`` on, in some ``most`` pieces; and the bucket to go on from.

        It is what anti-entropy sends to a replica that has nothing. 0 stands for the end.
        """
        states: list[m.SyncState] = []
        for bucket in range(start, SYNC_BUCKETS):
            states += self.states(m.SyncOffer(self.batches.partition, epoch, (), (bucket,)), now)
            if len(states) >= most and bucket + 1 < SYNC_BUCKETS:
                return states, bucket + 1
        return states, 0

    # ------------------------------------------------------------------ pulls

    def pull(self, peer: NodeId, missing: list[Span], ends_one: bool, now: Now) -> list[Effect]:
        """Step 3, behind the records: pull what is missing from ``peer``, which has it. One pull at a time.

        Args:
            ends_one: whether it says so at the end of its answer to a pull.
        """
        if not ends_one and self.pulling_until > now.mono:
            return []
        self.pulling_until = now.mono + self.node.config.request_timeout if missing else 0.0
        few = tuple(missing[: limits.SPANS_PER_REQUEST_MAX])
        return [Send(peer, m.SyncPull(self.batches.partition, few))] if few else []

    def ask_absent(self, peer: NodeId, now: Now) -> list[Effect]:
        """What has been missing for a while, and ``peer`` has not said that it has not got it: ask it.

        Mostly a peer says by itself what it has, and that is pulled; this finds out what nobody has.
        """
        if not self.batches.absent or self.pulling_until > now.mono:
            return []
        spans = self.batches.absent_for_long(peer, now)
        if not spans:
            return []
        self.pulling_until = now.mono + self.node.config.request_timeout
        return [Send(peer, m.SyncPull(self.batches.partition, spans))]

    def on_pull(self, sender: NodeId, message: m.SyncPull, epoch: int, now: Now) -> list[Effect]:
        """A peer lacks these: send it the batches, as many as one go may have, and then which are left.

        What is left starts the next pull, so a replica that was away for long catches up at full speed, and
        only one pull of a partition is under way at a time.
        """
        batches = self.batches
        effects: list[Effect] = []
        numbers: dict[int, None] = {}
        rest: list[Span] = []
        size = 0
        for span in message.spans:
            for part, slot in batches.index.within(span):
                batch = batches.stored[slot.number]
                if slot.number in numbers or not batch.durable:
                    continue
                if len(numbers) >= PULL_BATCHES_MAX or (numbers and size >= PULL_BYTES_MAX):
                    rest.append(part)
                    continue
                numbers[slot.number] = None
                size += batch.header.end_of(batch.header.size - 1)
                effects.append(SendStored(sender, epoch, slot.number, batches.age_ms(slot.number, now)))
        ages = [
            m.Aged(part, batches.age_ms(slot.number, now))
            for span in message.ages
            for part, slot in batches.index.within(span)
            if slot.number not in batches.doubtful
        ]
        gaps = [
            gap
            for span in message.spans
            if span.origin not in batches.closed
            for gap in batches.index.gaps(span)
        ]
        nowhere = [part for gap in gaps for part in subtract(gap, batches.reclaimed.within(gap))]
        reclaimed = [part for gap in gaps for part in batches.reclaimed.within(gap)]
        left = m.SyncState(
            partition=batches.partition,
            epoch=epoch,
            spans=merge_spans(rest),
            groups=(),
            rest=bool(message.spans),
            reclaimed=merge_spans(reclaimed[: limits.SPANS_PER_REQUEST_MAX]),
            nowhere=merge_spans(nowhere[: limits.SPANS_PER_REQUEST_MAX]),
            ages=tuple(ages),
        )
        return [*effects, Send(sender, left)]


def group_states(view: GroupView, origins: list[Origin], now: Now) -> list[m.GroupState]:
    """Everything of ``view`` for ``origins``, in pieces that fit a frame."""
    records = [m.Resolved(*item) for origin in origins for item in view.records.spans_of(origin)]
    attempts = [item for origin in origins for item in view.attempts_of(origin)]
    delays = [item for origin in origins for item in view.delays_of(origin, now.mono)]
    limit = limits.LETTERS_PER_PIECE if any(item.record.letter is not None for item in records) else 2048
    pieces = zip_longest(
        pieces_of(records, limit), pieces_of(attempts, limit), pieces_of(delays, limit), fillvalue=()
    )
    return [m.GroupState(view.name, *piece) for piece in pieces] or [m.GroupState(view.name, (), (), ())]


def view_digest(view: GroupView, origin: Origin) -> m.Digest:
    """Of what the group keeps of an origin when replicas compare; holds are no part of it."""
    known = view.digests.get(origin)
    if known is None:
        records = view.records.digest(origin, encode_record)
        leases = view.leases.digest(origin, encode_lease)
        known = m.Digest(origin, view.records.messages_of(origin), records ^ mix(leases))
        view.digests[origin] = known
    return known


@functools.lru_cache(maxsize=1 << 17)
def bucket_of(origin: Origin) -> int:
    """The bucket of anti-entropy that an origin falls into, the same on every node."""
    return salt_of(repr(tuple(origin))) % SYNC_BUCKETS


def encode_lease(lease: Lease) -> bytes | None:
    """What replicas compare of a lease, as bytes: its attempts, and its delay but for the time."""
    attempts, delay = lease.attempts, lease.delay
    if attempts is None and delay is None:
        return None
    known = (delay.generation, delay.n, tuple(delay.ballot)) if delay is not None else None
    return repr((attempts and tuple(attempts), known)).encode()


def encode_record(record: Record) -> bytes:
    """A record as bytes for a digest; of a letter only its ballot, which decides which of two stays."""
    ballot = tuple(record.letter.ballot) if record.letter is not None else ()
    return repr((record.generation, record.n, int(record.kind), ballot)).encode()
