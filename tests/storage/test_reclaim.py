"""Space is freed: effects of `drop` and `reclaim` on the bytes of a directory.

Crashes in the middle of it are in test_crash.py and test_stateful.py.
"""

from __future__ import annotations

import errno
import random
from pathlib import Path

import pytest

from quorumq.core.messages.records import BatchStored
from quorumq.core.values.limits import KIB, MIB
from quorumq.storage.damage import DamagedBatch
from quorumq.storage.disk import Disk, RealDisk
from quorumq.storage.journal import Journal
from quorumq.storage.segment import segment_name
from quorumq.wire.batch import Message, build_batch
from sim.memory_disk import MemoryDisk
from tests.storage.samples import PARTITION, PRODUCER_ID, batch, bodies_are_right, start, started, tombstone


def commit(store: Journal) -> tuple[int, ...]:
    """Commit as a node does: begin a new segment if it is time, compact old ones a little."""
    store.commit()
    if store.should_roll:
        store.roll([])
    return store.compact()


def settle(store: Journal) -> tuple[int, ...]:
    """Commit until nothing is left to be emptied; the batches that were found damaged."""
    damaged: list[int] = []
    while True:
        damaged += commit(store)
        if not store.needs_write:
            return tuple(damaged)


def size_of(disk: Disk) -> int:
    return sum(disk.size(name) for name in disk.list())


def filled(count: int, size: int = 1_000, **options: int) -> tuple[MemoryDisk, Journal]:
    """A journal whose older segment has ``count`` batches."""
    disk, store, _ = started(**options)
    store.append([batch(number, size=size) for number in range(count)])
    store.roll([])
    store.commit()
    return disk, store


class Churn:
    """Batches that are added and soon dropped, but for some that stay: now the one, now the other out of order."""

    def __init__(self, disk: Disk, messages: int, segment_bytes: int, seed: int = 1) -> None:
        self.disk = disk
        self.messages = messages  # per batch
        self.segment_bytes = segment_bytes
        self.rng = random.Random(seed)
        self.store, _ = start(disk, segment_bytes=segment_bytes)
        self.live: dict[int, int] = {}  # number -> bytes
        self.staying: list[int] = []
        self.number = 0
        self.peak = 0
        self.worst = 0.0

    def step(self, window: int, staying: int) -> None:
        """One batch more; at most ``window`` young ones and ``staying`` old ones are kept."""
        self.number += 1
        payloads = [Message(self.rng.randbytes(10) * 5) for _ in range(self.messages)]
        made = build_batch(PARTITION, PRODUCER_ID, self.number * self.messages, 1_000, payloads)
        self.store.append([BatchStored(self.number, made, 2_000)])
        self.live[self.number] = len(made.raw) + len(made.body)
        gone = []
        old = self.number - window
        if old in self.live:
            if self.rng.random() < 0.02:
                self.staying.append(old)
            else:
                gone.append(old)
        if len(self.staying) > staying:
            gone.append(self.staying.pop(self.rng.randrange(len(self.staying))))
        for number in gone:
            del self.live[number]
        self.store.drop(gone)
        if self.number % 8 == 0:
            commit(self.store)
            self.measure()

    def measure(self) -> None:
        size = size_of(self.disk)
        self.peak = max(self.peak, size)
        self.worst = max(self.worst, (size - 2 * sum(self.live.values())) / self.segment_bytes)

    def check(self) -> None:
        """Everything live is there, now and after a start; nothing else is."""
        for _ in range(2):
            self.store.check()
            assert len(self.store) == len(self.live)
            assert all(number in self.store for number in self.live)
            self.store.read_slice(self.rng.choice(list(self.live)))
            self.store.close()
            self.store, _ = start(self.disk, segment_bytes=self.segment_bytes)


def test_a_hundred_thousand_messages_pass_through_a_small_directory() -> None:
    churn = Churn(MemoryDisk(), messages=50, segment_bytes=256 * KIB)
    for _ in range(2_000):
        churn.step(window=60, staying=20)
    assert churn.worst < 5, "at most twice what is live, and a few segments"
    churn.check()
    churn.store.close()


