"""Append to a journal, and compare it with the appended records after each start."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

from quorumq.core.messages.records import BatchStored, DirectoryMade, JournalRecord, Reserved
from quorumq.storage.damage import DamagedBatch
from quorumq.storage.journal import Journal
from quorumq.storage.scan import Frame, Scan, start_of
from quorumq.storage.segment import salt_of, segment_number
from sim.memory_disk import MemoryDisk
from tests.storage.samples import DIRECTORY, bare, batch, bodies_are_right, open_store


class PowerCut(Exception):
    """Raised by a hook in the middle of a disk call."""


class Writer:
    """A node that appends batches and registers in turn, drops batches, and records the reports about them."""

    store: Journal

    def __init__(self, disk: MemoryDisk, before: Writer | None = None, **options: int) -> None:
        self.disk = disk
        self.appended: list[JournalRecord] = [] if before is None else list(before.appended)
        self.durable = 0 if before is None else before.durable  # records of `appended` reported durable
        # Ticket, 0: durable.
        self.dropped: dict[int, int] = {} if before is None else dict(before.dropped)
        self.damaged: set[int] = set() if before is None else set(before.damaged)
        self.options = options
        self.tickets: list[tuple[int, int]] = []

    def open(self) -> None:
        """Start, and compare the journal with the appended, dropped and damaged records."""
        self.store = open_store(self.disk, **self.options)
        replayed = list(self.store.replayed)
        assert isinstance(replayed[0], DirectoryMade)
        assert self.store.location == DIRECTORY, "where it was made: nothing but a copy lies elsewhere"
        position = self.store.position
        assert self.durable <= position <= len(self.appended), "a prefix that has all that was durable"
        self.appended = self.appended[:position]
        others = [record for record in self.appended if not isinstance(record, BatchStored)]
        assert others == [record for record in replayed[1:] if not isinstance(record, BatchStored)]

        batches = {record.number: record for record in self.appended if isinstance(record, BatchStored)}
        self.dropped = {n: ticket for n, ticket in self.dropped.items() if n in batches}
        self.damaged &= set(batches)
        stored = [record for record in replayed if isinstance(record, BatchStored)]
        aside = {item.record.number for item in self.store.damaged}
        assert all(record == bare(batches[record.number]) for record in stored)
        there = {record.number for record in stored}
        assert len(there) == len(stored), "each batch once"
        assert not there & aside
        assert not (there | aside) & {number for number, ticket in self.dropped.items() if not ticket}
        assert set(batches) - set(self.dropped) <= there | aside, "what was not forgotten is there"
        assert aside <= self.damaged
        self.dropped = {number: 0 for number in self.dropped if number not in there | aside}
        for record in stored:
            if record.number not in self.damaged:
                bodies_are_right(self.store, [record])
            else:
                with pytest.raises(DamagedBatch):
                    self.store.read_slice(record.number)
        for number in aside:
            with pytest.raises(DamagedBatch):
                self.store.read_slice(number)
        assert self.store.next_number > max(batches, default=-1)
        self.store.roll(self.small())
        self.tickets = [(self.store.append([]), len(self.appended))]
        self.commit()

    def small(self) -> list[JournalRecord]:
        return [record for record in self.appended if not isinstance(record, BatchStored)]

    def append(self, count: int, size: int = 30) -> None:
        for _ in range(count):
            number = len(self.appended)
            record: JournalRecord = batch(number, size) if number % 3 else Reserved(number)
            self.appended.append(record)
            self.tickets.append((self.store.append([record]), len(self.appended)))

    def live(self) -> list[int]:
        """Numbers of the batches that were not forgotten."""
        return [
            record.number
            for record in self.appended
            if isinstance(record, BatchStored) and record.number not in self.dropped
        ]

    def drop(self, numbers: list[int]) -> None:
        ticket = self.store.drop(numbers)
        self.dropped.update((number, ticket) for number in numbers)

    def compact(self, size: int = 1 << 20) -> None:
        """Empty old segments a little; at most about ``size`` bytes at once."""
        self.store._compact_bytes = size
        assert set(self.store.compact()) <= self.damaged
        bodies_are_right(self.store, [self.appended[n] for n in self.live() if n not in self.damaged])
        self.store.check()

    def roll(self) -> None:
        self.store.roll(self.small())

    def commit(self) -> None:
        self.note_durable(self.store.commit())

    def note_durable(self, durable: int) -> None:
        """The store said that everything up to this ticket is durable."""
        self.durable = max([self.durable, *(count for ticket, count in self.tickets if ticket <= durable)])
        self.dropped = {number: 0 if ticket <= durable else ticket for number, ticket in self.dropped.items()}
        assert self.store.position == self.durable
        self.store.check()

    def close(self) -> None:
        self.store.close()
        self.durable = len(self.appended)
        self.dropped = dict.fromkeys(self.dropped, 0)


def frames_of(disk: MemoryDisk, name: str) -> list[Frame]:
    number = segment_number(name)
    assert number is not None
    read = functools.partial(disk.read, name)
    items = list(Scan(read, disk.size(name), salt_of(DIRECTORY, number), check_bodies=True).records())
    frames = [frame for frame in items if isinstance(frame, Frame)]
    assert frames == items
    return frames


def frames_in(path: Path) -> list[Frame]:
    """Return the records of a segment file that can be read."""
    start, data = start_of(path), path.read_bytes()
    assert start is not None
    salt = salt_of(start.directory, start.segment)
    scan = Scan(lambda at, length: data[at : at + length], len(data), salt, check_bodies=True)
    return [item for item in scan.records() if isinstance(item, Frame)]


def compacted() -> Writer:
    """A journal whose first segment was compacted: one of its batches moved."""
    writer = Writer(MemoryDisk())
    writer.open()
    writer.append(9)
    writer.roll()
    writer.append(6)
    writer.commit()
    writer.drop(writer.live()[1:4])
    writer.commit()
    writer.compact(1)  # moves one of three
    writer.commit()
    return writer


def worn() -> Writer:
    """A journal of three segments, with batches forgotten, moved, and some commits behind the newest snapshot."""
    writer = compacted()
    writer.append(3)
    writer.roll()
    for _ in range(3):
        writer.append(3)
        writer.drop(writer.live()[-2:-1])
        writer.commit()
    assert len(writer.store.live) == 3
    writer.store.abandon()
    return writer


def flips(disk: MemoryDisk, every: int) -> Iterator[tuple[str, int]]:
    for name in disk.list():
        for offset in range(disk.size(name)):
            if offset % every == 0:
                yield name, offset
