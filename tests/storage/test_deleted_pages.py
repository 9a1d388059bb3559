"""Pages of deleted names: kept by their number in any segment, as batches are."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from quorumq.core.messages.records import DeletedPage, JournalRecord, Reserved
from quorumq.core.values.types import Now
from quorumq.storage.journal import Journal
from quorumq.storage.offline import OfflineDirectory
from sim.memory_disk import MemoryDisk
from tests.storage.samples import batch, copy_out, open_store, started

ENTRIES = 400


def page(number: int, index: int = 0, entries: int = ENTRIES) -> DeletedPage:
    return DeletedPage(
        number, index, b"k" * 8, number.to_bytes(16, "big"), bytes([number % 256]) * 52 * entries
    )


def drop(store: Journal, numbers: Iterable[int]) -> None:
    """Drop records that are needed no longer."""
    store.drop(numbers)


def pages(records: list[JournalRecord]) -> dict[int, DeletedPage]:
    return {record.number: record for record in records if isinstance(record, DeletedPage)}


def snapshot(records: list[JournalRecord]) -> list[JournalRecord]:
    return [record for record in records if isinstance(record, Reserved)]


def again(disk: MemoryDisk) -> tuple[Journal, dict[int, DeletedPage]]:
    store = open_store(disk)
    replayed = list(store.replayed)
    store.roll(snapshot(replayed))
    store.commit()
    store.check()
    return store, pages(replayed)


def test_a_page_stays_through_rolls_and_no_snapshot_repeats_it() -> None:
    disk, store, _ = started()
    store.append([page(1), batch(2), page(3, 1)])
    store.commit()
    sizes = []
    for turn in range(3):
        store.append([Reserved(turn)])
        store.roll([Reserved(turn)])
        store.commit()
        store.check()
        sizes.append(store.snapshot_bytes)
    assert max(sizes) < 1000 < ENTRIES * 52
    store.close()
    store, there = again(disk)
    assert there == {1: page(1), 3: page(3, 1)}
    assert store.next_number == 4
    store.append([page(4)])
    drop(store, [1])
    store.close()
    store, there = again(disk)
    assert there == {3: page(3, 1), 4: page(4)}, "the newer one of its index"
    store.close()


def test_a_page_of_a_sparse_segment_is_written_again_and_the_segment_goes() -> None:
    disk, store, _ = started()
    store.append([page(1), *(batch(number, size=30_000) for number in range(2, 6))])
    store.roll([])
    store.commit()
    drop(store, range(2, 6))
    store.commit()
    position = store.position
    while store.compact() or store.needs_write:
        store.commit()
    assert store.position == position, "it was counted once"
    store.roll([])
    store.commit()
    store.check()
    assert len(store.live) == 2, "that of the copy, and the new one"
    store.close()
    store, there = again(disk)
    assert store.position == position
    assert there == {1: page(1)}
    assert 1 in store
    drop(store, [1])
    store.commit()
    store.roll([])
    store.commit()
    assert sum(disk.size(name) for name in disk.list()) < ENTRIES * 52
    store.close()


@pytest.mark.parametrize("kept", [0, 1, 2])
def test_after_a_crash_the_older_page_or_both_are_there(kept: int) -> None:
    """A crash loses a tail of what was not durable: the new page, or the end of the old one alone."""
    disk, store, _ = started()
    store.append([page(1)])
    store.commit()
    store.append([page(2)] if kept else [])
    if kept == 2:
        drop(store, [1])
    store.commit()
    store.abandon()
    store, there = again(disk)
    assert set(there) == [{1}, {1, 2}, {2}][kept]
    store.close()


def test_salvage_and_the_offline_reader_take_pages(tmp_path: object) -> None:
    disk, store, _ = started()
    store.append([page(1), batch(2), page(3, 1)])
    store.close()
    store, there = again(disk)
    store.close()
    copy_out(disk, tmp_path)  # type: ignore[arg-type]
    with OfflineDirectory(tmp_path, Now(0.0, 0)) as directory:  # type: ignore[arg-type]
        assert len(directory.topics()) == 1, "that of the batch"
    salvaged = open_store(disk, salvage=True)
    assert pages(list(salvaged.replayed)) == there
    salvaged.abandon()


def test_the_bytes_of_a_page_on_disk() -> None:
    disk, store, _ = started()
    store.commit()
    before = sum(disk.size(name) for name in disk.list())
    store.append([page(number, number, 2000) for number in range(50)])
    store.commit()
    assert sum(disk.size(name) for name in disk.list()) - before <= 64 * 50 * 2000
    store.close()
