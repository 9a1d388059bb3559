"""A full disk under the journal: nothing fails, a commit waits for room, and a start gets the last reserve."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorumq.core.messages.records import BatchStored, JournalRecord
from quorumq.core.values.errors import StorageError
from quorumq.core.values.limits import KIB, MIB
from quorumq.storage.commit import RESERVE_NAME, NoCapacity
from quorumq.storage.disk import RealDisk
from quorumq.storage.journal import Journal
from sim.memory_disk import MemoryDisk
from tests.storage.samples import batch, bodies_are_right, open_store, small_state, start, started, tombstone


def fill(disk: MemoryDisk, free: int = 0) -> None:
    """Keep ``free`` bytes of the disk free."""
    disk.capacity += free - disk.free_bytes()


def written(records: list[JournalRecord]) -> list[object]:
    return [record.number if isinstance(record, BatchStored) else record for record in records[1:]]


def stored(disk: MemoryDisk) -> list[object]:
    return written(start(disk)[1])


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["batch", "ack", "roll"]), st.integers(40, 3000), st.integers(0, 4000)),
        min_size=1,
        max_size=8,
    ),
    crash=st.booleans(),
    reserve=st.sampled_from([0, 8 * KIB]),
)
def test_a_commit_waits_for_space_and_writes_nothing_twice(
    steps: list[tuple[str, int, int]], crash: bool, reserve: int
) -> None:
    disk, store, _ = started(reserve_bytes=reserve)
    store.reserve()
    wrote: list[object] = []
    acks: list[JournalRecord] = []
    for number, (kind, size, free) in enumerate(steps):
        record = batch(number, size=size) if kind == "batch" else tombstone(number)
        if kind == "roll":
            store.roll(list(acks))
        else:
            store.append([record])
            wrote.append(number if kind == "batch" else record)
            acks += [record] if kind == "ack" else []
        fill(disk, free)
        commit = store.begin_commit()
        before = store.durable
        while True:
            try:
                commit.run()
                break
            except NoCapacity:
                assert store.durable == before, "nothing was promised"
                assert RESERVE_NAME not in disk.list(), "the last reserve went first"
                store.check_usable()
                if crash and number == len(steps) - 1:
                    disk = disk.crash(keep_bytes=1 << 20)
                    fill(disk, MIB)
                    on_disk = stored(disk)
                    assert sorted(map(str, on_disk)) in (
                        sorted(map(str, wrote)),
                        sorted(map(str, wrote[:-1])),
                    )
                    return
                fill(disk, disk.free_bytes() + 500)
        store.finish(commit)
        store.check()
    fill(disk, MIB)
    store.close()
    store, records = start(disk)
    assert sorted(map(str, written(records))) == sorted(map(str, wrote))
    bodies_are_right(store, records)


def test_other_errors_of_a_write_still_stop_the_node() -> None:
    disk, store, _ = started()

    def broken(operation: str, name: str) -> None:
        if operation == "append":
            raise OSError(errno.EIO, "Input/output error")

    store.append([batch(0)])
    disk.on_operation = broken
    with pytest.raises(StorageError, match="the node must stop") as caught:
        store.commit()
    assert not isinstance(caught.value, NoCapacity)


def test_the_last_reserve_is_made_where_there_is_space_and_given_up_once() -> None:
    disk, store, _ = started(reserve_bytes=64 * KIB)
    fill(disk, 10 * KIB)
    store.reserve()
    assert store.owed_bytes == 16 * KIB, "there is no room for it"
    assert RESERVE_NAME not in disk.list()
    fill(disk, 20 * KIB)
    store.reserve()
    store.reserve()
    assert store.owed_bytes == 0
    assert disk.size(RESERVE_NAME) == 16 * KIB
    fill(disk, 100)
    store.append([batch(0, size=1000)])
    store.commit()
    assert RESERVE_NAME not in disk.list()
    assert store.owed_bytes == 16 * KIB
    store.abandon()
    survivor = disk.crash(keep_bytes=0)
    assert 0 in stored(survivor), "it was reported durable"


def test_a_full_disk_lets_a_node_start_by_its_last_reserve_again_and_again() -> None:
    disk, store, _ = started(reserve_bytes=64 * KIB)
    store.reserve()
    store.append([tombstone(number) for number in range(0, 100, 2)])
    store.close()
    fill(disk)
    for _ in range(5):
        store, records = start(disk, reserve_bytes=64 * KIB)
        assert len(records) > 1
        store.close()
    assert RESERVE_NAME not in disk.list()


def test_a_start_without_any_space_fails_with_no_space_and_keeps_the_directory_as_it_was() -> None:
    disk, store, _ = started()
    store.append([batch(0)])
    store.close()
    before = {name: disk.read(name, 0, MIB) for name in disk.list()}
    fill(disk)
    for _ in range(2):
        with pytest.raises(NoCapacity, match="make room"):
            start(disk)
    assert {name: disk.read(name, 0, MIB) for name in disk.list()} == before
    fill(disk, 10 * KIB)
    assert stored(disk) == [0]


def churned(store: Journal, disk: MemoryDisk, count: int) -> int:
    """Settle the same message again and again, with small records; how much the directory took at most."""
    most = 0
    state = [tombstone(0)]
    for _ in range(count):
        store.append([tombstone(0)] * 100)
        store.commit()
        if store.should_roll:
            store.roll(state)
            store.commit()
        most = max(most, sum(map(disk.size, disk.list())))
    return most


def test_within_the_reserve_churn_of_small_records_never_fills_the_disk() -> None:
    disk, store, _ = started(reserve_bytes=64 * KIB)
    fill(disk, 50 * KIB)
    assert churned(store, disk, 40) < 40 * KIB
    store.abandon()
    disk, store, _ = started(reserve_bytes=64 * KIB)
    assert churned(store, disk, 40) > 200 * KIB, "outside of it a segment is written to its end"


def test_a_real_disk_that_fills_in_the_middle_of_a_write_goes_on_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, _ = start(RealDisk(tmp_path / "data"), reserve_bytes=64 * KIB)
    store.reserve()
    assert (tmp_path / "data" / RESERVE_NAME).stat().st_blocks * 512 >= 16 * KIB
    writev, capacity = os.writev, 5_000

    def limited(file: int, buffers: list[memoryview]) -> int:
        nonlocal capacity
        if not capacity:
            raise OSError(errno.EDQUOT, "Disk quota exceeded")
        count = writev(file, [buffers[0][:capacity]])
        capacity -= count
        return count

    monkeypatch.setattr(os, "writev", limited)
    store.append([batch(0, size=4_000), batch(1, size=4_000)])
    commit = store.begin_commit()
    with pytest.raises(NoCapacity):
        commit.run()
    assert not (tmp_path / "data" / RESERVE_NAME).exists()
    capacity = 100_000
    commit.run()
    store.finish(commit)
    store.close()
    monkeypatch.undo()
    store = open_store(RealDisk(tmp_path / "data"))
    on_disk = list(store.replayed)
    assert [record.number for record in on_disk if isinstance(record, BatchStored)] == [0, 1]
    store.roll(small_state(on_disk))
    store.commit()
    bodies_are_right(store, on_disk)
    store.close()
