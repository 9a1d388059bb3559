"""Comparison of one partition here with the same at a peer: down the trees of both, to the producer ids that differ.

All tables of a partition are compared together: a node's sum is over all of them, so what is alike costs one number.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest
from typing import Final

from quorumq.core import messages as m
from quorumq.core.partition.batches import Batches
from quorumq.core.partition.digests import (
    BRANCHES,
    DIGEST_BYTES,
    DIGITS,
    LISTED_MAX,
    SUMS_END,
    Digests,
    depth_of,
)
from quorumq.core.partition.group import GroupView
from quorumq.core.partition.views import Views
from quorumq.core.values import limits
from quorumq.core.values.chunks import chunks_of
from quorumq.core.values.types import Now, PartitionId, ProducerId, Span

DIGESTS_MAX: Final = limits.DIGESTS_MAX
"""Digests, or sums, in one message, about."""

BATCHES: Final = b"batches"
CLOSED: Final = b"closed"
_GROUP: Final = "group "

Listed = Mapping[bytes, Mapping[ProducerId, bytes]]
"""A peer's digests, by table and producer id."""

Told = m.SyncDigests | m.SyncListed | m.SyncState


def label_of(group: str) -> bytes:
    """Return the label of a group's table."""
    return (_GROUP + group).encode()


def group_of(label: bytes) -> str:
    """Return the group whose table has a label."""
    return label.decode().removeprefix(_GROUP)


class Trees:
    """The digests of all tables, none of them stale.

    Args:
        trees: trees by label, those of groups in the order of their names.

    Attributes:
        looks: cost of the looks so far, at producer ids and at parts of nodes.
    """

    __slots__ = ("looks", "trees")

    def __init__(self, trees: list[tuple[bytes, Digests]]) -> None:
        self.trees = trees
        self.looks = 0.0

    def root(self) -> bytes:
        """Return the sum of all."""
        self.looks += 1 + len(self.trees) / 4
        total = sum([tree.root.sum for _, tree in self.trees if tree.root is not None])
        return (total % SUMS_END).to_bytes(DIGEST_BYTES, "big")

    def sums(self, location: int) -> bytes:
        sums = [0] * BRANCHES
        for _, tree in self.trees:
            self.looks += tree.add_sums(location, sums) / 4
        return b"".join([(each % SUMS_END).to_bytes(DIGEST_BYTES, "big") for each in sums])

    def has(self, location: int) -> bool:
        self.looks += 1
        return any(tree.at(location) is not None for _, tree in self.trees)

    def is_listed(self, location: int) -> bool:
        """Return True if a node is compared producer id by producer id: there is little in it, or no use in parting
        it."""
        self.looks += len(self.trees)
        nodes = [tree.at(location) for _, tree in self.trees]
        sizes = [node.size for node in nodes if node is not None]
        return sum(sizes) <= LISTED_MAX or max(sizes) <= 1 or depth_of(location) == DIGITS

    def digests_in(self, location: int) -> list[tuple[bytes, list[m.Digest]]]:
        listed: list[tuple[bytes, list[m.Digest]]] = []
        for label, tree in self.trees:
            digests = [
                m.Digest(producer_id, value.to_bytes(DIGEST_BYTES, "big"))
                for producer_id, value in tree.items(location)
            ]
            self.looks += 1 + 2 * len(digests)
            if digests:
                listed.append((label, digests))
        return listed


