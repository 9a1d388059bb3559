"""Damage that is not confined to a batch: salvaging keeps the rest, reports it, and never differs silently."""

from __future__ import annotations

import errno
import random

import pytest

from quorumq.core.messages.records import BatchStored, DirectoryMade, JournalRecord, Reserved
from quorumq.core.values.errors import StorageError
from quorumq.storage.damage import DamagedBatch, DamagedDirectory
from quorumq.storage.journal import Journal
from sim.memory_disk import MemoryDisk
from tests.storage.samples import (
    DIRECTORY,
    bare,
    batch,
    bodies_are_right,
    newest,
    small_state,
    start,
    started,
    tombstone,
)
from tests.storage.writer import flips, frames_of, worn


def salvage(disk: MemoryDisk) -> tuple[Journal, list[JournalRecord]]:
    """Open for salvage, roll, commit."""
    store = Journal.open(
        disk, node="n1", cluster_id="test", new_directory_id=lambda: DIRECTORY + 9, salvage=True
    )
    replayed = list(store.replayed)
    store.roll(small_state(replayed))
    store.commit()
    store.check()
    return store, replayed


@pytest.mark.parametrize("every", [11, pytest.param(1, marks=pytest.mark.soak)])
def test_a_flip_anywhere_is_harmless_a_damaged_batch_or_said(every: int) -> None:
    writer = worn()
    live = set(writer.live())
    seen = {"sound": 0, "cut": 0, "batch": 0, "is not trusted": 0}
    rng = random.Random(every)
    for name, offset in flips(writer.disk, every):
        disk = writer.disk.clone()
        disk.flip(name, offset, rng.randrange(8))
        store, replayed = salvage(disk)
        there = {record.number for record in replayed if isinstance(record, BatchStored)}
        damaged = {item.record.number for item in store.damaged}
        for record in replayed:
            if isinstance(record, BatchStored):
                assert record == bare(writer.appended[record.number])
                try:
                    bodies_are_right(store, [record])
                except DamagedBatch:
                    damaged.add(record.number)
        others = [r for r in replayed if not isinstance(r, BatchStored | DirectoryMade)]
        everything = [r for r in writer.appended if not isinstance(r, BatchStored)]
        assert set(map(repr, others)) <= set(map(repr, everything)), "nothing that was not written"
        if store.not_trusted:
            seen["is not trusted"] += 1
            assert name in store.not_trusted
            assert store.position >= len(writer.appended), "never too low"
        elif store.notes:
            seen["cut"] += 1
            assert name == newest(writer.disk)
            if store.position == len(writer.appended):  # the last record says what was forgotten: one is back
                assert live < there | damaged
            else:
                assert store.position < len(writer.appended), "whoever was told the position sees it"
        else:
            seen["batch" if damaged else "sound"] += 1
            assert (there | damaged, others) == (live, everything)
            assert store.position == len(writer.appended)
        said = store.not_trusted
        store.append([batch(900), Reserved(900)])
        store.close()
        again, later = start(disk)  # it can be written again, and goes on saying so
        assert again.not_trusted == said
        assert Reserved(900) in later
        assert {r.number for r in later if isinstance(r, BatchStored)} >= (there | {900}) - damaged
        again.trusted()
        assert again.should_roll == bool(said)
        again.roll(small_state(later))
        again.close()
        again, later = start(disk)
        assert not again.not_trusted
        again.close()
    sound = seen.pop("sound")  # a flip in a part that is not needed any more
    assert min(seen.values()) > 2, (seen, sound)


def test_both_sides_of_the_damage_are_read() -> None:
    """The newest snapshot is gone: the small state of the older segments is left of it."""
    disk, store, _ = started()
    store.append([batch(0), tombstone(0), Reserved(1)])
    store.commit()
    store.roll([tombstone(0), Reserved(1)])
    store.append([batch(1), tombstone(1)])
    store.commit()
    store.append([batch(2)])
    store.commit()
    store.abandon()
    frames = frames_of(disk, newest(disk))
    disk.flip(newest(disk), frames[1].offset + 6)
    with pytest.raises(DamagedDirectory, match="in the snapshot"):
        start(disk)
    store, replayed = salvage(disk)
    assert tombstone(0) in replayed
    assert tombstone(1) in replayed
    assert [r.number for r in replayed if isinstance(r, BatchStored)] == [0, 1, 2]
    bodies_are_right(store, replayed)
    assert "is damaged at byte" in store.not_trusted
    assert any("cannot be read" in note for note in store.notes)
    store.close()


