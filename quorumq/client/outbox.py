"""A producer's messages, from being taken until they have their outcome.

Latency and size: a partition's batch closes at once when nothing of that partition is under way, and otherwise
when it is full, when it has lingered, or when what was under way is answered. So one message alone does
not wait, and a flood fills its batches. The more is under way, the more a batch takes until it is full; messages that
are taken together fill the largest at once, as they are a load by themselves.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

import trio

from quorumq.client.batches import DerivedParcel, Parcel, Run, Times
from quorumq.client.context import Context
from quorumq.client.derived import derived_origin
from quorumq.client.message import Message
from quorumq.client.sending import Session
from quorumq.core.errors import NotStored, OutcomeUnknown, QuorumqError
from quorumq.core.limits import BATCH_MESSAGES_MAX, KIB
from quorumq.core.printable import plural
from quorumq.core.types import Origin, PartitionId

BATCH_BYTES: Final = 64 * KIB
"""A batch of a partition where none is under way closes when it has so many bytes, unless told otherwise."""

LOADED_BYTES: Final = 512 * KIB
"""The same where many are under way, and of messages that are taken together. Twice as large saves a node a sixth of
its work, and has others wait twice as long for their turn."""

LOADED_MESSAGES: Final = 4096
"""A batch of so many messages does not grow beyond `BATCH_BYTES`: a step that takes it in stays short."""


class Lane:
    """One partition: the batch that is being filled, and how many are not answered yet."""

    __slots__ = ("kind", "most", "next_seq", "open", "origin", "partition", "unanswered")

    def __init__(self, partition: PartitionId, kind: type[Parcel], most: int) -> None:
        self.partition = partition
        self.kind = kind
        self.open: Parcel | None = None
        self.most = most  # bytes at which `open` closes
        self.unanswered = 0  # closed and not done
        self.origin: Origin | None = None
        self.next_seq = 0  # under `origin`

    @property
    def numbers(self) -> bool:
        """Whether messages get their numbers here; else they came with names."""
        return self.kind is Parcel


class Outbox:
    """Fills batches, and keeps them until each has its outcome.

    Args:
        context: whose clocks, history and log.
        topic: where they go.
        session: numbers the messages that do not bring their names.
        batch_bytes: a batch closes when it has so many, where nothing is under way before it; with each batch that is,
            when it has twice as many. Nodes pay for batches, hardly for bytes (docs/performance.md).
        loaded_bytes: but at the latest when it has so many; messages that are taken together count as that load.

    Attributes:
        buffered: bytes of messages that have no outcome yet.
        room: where those are parked who wait for `buffered` to fall.
        poke: set when there may be something to close or to send.
        closed: batches that wait for their turn, by lane.
        unanswered: batches that are open, waiting or under way.
        failed: batches of which messages were given up; the last thousand.
        silent: those of them with messages that nobody can wait for any more, and nobody has heard of.
    """

    def __init__(
        self, context: Context, topic: str, session: Session, *, batch_bytes: int, loaded_bytes: int
    ) -> None:
        self.buffered = 0
        self.room = trio.lowlevel.ParkingLot()
        self.poke = trio.Event()
        self.closed: deque[tuple[Lane, Parcel]] = deque()
        self.unanswered: dict[Parcel, None] = {}
        self.failed: list[Parcel] = []
        self.silent: dict[Parcel, None] = {}
        self._context = context
        self._topic = topic
        self._session = session
        self._batch_bytes = batch_bytes
        self._loaded_bytes = loaded_bytes
        self._lanes: dict[tuple[int, bool], Lane] = {}  # by partition, and whether what goes there is derived
        self._open: dict[Lane, None] = {}  # lanes with a batch being filled

    def put(self, partition: PartitionId, records: Sequence[bytes], times: Times) -> list[Run]:
        """Take messages, to be numbered: the batches that they are in, in order."""
        lane = self._lane(partition, derived=False)
        if len(records) == 1:
            size = len(records[0])
            parcel = self._filling(lane, size, times, lane.most)
            run = Run(parcel, parcel.add(records, size), 1)
            self._taken(lane, parcel, size, lane.most)
            return [run]
        most = self._loaded_bytes
        ends = list(accumulate(map(len, records)))
        runs: list[Run] = []
        at = before = 0  # records taken, and their bytes
        while at < len(records):
            parcel = self._filling(lane, len(records[at]), times, most)
            room = most - parcel.bytes
            stop = max(at + 1, bisect_right(ends, before + room, at))
            stop = min(stop, at + BATCH_MESSAGES_MAX - parcel.count)
            size = ends[stop - 1] - before
            runs.append(Run(parcel, parcel.add(records[at:stop], size), stop - at))
            self._taken(lane, parcel, size, most)
            at, before = stop, ends[stop - 1]
        return runs

    def put_derived(
        self, partition: PartitionId, source: Message, index: int, record: bytes, times: Times
    ) -> Run:
        """Take a message that is output ``index`` of ``source``.

        Raises:
            Conflict: another payload was just taken as this output.
        """
        lane = self._lane(partition, derived=True)
        parcel = self._filling(lane, len(record), times, lane.most)
        assert isinstance(parcel, DerivedParcel)
        before = parcel.count
        source_id = source.id
        origin = derived_origin(source_id, source.group, partition.topic, index)
        place = parcel.place((origin, source_id.seq), record)
        if self._context.history is not None and parcel.count > before:
            parcel.inputs.append((source, index))
        self._taken(lane, parcel, len(record) if parcel.count > before else 0, lane.most)
        return Run(parcel, place, 1)

    def _lane(self, partition: PartitionId, *, derived: bool) -> Lane:
        lane = self._lanes.get((partition.number, derived))
        if lane is None:
            kind = DerivedParcel if derived else Parcel
            lane = self._lanes[(partition.number, derived)] = Lane(partition, kind, self._batch_bytes)
        return lane

    def _filling(self, lane: Lane, size: int, times: Times, most: int) -> Parcel:
        """The lane's open batch for these times, with room for a record of ``size`` bytes within ``most``."""
        parcel = lane.open
        if parcel is not None and (parcel.bytes + size > most or parcel.times != times):
            self._close(lane)
            parcel = None
        if parcel is None:
            parcel = lane.open = lane.kind(lane.partition, trio.current_time(), times, self.silent)
            self._open[lane] = None
            self.unanswered[parcel] = None
            self.poke.set()
        return parcel

    def _taken(self, lane: Lane, parcel: Parcel, size: int, most: int) -> None:
        """The lane's open batch has grown by so many bytes; it closes where it has ``most``."""
        self.buffered += size
        if (
            parcel.bytes >= most
            or (parcel.count >= LOADED_MESSAGES and parcel.bytes >= BATCH_BYTES)
            or parcel.full
        ):
            self._close(lane)

    def answered(self, lane: Lane) -> None:
        """A batch of the lane is done."""
        self._count(lane, -1)
        self.poke.set()

    def _count(self, lane: Lane, more: int) -> None:
        lane.unanswered += more
        lane.most = min(self._batch_bytes << lane.unanswered, self._loaded_bytes)

    def _close(self, lane: Lane) -> None:
        """The lane's batch is complete: have it named and encoded, and put it in line."""
        parcel = lane.open
        assert parcel is not None
        lane.open = None
        del self._open[lane]
        parcel.made = self._context.clock()
        if lane.numbers:
            origin = self._session.origin
            assert origin is not None
            if lane.origin != origin:
                lane.origin, lane.next_seq = origin, 0
            parcel.number(lane.origin, self._session.seal, lane.next_seq, self._context.wall_ms())
            lane.next_seq += parcel.count
        self._count(lane, 1)
        self.closed.append((lane, parcel))
        self.poke.set()

    def close_due(self, linger: float) -> float:
        """Close the batches whose time has come, of ``linger`` seconds; when the next one's does."""
        now = trio.current_time()
        wake = float("inf")
        for lane in list(self._open):
            parcel = lane.open
            assert parcel is not None
            due = parcel.opened + linger
            if lane.numbers and self._session.origin is None:
                continue  # the old session was closed: another is being opened
            if lane.unanswered == 0 or now >= due:
                self._close(lane)
            else:
                wake = min(wake, due)
        return wake

    def used(self, origin: Origin) -> list[PartitionId]:
        """The partitions that something was numbered for under ``origin``."""
        return [lane.partition for lane in self._lanes.values() if lane.origin == origin]

    def finish(self, parcel: Parcel, error: QuorumqError | None) -> None:
        """A batch is confirmed, or given up with ``error``."""
        if parcel.done:
            return
        self.unanswered.pop(parcel, None)
        self.buffered -= parcel.bytes
        parcel.finish(error)
        if error is not None or parcel.refused:
            self._log(parcel)
            self.failed.append(parcel)
            if len(self.failed) > 1000:
                for old in self.failed[:-1000]:
                    self.silent.pop(old, None)
                del self.failed[:-1000]
        self.room.unpark_all()

    def take_silent(self) -> list[QuorumqError]:
        """Why messages were given up that nobody can wait for any more, one for each: told now."""
        found: list[QuorumqError] = []
        while self.silent:
            parcel, _ = self.silent.popitem()
            self._log(parcel)
            found += parcel.take_failures(forgotten=True)
        return found

    def _log(self, parcel: Parcel) -> None:
        """Messages of it were given up: say so, as far as nobody can wait for them any more."""
        places = [place for place in parcel.failures() if place in parcel.forgotten]
        if len(places) > parcel.logged:
            self._context.log.error(
                ("given up", self._topic),
                "given up, and nobody waits: %s to %r: %s",
                plural(len(places) - parcel.logged, "message"), self._topic, parcel.error or parcel.refused[places[-1]],
            )  # fmt: skip
            parcel.logged = len(places)

    def fail_unnumbered(self, error: QuorumqError) -> None:
        """No session can be opened: give up what waits for its numbers."""
        for lane in [lane for lane in self._open if lane.numbers]:
            assert lane.open is not None
            parcel, lane.open = lane.open, None
            del self._open[lane]
            self.finish(parcel, error)

    def end(self) -> None:
        """Give up what is not confirmed."""
        for lane in self._open:
            lane.open = None
        self._open.clear()
        self.closed.clear()
        for parcel in list(self.unanswered):
            if parcel.sent:
                detail = "the producer was closed before the answer came: it may be stored"
                self.finish(parcel, OutcomeUnknown(detail))
            else:
                self.finish(parcel, NotStored("the producer was closed before it was sent"))