class Answer:
    """Messages that one step sends to one peer.

    Attributes:
        runs: number of runs of messages in the answer.
    """

    __slots__ = ("_differing", "_listed", "_parted", "epoch", "runs", "trees")

    def __init__(self, trees: Trees, epoch: int) -> None:
        self.trees = trees
        self.epoch = epoch
        self.runs = 0
        self._parted: dict[bool, list[int]] = {True: [], False: []}
        self._listed: list[int] = []
        self._differing: dict[bytes, list[ProducerId]] = {}

    def part(self, location: int, *, tells: bool) -> None:
        """Say the sums of a node's parts. ``tells``: in the end we send our content."""
        self._parted[tells].append(location)

    def list_all(self, location: int) -> None:
        """Say all digests in a node."""
        self._listed.append(location)

    def tell(self, location: int, theirs: Listed) -> None:
        """Send our content of a node that differs from a peer's digests."""
        for label, digests in self.trees.digests_in(location):
            answer = theirs.get(label, {})
            differing = [producer_id for producer_id, digest in digests if answer.get(producer_id) != digest]
            if differing:
                self._differing.setdefault(label, []).extend(differing)

    @property
    def differing(self) -> int:
        """Return the number of producer ids in the answer, once for each table."""
        return sum(map(len, self._differing.values()))

    def messages(self, batches: Batches, views: Views, now: Now) -> list[Told]:
        """Return all of it, in chunks that fit a frame."""
        partition, sums = batches.partition, self.trees.sums
        digests = [
            m.SyncDigests(partition, self.epoch, tells, chunk, b"".join(map(sums, chunk)))
            for tells, locations in self._parted.items()
            for chunk in chunks_of(locations, DIGESTS_MAX // BRANCHES)
        ]
        return [*digests, *self._lists(batches), *self.states(batches, views, now)]

    def _lists(self, batches: Batches) -> list[m.SyncListed]:
        chunks: list[m.SyncListed] = []
        locations: list[int] = []
        listed: dict[bytes, list[m.Digest]] = {}
        for location in self._listed:
            locations.append(location)
            for label, digests in self.trees.digests_in(location):
                listed.setdefault(label, []).extend(digests)
            if location == self._listed[-1] or sum(map(len, listed.values())) >= DIGESTS_MAX:
                producer_ids, closed = (tuple(listed.pop(label, ())) for label in (BATCHES, CLOSED))
                groups = tuple(
                    m.GroupDigest(group_of(label), tuple(listed[label])) for label in sorted(listed)
                )
                chunks.append(
                    m.SyncListed(
                        batches.partition, self.epoch, tuple(locations), producer_ids, groups, closed
                    )
                )
                locations, listed = [], {}
        return chunks

    def states(self, batches: Batches, views: Views, now: Now) -> list[m.SyncState]:
        """Return all content of the producer ids that differ: records before the messages that they settle."""
        spans: list[Span] = []
        gone: list[Span] = []
        for producer_id in self._differing.get(BATCHES, ()):
            spans += batches.present.spans_of(producer_id)
            gone += batches.reclaimed.spans_of(producer_id)
        over = [span for first in self._differing.get(CLOSED, ()) for span in batches.closed.block(first)]
        groups: list[m.GroupState] = []
        for label, producer_ids in self._differing.items():
            if label not in (BATCHES, CLOSED):
                groups += group_states(views.groups[group_of(label)], producer_ids, now)
        self.runs += len(spans) + len(gone) + len(over)
        self.runs += sum(len(each.records) + len(each.attempts) + len(each.delays) for each in groups)
        self.trees.looks += 2 * self.runs
        empty = m.SyncState(batches.partition, self.epoch, (), ())
        limit = limits.SPANS_PER_REQUEST_MAX
        return [
            *(empty._replace(groups=(group,)) for group in groups),
            *(empty._replace(closed=chunk) for chunk in chunks_of(over, limit // 2)),
            *(empty._replace(spans=chunk) for chunk in chunks_of(spans, limit // 2)),
            *(empty._replace(reclaimed=chunk) for chunk in chunks_of(gone, limit // 2)),
        ]


def claim_states(partition: PartitionId, view: GroupView, epoch: int, now: Now) -> list[m.SyncState]:
    """Return all claims of a group, which replicas do not compare, in chunks that fit a frame."""
    if not view.claims:
        return []
    empty = m.SyncState(partition, epoch, (), ())
    chunks = chunks_of(view.claims_left(now.mono), 2048)
    return [empty._replace(groups=(m.GroupState(view.name, (), (), chunk),)) for chunk in chunks]


def group_states(view: GroupView, producer_ids: list[ProducerId], now: Now) -> list[m.GroupState]:
    """Return what replicas compare of ``producer_ids``, in chunks that fit a frame."""
    records = [
        m.SpanRecord(*item) for producer_id in producer_ids for item in view.records.spans_of(producer_id)
    ]
    attempts = [item for producer_id in producer_ids for item in view.attempts_of(producer_id)]
    delays = [item for producer_id in producer_ids for item in view.delays_of(producer_id, now.mono)]
    limit = limits.DEATHS_PER_CHUNK if any(item.record.death is not None for item in records) else 2048
    chunks = zip_longest(
        chunks_of(records, limit), chunks_of(attempts, limit), chunks_of(delays, limit), fillvalue=()
    )
    return [m.GroupState(view.name, *chunk) for chunk in chunks] or [m.GroupState(view.name, (), (), ())]