@pytest.mark.soak
def test_ten_million_messages_pass_through_a_small_directory(tmp_path: Path) -> None:
    churn = Churn(RealDisk(tmp_path), messages=500, segment_bytes=4 * MIB)
    written = 0
    for _ in range(20_000):
        churn.step(window=200, staying=200)
        written += churn.live[churn.number]
    print(
        f"\n{churn.number * churn.messages} messages, {written / MIB:.0f} MiB written by publishes; on disk at most "
        f"{churn.peak / MIB:.1f} MiB, {churn.worst:.1f} segments more than twice what was live"
    )
    assert churn.worst < 5
    churn.check()
    settle(churn.store)
    print(f"live {sum(churn.live.values()) / MIB:.1f} MiB, on disk {size_of(churn.disk) / MIB:.1f} MiB")
    churn.store.close()


def test_a_batch_is_served_before_while_and_after_it_is_moved() -> None:
    disk, store = filled(4)
    old = max(store.live) - 1
    kept = batch(3, size=1_000)

    def served() -> None:
        bodies_are_right(store, [kept])
        assert bytes(store.read_slice(3, 5, 50, check=False)) == bytes(kept.batch.body)[5:50]

    store.drop([0, 1, 2])
    store.commit()
    served()
    assert store.compact() == ()
    assert store.live[old] == 0
    served()
    running = store.begin_commit()
    served()
    running.run()
    served()
    store.finish(running)
    served()
    assert segment_name(old) in disk.list()
    store.roll([])
    served()
    store.commit()
    served()
    assert segment_name(old) not in disk.list()
    store.close()


def test_compacting_goes_a_little_at_a_time() -> None:
    _, store = filled(100, size=100 * KIB)
    store.drop(range(0, 100, 2))
    store.drop(range(1, 10, 2))
    store.commit()
    steps = 0
    while store.live[min(store.live)]:
        before = store.pending_bytes
        store.compact()
        assert 0 < store.pending_bytes - before <= 256 * KIB + 101 * KIB
        store.commit()
        steps += 1
    assert steps > 10
    store.close()


def test_compacting_keeps_up_with_large_commits() -> None:
    _, store = filled(100, size=100 * KIB)
    store.drop(range(60))
    store.append([batch(100, size=MIB)])
    running = store.begin_commit()
    running.run()
    store.finish(running)
    store.compact()
    assert MIB <= store.pending_bytes <= MIB + 200 * KIB
    store.close()


def test_a_segment_that_is_mostly_needed_is_left_alone() -> None:
    _, store = filled(10)
    store.drop([1, 2, 3])
    store.commit()
    assert store.compact() == ()
    assert not store.needs_write
    store.close()


def test_uncommitted_entries_are_moved_later() -> None:
    """A roll may be before the commit of earlier bytes: they cannot be read yet."""
    store, _ = start(MemoryDisk())
    store.append([batch(number, size=1_000) for number in range(6)])
    store.drop(range(5))
    store.roll([])
    old = min(store.live)
    assert store.compact() == ()
    assert store.live[old] == 1
    settle(store)
    assert store.live[old] == 0
    bodies_are_right(store, [batch(5, size=1_000)])
    store.close()


def test_copies_keep_half_of_the_reserve_to_acks() -> None:
    reserve = 4 * MIB
    disk, store = filled(20, size=100 * KIB, reserve_bytes=reserve)
    store.drop(range(15))
    store.commit()
    disk.capacity = size_of(disk) + reserve // 2 + 400 * KIB
    assert store.compact() == ()
    assert not store.needs_write, "five batches do not fit beside half of the reserve: they are not begun"
    disk.capacity += 200 * KIB
    settle(store)
    assert size_of(disk) < MIB, "moved, and begun a new segment at once to let the old one go"
    bodies_are_right(store, [batch(number, size=100 * KIB) for number in range(15, 20)])
    store.close()


def test_damage_met_while_moving_is_reported_and_kept_until_it_is_dropped() -> None:
    """docs/protocol.md, section 6: quarantined, reported, refetched; never served, never silently dropped."""
    disk, store = filled(6)
    position = store._index.get(5)
    assert position is not None
    disk.flip(segment_name(position.segment), position.offset + 100)
    store.drop([0, 1, 2, 3])
    assert settle(store) == (5,)
    bodies_are_right(store, [batch(4, size=1_000)])
    for _ in range(3):
        assert 5 not in store
        with pytest.raises(DamagedBatch, match="batch number 5 was found damaged") as caught:
            store.read_slice(5)
        assert caught.value.number == 5
        assert segment_name(position.segment) in disk.list() or 5 in {d.record.number for d in store.damaged}
        store.abandon()  # moved entries may be torn away; the damage is kept all the same
        store, replayed = start(disk)
        assert [record.number for record in replayed if isinstance(record, BatchStored)] == [4]
        assert [item.record.number for item in store.damaged] == [5]
        settle(store)
    assert store.next_number == 6
    store.drop([5])
    store.close()
    store, _ = start(disk)
    assert not store.damaged
    store.close()


