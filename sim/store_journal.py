"""Quorumq's own store under a simulated node, on a disk in memory.

The disk loses and tears unsynced writes, and a power cut stops a commit at any of its operations. Bits flip only
if the format can detect it (sim/flips.py).
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterable

from quorumq.core.messages.records import BatchStored, JournalRecord, TrustLost
from quorumq.core.values.types import Batch
from quorumq.storage.commit import Commit, NoCapacity
from quorumq.storage.damage import DamagedBatch
from quorumq.storage.journal import Journal
from sim.disks import DamagedBody, SimJournal
from sim.flips import flip_bodies, flip_records
from sim.memory_disk import MemoryDisk

SEGMENT_BYTES = 4096
"""Small, so that runs of a few seconds begin new segments."""


class PowerCut(Exception):
    """Raised inside a commit to stop it at one of its disk operations."""


class StoreJournal(SimJournal):
    """quorumq's own store, on a disk in memory; ``rng`` draws the id of the data directory."""

    def __init__(self, node: str, cluster_id: str, rng: random.Random) -> None:
        self.node = node
        self.cluster_id = cluster_id
        self.rng = rng
        self.disk = MemoryDisk()
        self.hit = False  # True if bits of it were flipped
        self.opened: Journal | None = None
        self.commit: Commit | None = None
        self.snapshot: Callable[[], Iterable[JournalRecord]] = tuple
        self.batches: dict[int, Batch] = {}
        self.backups: list[MemoryDisk] = []  # the directory as it was before each start
        self.position = 0
        self.durable = 0

    @property
    def store(self) -> Journal:
        """Return the store; there is one from `open` on, until the node is gone."""
        assert self.opened is not None
        return self.opened

    def open(self) -> list[JournalRecord]:
        self.backups.append(self.disk.clone())
        self.opened = Journal.open(
            self.disk,
            node=self.node,
            cluster_id=self.cluster_id,
            new_directory_id=lambda: self.rng.getrandbits(64) | 1,
            segment_bytes=SEGMENT_BYTES,
            reserve_bytes=0,
            salvage=True,
        )
        self.commit = None
        records = list(self.store.replayed)
        self.batches = {record.number: record.batch for record in records if isinstance(record, BatchStored)}
        assert self.hit or not self.store.damaged, f"no fault damaged {self.store.damaged}"
        assert self.hit or not self.store.not_trusted, f"no fault damaged it: {self.store.not_trusted}"
        if self.store.salvaged:
            records.append(TrustLost(0, f"the data directory is damaged: {self.store.not_trusted}"))
        return records

    def kept(self) -> list[JournalRecord] | None:
        if self.hit or (self.opened is not None and (self.opened.needs_sync or self.commit is not None)):
            return None
        disk = self.disk.clone()
        disk.unlock()
        store = Journal.open(disk, node=self.node, cluster_id=self.cluster_id)
        return list(store.replayed)

    def ready(self, snapshot: Callable[[], Iterable[JournalRecord]]) -> None:
        self.snapshot = snapshot
        self.store.roll(snapshot)
        self.durable = self.position = self.store.commit()

    def append(self, records: tuple[JournalRecord, ...]) -> None:
        for record in records:
            if type(record) is BatchStored:
                self.batches[record.number] = record.batch
        self.position = self.store.append(records)

    def drop(self, numbers: tuple[int, ...]) -> None:
        for number in numbers:
            self.batches.pop(number, None)
        self.position = self.store.drop(numbers)

    def next_number(self) -> int:
        return self.store.next_number

    def records_durable(self) -> int:
        return self.store.position

    def location(self) -> int:
        return self.store.location

    def begin(self) -> None:
        if self.store.should_roll:
            self.position = self.store.roll(self.snapshot)
        self.commit = self.store.begin_commit()

    def finish(self) -> None:
        assert self.commit is not None
        self.commit.run()
        self.durable = self.store.finish(self.commit)
        self.commit = None
        self.store.check()

    def compact(self) -> tuple[int, ...]:
        damaged = self.store.compact()
        assert self.hit or not damaged, f"no fault damaged {damaged}"
        self.position = self.store.append([])
        self.store.check()
        return damaged

    def trusted(self) -> None:
        if self.store.not_trusted:
            self.store.trusted()  # the next commit begins a segment that says so

    def batch(self, number: int) -> Batch:
        header, raw, _ = self.batches[number]
        try:
            return Batch(header, raw, bytes(self.store.read_slice(number)))
        except DamagedBatch:
            assert self.hit, f"no fault damaged batch {number}"
            raise DamagedBody(number) from None

    def fill(self, free_bytes: int | None) -> None:
        self.disk.capacity = (
            1 << 40 if free_bytes is None else self.disk.capacity + free_bytes - self.disk.free_bytes()
        )

    def crash(self, rng: random.Random, *, power: bool) -> None:
        if self.commit is not None:
            countdown = rng.randint(0, 6)

            def cut(operation: str, name: str) -> None:
                nonlocal countdown
                countdown -= 1
                if countdown < 0:
                    raise PowerCut

            self.disk.on_operation = cut
            with contextlib.suppress(PowerCut, NoCapacity):
                self.commit.run()
            self.disk.on_operation = None
            self.commit = None
        self.opened = None
        if power:
            self.disk = self.disk.crash(rng)
        else:
            self.disk.unlock()

    def close(self) -> None:
        if self.commit is not None:
            self.finish()
        self.store.close()
        self.opened = None

    def lose(self, rng: random.Random, *, backup: bool, last: bool) -> None:
        self.disk = (
            rng.choice(self.backups[-1:] if last else self.backups).copied() if backup else MemoryDisk()
        )

    def damaged(self) -> list[BatchStored]:
        records = [damaged.record for damaged in self.store.damaged]
        return [record for record in records if isinstance(record, BatchStored)]

    def set_aside(self, number: int) -> None:
        self.store.set_aside(number)

    def is_set_aside(self, number: int) -> bool:
        return self.opened is not None and number in self.opened.unreadable

    def flip(self, rng: random.Random, share_found: float) -> None:
        self.hit |= flip_bodies(self.disk, self.disk.flip, rng) > 0

    def damage(self, rng: random.Random, last: int) -> None:
        self.hit |= flip_records(self.disk, self.disk.flip, rng, last) > 0
