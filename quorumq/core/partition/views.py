"""The groups of one partition on one node: their views, and what is available to each.

What is available changes with the batches, with a group's records, holds and delays, and with time. Whoever changes
one of those calls `Views.refresh` for the messages concerned.
"""

from __future__ import annotations

from collections.abc import Iterable

from quorumq.core.partition.batches import Batches, StoredBatch
from quorumq.core.partition.group import DEAD_SUFFIX, DeadView, GroupView
from quorumq.core.spans import merge_spans
from quorumq.core.state import NodeState
from quorumq.core.types import Group, Kind, Now, PartitionId, Span


class Views:
    """The groups of one partition.

    Args:
        node: the state that all replicas of the node share.
        partition: which partition.
        batches: its batches.

    Attributes:
        groups: the views by the group's name, those of dead letters among them.
        touched: batches of which something was settled since RECLAIM last looked.
    """

    __slots__ = ("batches", "groups", "node", "partition", "touched")

    def __init__(self, node: NodeState, partition: PartitionId, batches: Batches) -> None:
        self.node = node
        self.partition = partition
        self.batches = batches
        self.groups: dict[str, GroupView] = {}
        self.touched: dict[int, None] = {}

    # ------------------------------------------------------------------ groups

    def named(self, name: str) -> GroupView:
        """The view of group ``name``; made when first named, at the generation that the group's register names.

        What it then finds here has been available ever since, hence the time 0.
        """
        view = self.groups.get(name)
        if view is not None:
            return view
        if name.endswith(DEAD_SUFFIX):
            self.named(name.removesuffix(DEAD_SUFFIX))
        view = self.groups[name] = self.look(name)
        if isinstance(view, DeadView):
            view.source.dead = view
        else:
            self._want_again(view, self.batches.reclaimed.items())
        for span, _ in self.batches.index.items():
            self._refresh_one(view, span, Now(0.0, 0))
        return view

    def look(self, name: str) -> GroupView:
        """The view of a group, made up where nobody reads it: looking at a group does not create it."""
        found = self.groups.get(name)
        if found is not None:
            return found
        floor, closed = self.node.clock.floor, self.batches.closed
        if name.endswith(DEAD_SUFFIX):
            return DeadView(self.look(name.removesuffix(DEAD_SUFFIX)), floor, closed)
        view = GroupView(name, floor, closed)
        register = self.node.catalogue.groups.get((self.partition.topic, name))
        if register is not None:
            view.generation, view.from_ms = register.generation, register.from_ms
        return view

    def sorted(self) -> list[GroupView]:
        """The groups by name, so that two nodes list them alike."""
        return [self.groups[name] for name in sorted(self.groups)]

    def sources(self) -> list[GroupView]:
        """The groups that have records of their own: those that are not of dead letters."""
        return [view for view in self.groups.values() if view.home is view]

    def on_register(self, register: Group, now: Now) -> None:
        """The group was created, or rewound: what the new generation covers is open again."""
        view = self.named(register.name)
        if view.generation >= register.generation:
            return
        view.generation, view.from_ms = register.generation, register.from_ms
        for span, _ in self.batches.index.items():
            self.refresh(view, span, now)
        self._want_again(view, self.batches.reclaimed.items())

    def _want_again(self, view: GroupView, spans: Iterable[Span]) -> None:
        """What ``view``, new or rewound, would read of ``spans``, reclaimed here, counts as absent again."""
        for span in spans:
            for part, record in view.record_pieces(span):
                if record.kind in (Kind.OPEN, Kind.DEAD):
                    self.batches.want(part)

    def want_anew(self, spans: Iterable[Span]) -> None:
        """Work out again what is wanted of ``spans``, which were reclaimed before or after their records came.

        Only so does it follow from what replicas exchange: else those that agree in all of that would differ for ever.
        """
        gone = [part for span in spans for part in self.batches.reclaimed.within(span)]
        for part in gone:
            self.batches.unwant(part)
        for view in self.sources():
            self._want_again(view, gone)

    # ------------------------------------------------------------ availability

    def refresh(self, view: GroupView, span: Span, now: Now) -> None:
        """Work out again which of ``span`` is available to the group; called wherever that may have changed.

        A group and the group of its dead letters have their records in common, so both are looked at.
        """
        home = view.home
        self._refresh_one(home, span, now)
        if home.dead is not None:
            self._refresh_one(home.dead, span, now)

    def refresh_batch(self, batch: StoredBatch, now: Now) -> None:
        """The batch has become durable, or due."""
        for section in batch.header.sections:
            for view in self.groups.values():
                self._refresh_one(view, section, now)

    def refresh_all(self, now: Now) -> None:
        """After the journal was read."""
        self.want_anew(self.batches.reclaimed.items())
        for view in self.groups.values():
            for span, _ in self.batches.index.items():
                self._refresh_one(view, span, now)

    def _refresh_one(self, view: GroupView, span: Span, now: Now) -> None:
        for piece, slot in self.batches.index.within(span):
            batch = self.batches.stored[slot.number]
            if not batch.durable or slot.number in self.batches.waiting:
                continue
            before = sum(part.size for part in view.available.remove(piece))
            after = 0
            covered = view.covers(batch.header.published_ms)
            for part in view.free_parts(piece, covered, now.mono):
                view.available.add(part)
                after += part.size
            if after > before:
                self.node.stirred = True
            for time in view.wakeups(piece, now.mono):
                self.node.at(time, "refresh", self.partition, view.name, piece)
            key = batch.key()
            count = view.offered.get(slot.number, 0) + after - before
            if count:
                view.offered[slot.number] = count
                if key not in view.ready:
                    view.ready[key] = now.mono
            else:
                view.forget_batch(key)
                self.touched[slot.number] = None

    def withdraw(self, batch: StoredBatch, spans: list[Span]) -> None:
        """The batch is not here any more, and so ``spans``, which were in it, are available to nobody."""
        self.touched.pop(batch.number, None)
        for view in self.groups.values():
            view.forget_batch(batch.key())
            for part in spans:
                view.available.remove(part)

    def raise_floors(self, spans: list[Span]) -> None:
        """The payload of ``spans`` is back: whatever was granted before and forgotten is not above our clock."""
        for view in self.groups.values():
            for span in spans:
                view.holds.raise_floor(span, self.node.clock.value)

    def check(self, now: Now) -> None:
        """Assert what holds between any two events; `available` is compared with its definition."""
        batches = self.batches
        for view in self.groups.values():
            view.check()
            for span, slot in batches.index.items():
                if not batches.stored[slot.number].durable or slot.number in batches.waiting:
                    assert not view.available.within(span), f"{span} is available too early"
                    continue
                covered = view.covers(batches.stored[slot.number].header.published_ms)
                free = merge_spans(view.free_parts(span, covered, now.mono))
                have = tuple(view.available.within(span))
                assert have == free, f"{view.name}: available is {have}, should be {free}"
            offered: dict[int, int] = {}
            for span in view.available.items():
                for part, slot in batches.index.within(span):
                    offered[slot.number] = offered.get(slot.number, 0) + part.size
            assert offered == view.offered, f"{view.name}: offers {view.offered}, should offer {offered}"
            ready = {number for _, number in view.ready}
            assert ready == set(offered), f"{view.name}: batches {ready} are ready, should be {offered}"
