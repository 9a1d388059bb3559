"""Journals of simulated nodes.

Two of them, behind one interface. `MemoryJournal` keeps the records as they are and the number of durable ones;
most seeds run on it, because it is fast. sim/store_journal.py runs quorumq's own store. A power
failure leaves the durable part and any prefix of the writes after it.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from quorumq.core.messages.records import (
    NUMBERED,
    BatchStored,
    DirectoryMade,
    JournalRecord,
    Started,
    TrustLost,
)
from quorumq.core.values.types import Batch, BatchHeader


class SimJournal(Protocol):
    """A journal as a host needs it. Positions count up; a record at or below ``durable`` survives anything.

    Attributes:
        batches: those that are stored and were not forgotten, by number.
    """

    position: int
    durable: int
    batches: dict[int, Batch]

    def open(self) -> list[JournalRecord]:
        """Return the records found at a start."""

    def kept(self) -> list[JournalRecord] | None:
        """Return the records that `open` would give if the node stopped now and nothing were lost; None if unknown."""

    def ready(self, snapshot: Callable[[], Iterable[JournalRecord]]) -> None:
        """Note that the core is built; ``snapshot`` gives its small state.

        Raises:
            NoCapacity: the disk has no room for a start.
        """
        return

    def append(self, records: tuple[JournalRecord, ...]) -> None:
        """Put records behind the others; ``position`` is theirs."""

    def records_durable(self) -> int:
        """Return the number of durable records ever appended: `Durable.position`, and at a start the records found."""

    def drop(self, numbers: tuple[int, ...]) -> None:
        """Drop these batches: once that is durable, `open` gives them no more."""

    def location(self) -> int:
        """Return the place of the directory, as the last `open` found it."""

    def next_number(self) -> int:
        """Return a number above every batch number ever used, as far as the journal knows."""

    def begin(self) -> None:
        """Begin an fsync: it will cover everything appended so far."""

    def finish(self) -> None:
        """End that fsync: ``durable`` is the position that it covered.

        Raises:
            NoCapacity: it is not, and may be asked for again once there is room.
        """

    def compact(self) -> tuple[int, ...]:
        """Go on making room, after an fsync. Returns batches that turned out damaged meanwhile."""
        return ()

    def trusted(self) -> None:
        """Be trusted for the directory again, durably."""
        return

    def batch(self, number: int) -> Batch:
        """Return a stored batch, header and body."""

    def header(self, number: int) -> BatchHeader | None:
        """Return the header of a batch; None if it was dropped meanwhile, as its topic was deleted."""
        batch = self.batches.get(number)
        return batch.header if batch is not None else None

    def stored(self) -> list[tuple[int, BatchHeader]]:
        """Return every batch that is stored and was not dropped: its number and its header."""
        return [(number, batch.header) for number, batch in self.batches.items()]

    def fill(self, free_bytes: int | None) -> None:
        """Leave ``free_bytes`` bytes on the disk; None: no limit."""
        return

    def crash(self, rng: random.Random, *, power: bool) -> None:
        """End the node; records that are not durable may be lost."""

    def close(self) -> None:
        """Stop cleanly: everything appended becomes durable."""

    def lose(self, rng: random.Random, *, backup: bool, last: bool) -> None:
        """Empty the directory of a node that is down; with ``backup``, restore it from before a start, or the last."""

    def damaged(self) -> list[BatchStored]:
        """Return the batches that the last `open` found damaged, and left out."""

    def flip(self, rng: random.Random, share_found: float) -> None:
        """Flip bits of some batches' bodies. The next start finds this share of them, readers find the others."""

    def damage(self, rng: random.Random, last: int) -> None:
        """Flip bits of other records while the node is down: it starts from the readable ones, and is not trusted.

        If ``last`` is not 0, that many of the last ones it is instead.
        """

    def set_aside(self, number: int) -> None:
        """Note that a batch turned out damaged: the next `open` knows."""

    def is_set_aside(self, number: int) -> bool:
        """Return True if a batch is known to be damaged."""