def test_a_segment_goes_though_a_batch_in_it_was_found_damaged_before() -> None:
    disk, store = filled(6)
    position = store._index.get(5)
    assert position is not None
    disk.flip(segment_name(position.segment), position.offset)
    with pytest.raises(DamagedBatch):
        store.read_slice(5)
    store.drop([0, 1, 2, 3])
    settle(store)
    store.roll([])
    store.commit()
    assert segment_name(position.segment) not in disk.list()
    assert store.unreadable == (5,)
    store.close()


@pytest.mark.parametrize("before", [False, True])
def test_a_batch_with_a_damaged_copy_is_served_from_its_source_unless_that_was_damaged(before: bool) -> None:
    disk, store = filled(4)

    def damage() -> None:
        position = store._index.get(3)
        assert position is not None
        disk.flip(segment_name(position.segment), position.offset)

    if before:
        damage()
        store.set_aside(3)
        store.roll([])
    store.drop([0, 1, 2])
    store.commit()
    store.compact()
    store.commit()
    if not before:
        damage()
    for number in (7, 8):
        store.append([tombstone(number)])
        store.commit()
    store.abandon()
    store, replayed = start(disk)
    assert tombstone(8) in replayed
    assert [item.record.number for item in store.damaged] == [3] * before
    if not before:
        bodies_are_right(store, [batch(3, size=1_000)])
    store.check()
    store.close()


def test_a_body_that_the_disk_cannot_read_costs_the_batch_and_not_the_node() -> None:
    """The header is read by itself: a scan's window would reach into the pages that fail."""
    disk, store = filled(6)
    position, read = store._index.get(5), disk.read
    assert position is not None

    def failing(at: str, offset: int, length: int) -> bytes:
        if (
            at == segment_name(position.segment)
            and offset < position.end
            and offset + length > position.offset
        ):
            raise OSError(errno.EIO, "Input/output error")
        return read(at, offset, length)

    disk.read = failing  # type: ignore[method-assign]
    store.drop([0, 1, 2, 3])
    assert store.raw_header(5) == batch(5, size=1_000).batch.raw
    assert settle(store) == (5,)
    bodies_are_right(store, [batch(4, size=1_000)])
    store.close()


def test_damage_met_by_the_commit_whose_copy_is_not_known_to_be_durable_cuts_nothing_after_it() -> None:
    """A copy of a damaged body must not look like a torn write: later records may have been promised."""
    disk, store = filled(3)
    position = store._index.get(2)
    assert position is not None
    disk.flip(segment_name(position.segment), position.offset)
    store.drop([0, 1])
    store.commit()
    assert store.compact() == (2,)
    store.append([tombstone(7)])
    store.commit()
    disk = disk.crash()
    store, replayed = start(disk)
    assert tombstone(7) in replayed
    assert not store.notes
    with pytest.raises(DamagedBatch):
        store.read_slice(2)
    store.close()


def test_a_full_disk_takes_acks_and_gives_space_back() -> None:
    """docs/protocol.md, section 6: when publishing is refused, ACK goes on, and space is freed."""
    disk = MemoryDisk(capacity=20 * MIB)
    reserve = 6 * MIB
    store, _ = start(disk, segment_bytes=2 * MIB, reserve_bytes=reserve)
    number = 0
    while store.free_bytes > reserve + 200 * KIB:
        store.append([batch(number, size=100 * KIB)])
        number += 1
        commit(store)
    assert number > 100
    for at in range(0, 10_000, 10):  # 10,000 acks; the core drops nothing yet
        store.append([tombstone(at + index) for index in range(10)])
        commit(store)
        assert store.free_bytes > reserve // 2 - 2 * MIB, "copies leave room for more acks"
    kept = list(range(0, number, 20))  # one in each segment: without moving them no file could go
    store.drop([at for at in range(number) if at % 20])
    least = store.free_bytes
    while True:
        commit(store)
        least = min(least, store.free_bytes)
        if not store.needs_write:
            break
    assert least > reserve // 2 - 400 * KIB
    assert store.free_bytes > reserve + 5 * MIB, "publishing can go on"
    bodies_are_right(store, [batch(at, size=100 * KIB) for at in kept])
    assert size_of(disk) < 2 * len(kept) * 100 * KIB + 3 * 2 * MIB
    store.close()