@pytest.mark.parametrize("which", [0, 1])
def test_a_segment_whose_first_record_is_gone_or_that_is_missing(which: int) -> None:
    writer = worn()
    names = writer.disk.list()
    for damage in ("flip", "missing"):
        disk = writer.disk.clone()
        if damage == "flip":
            disk.flip(names[-1 if which else 0], 9)
        elif which:
            continue  # without its newest segment a journal looks older: the position shows it
        else:
            disk.delete(names[0])
            disk.sync_dir()
        with pytest.raises(StorageError):
            start(disk)
        store, replayed = salvage(disk)
        assert store.not_trusted
        there = {r.number for r in replayed if isinstance(r, BatchStored)}
        assert there >= set(writer.live()) if damage == "flip" else there
        store.close()


def test_a_directory_of_which_nothing_can_be_read_is_set_aside_and_begun_again() -> None:
    disk, store, _ = started()
    store.append([batch(0)])
    store.close()
    (name,) = disk.list()
    disk.flip(name, 9)
    store, replayed = salvage(disk)
    assert replayed == [DirectoryMade("n1", "test", DIRECTORY + 9)]
    assert store.fresh
    assert name in store.not_trusted
    store.close()
    assert name + ".damaged" in disk.list()
    store, _ = start(disk)
    assert store.directory == DIRECTORY + 9
    assert name in store.not_trusted
    store.close()
    assert name + ".damaged" in disk.list()


def test_a_file_with_the_last_name_of_all_has_no_number_for_a_segment() -> None:
    """Found by `python -m tests.fuzz directories`: later records had a name that no start looked at."""
    disk = MemoryDisk()
    start(disk)[0].close()
    disk.close(disk.create("999999999999.journal"))
    before = disk.list()
    with pytest.raises(StorageError, match="there is no segment 1000000000000"):
        salvage(disk)
    assert disk.list() == before, "nothing was given up"


def test_pages_that_the_disk_cannot_read_are_damage_too() -> None:
    disk, store, _ = started()
    store.append([batch(number, size=3_000) for number in range(10)])
    store.commit()
    store.append([Reserved(1)])
    store.commit()
    store.append([Reserved(2)])
    store.close()
    name, read = newest(disk), disk.read

    def failing(at: str, offset: int, length: int) -> bytes:
        if at == name and offset < 12_288 and offset + length > 8_192:
            raise OSError(errno.EIO, "Input/output error")
        return read(at, offset, length)

    disk.read = failing  # type: ignore[method-assign]
    with pytest.raises(DamagedDirectory, match="Input/output error"):
        start(disk)
    store, replayed = salvage(disk)
    there = [r.number for r in replayed if isinstance(r, BatchStored)]
    lost = set(range(10)) - set(there)
    assert 1 <= len(lost) <= 4
    assert Reserved(2) in replayed
    assert store.not_trusted
    disk.read = read  # type: ignore[method-assign]
    bodies_are_right(store, replayed)
    store.close()


def test_a_file_that_may_not_be_read_is_no_damage() -> None:
    disk = worn().disk.crash()
    whole, read = disk.clone(), disk.read
    oldest, *_, last = (name for name in disk.list() if name.endswith(".journal"))
    disk.flip(last, 100)

    def refused(at: str, offset: int, length: int) -> bytes:
        if at == oldest:
            raise PermissionError(errno.EACCES, "Permission denied")
        return read(at, offset, length)

    disk.read = refused  # type: ignore[method-assign]
    with pytest.raises(StorageError, match="Permission denied"):
        salvage(disk)
    disk.read = read  # type: ignore[method-assign]
    batches = {r.number for r in salvage(disk)[1] if isinstance(r, BatchStored)}
    assert batches == {r.number for r in start(whole)[1] if isinstance(r, BatchStored)}, (
        "nothing was given up"
    )


def test_a_sound_directory_is_opened_as_ever() -> None:
    writer = worn()
    disk = writer.disk.clone()
    store, replayed = start(writer.disk)
    other, salvaged = salvage(disk)
    assert salvaged == replayed
    assert not other.not_trusted
    assert other.position == store.position


def test_a_directory_of_another_node_is_refused_all_the_same() -> None:
    disk = MemoryDisk()
    start(disk)[0].close()
    with pytest.raises(StorageError, match="is the data directory of node 'n1'"):
        Journal.open(disk, node="n2", cluster_id="test", salvage=True)
    start(disk)[0].close()