class DamagedBody(Exception):
    """The bytes of this batch, by its number, are not those that were stored."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Forgot(NamedTuple):
    """In a `MemoryJournal`: these batches are needed no more."""

    numbers: tuple[int, ...]


class Unread(NamedTuple):
    """In a `MemoryJournal`: the place of a record that cannot be read, which still counts."""


class MemoryJournal(SimJournal):
    """Records in a list, with the number of durable ones."""

    def __init__(self) -> None:
        self.records: list[JournalRecord | Forgot | Unread] = []
        self.batches: dict[int, Batch] = {}
        self.position = 0
        self.durable = 0
        self.target = 0
        self.highest = 0  # number of a batch
        self.lies = 1  # the place of the directory
        self.forgot_at: list[int] = []  # position of a Forgot among the records
        # Damaged batches: True if a start finds them; the others are found by their readers.
        self.flipped: dict[int, bool] = {}
        self.damaged_batches: list[BatchStored] = []

    def open(self) -> list[JournalRecord]:
        self.forgot_at = [at for at, record in enumerate(self.records) if isinstance(record, Forgot)]
        self.durable = self.position = len(self.records)
        records = self.read()
        self.batches = {record.number: record.batch for record in records if isinstance(record, BatchStored)}
        self.flipped = {number: seen for number, seen in self.flipped.items() if number in self.batches}
        batches = [record for record in records if isinstance(record, BatchStored)]
        self.damaged_batches = [record for record in batches if self.flipped.get(record.number)]
        return [r for r in records if not (isinstance(r, BatchStored) and self.flipped.get(r.number))]

    def kept(self) -> list[JournalRecord] | None:
        return None if self.flipped else self.read()

    def dropped(self) -> set[int]:
        """Return the numbers of dropped batches."""
        return {number for record in self.records if isinstance(record, Forgot) for number in record.numbers}

    def read(self) -> list[JournalRecord]:
        """Return the records that count and can be read."""
        gone = self.dropped()
        return [
            record
            for record in self.records
            if not isinstance(record, Forgot | Unread)
            and not (isinstance(record, NUMBERED) and record.number in gone)
        ]

    def damaged(self) -> list[BatchStored]:
        return self.damaged_batches

    def append(self, records: tuple[JournalRecord, ...]) -> None:
        for record in records:
            if type(record) is BatchStored:
                self.batches[record.number] = record.batch
        self.records += records
        self.position = len(self.records)

    def drop(self, numbers: tuple[int, ...]) -> None:
        for number in numbers:
            self.batches.pop(number, None)
        self.forgot_at.append(len(self.records))
        self.records.append(Forgot(numbers))
        self.position = len(self.records)

    def next_number(self) -> int:
        numbers = (r.number for r in self.records if isinstance(r, NUMBERED))
        self.highest = max(self.highest, max(numbers, default=0))
        return 1 + self.highest

    def records_durable(self) -> int:
        return self.durable - bisect_left(self.forgot_at, self.durable)

    def location(self) -> int:
        return self.lies

    def begin(self) -> None:
        self.target = self.position

    def finish(self) -> None:
        self.durable = self.target

    def batch(self, number: int) -> Batch:
        if number in self.flipped:
            raise DamagedBody(number)
        return self.batches[number]

    def crash(self, rng: random.Random, *, power: bool) -> None:
        del self.records[rng.randint(self.durable, self.position) :]  # a killed process loses its buffers too

    def close(self) -> None:
        self.durable = self.position

    def lose(self, rng: random.Random, *, backup: bool, last: bool) -> None:
        starts = [at for at, record in enumerate(self.records) if isinstance(record, Started)]
        del self.records[rng.choice(starts[-1:] if last else starts) if backup and starts else 0 :]
        self.lies += 1
        self.flipped.clear()

    def flip(self, rng: random.Random, share_found: float) -> None:
        gone = self.dropped()
        stored = [record.number for record in self.records if isinstance(record, BatchStored)]
        for number in stored:
            if number not in gone and rng.random() < 0.5:
                self.flipped[number] = self.is_set_aside(number) or rng.random() < share_found

    def damage(self, rng: random.Random, last: int) -> None:
        self.next_number()  # is kept beside the records
        for _ in range(1 if last else rng.choice((1, 1, 3))):
            at = max(0, len(self.records) - last) if last else rng.randrange(len(self.records) or 1)
            size = last or rng.choice((1, 1, 10, 1000))
            self.records[at : at + size] = [
                record if isinstance(record, DirectoryMade) else Unread()
                for record in self.records[at : at + size]
            ]
        if self.records:
            self.records.append(TrustLost(0, "the data directory is damaged"))

    def set_aside(self, number: int) -> None:
        self.flipped[number] = True

    def is_set_aside(self, number: int) -> bool:
        return self.flipped.get(number, False)
