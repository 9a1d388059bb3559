"""Crashes at every byte and at every disk operation, flips of every byte: the journal afterwards.

The oracle is two sentences. The replayed records are a prefix of the appended ones, not shorter than reported
durable; small state that a snapshot repeats counts once. Batches that were forgotten are missing from it, all
of them whose forgetting was reported durable, and no others.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from quorumq.core.messages.records import BatchStored, CleanStopped, DirectoryMade, JournalRecord, Reserved
from quorumq.core.values.errors import StorageError
from quorumq.storage.journal import Journal
from quorumq.storage.records import BATCH_STORED, TYPE_OF
from sim.memory_disk import MemoryDisk
from tests.storage.samples import DIRECTORY, batch, bodies_are_right, clean_stop, newest
from tests.storage.samples import start as start_store
from tests.storage.writer import PowerCut, Writer, frames_of


def crashes(disk: MemoryDisk, seeds: int = 4) -> Iterator[Callable[[], MemoryDisk]]:
    """Ways in which the machine may stop now; each leaves ``disk`` as it is."""
    yield lambda: disk.clone().crash()
    yield lambda: disk.clone().crash(keep_bytes=1 << 30, keep_names=1 << 30)
    yield lambda: disk.clone().crash(keep_bytes=1 << 30)
    yield lambda: disk.clone().crash(keep_bytes=0, keep_names=1 << 30)
    for seed in range(seeds):
        yield lambda seed=seed: disk.clone().crash(random.Random(seed))  # type: ignore[misc]


def test_a_write_torn_at_every_byte_loses_only_what_was_not_durable() -> None:
    disk = MemoryDisk()
    writer = Writer(disk)
    writer.open()
    writer.append(4)
    writer.commit()
    writer.append(6)

    def cut(operation: str, name: str) -> None:
        if operation == "sync":
            raise PowerCut

    disk.on_operation = cut
    with pytest.raises(PowerCut):
        writer.commit()
    disk.on_operation = None
    unsynced = disk.unsynced_bytes(newest(disk))
    assert unsynced > 300
    lengths = set()
    for keep in range(unsynced + 1):
        again = Writer(disk.clone().crash(keep_bytes=keep), writer, segment_bytes=500)
        again.open()
        lengths.add(len(again.appended))
        if keep % 16 == 0:  # entries that one start gave to the core are there after the next crash
            again.append(2)
            Writer(again.disk.crash(), again).open()
    assert lengths == set(range(writer.durable, len(writer.appended) + 1)), "every prefix was seen"


def scenario(disk: MemoryDisk) -> Iterator[Writer]:
    """Three starts, some rolls, batches forgotten and moved; yields its writer whenever a new one takes over."""
    first = Writer(disk)
    yield first
    first.open()
    first.append(1)
    first.commit()
    first.close()
    writer = Writer(disk, first)
    yield writer
    writer.open()
    writer.append(4)
    writer.commit()
    writer.append(3)
    writer.roll()
    writer.append(9)
    writer.roll()
    writer.append(1)
    writer.commit()
    writer.append(2)
    writer.drop(writer.live()[:6:2])  # the segment of these is emptied, in two steps
    writer.commit()
    writer.compact(1)
    writer.append(1)
    writer.commit()
    writer.compact()
    writer.drop(writer.live()[1:2])
    writer.roll()
    writer.commit()
    assert min(writer.live()) < 5, "what was moved is needed still"
    assert len(writer.store.live) == 3, "and the segment that it was moved from is gone"
    writer.append(2)
    writer.close()
    second = Writer(disk, writer)
    yield second
    second.open()
    second.append(3)
    second.drop(second.live()[-3:-1])
    second.commit()


def operations_of(disk: MemoryDisk) -> int:
    for _ in scenario(disk):
        pass
    return disk.operations


def test_a_crash_before_every_disk_operation_of_start_commit_and_roll() -> None:
    total = operations_of(MemoryDisk())
    assert total > 25
    kinds = set()
    for stop in range(total):
        disk = MemoryDisk()

        def cut(operation: str, name: str, stop: int = stop, disk: MemoryDisk = disk) -> None:
            if disk.operations == stop:
                kinds.add(operation)
                raise PowerCut

        disk.on_operation = cut
        writer = None
        with pytest.raises(PowerCut):
            for writer in scenario(disk):  # noqa: B007 - the last one is who the crash hits
                pass
        disk.on_operation = None
        assert writer is not None
        for crash in crashes(disk):
            again = Writer(crash(), writer)
            again.open()
            again.append(2)
            again.commit()
            again.compact()
            Writer(again.disk.crash(), again).open()
    assert kinds == {"create", "append", "sync", "rename", "sync_dir", "delete"}


def test_a_crash_loses_the_clean_stop_rather_than_believing_a_torn_one() -> None:
    disk = MemoryDisk()
    store, _ = start_store(disk)
    store.append([batch(1)])
    store.commit()
    before = disk.size(newest(disk))
    store.append([clean_stop()])
    store.commit()
    whole = disk.size(newest(disk))
    store.abandon()
    for length in range(before, whole + 1):
        copy = disk.clone()
        copy.truncate(newest(copy), length)
        _, replayed = start_store(copy)
        assert (clean_stop() in replayed) == (length == whole)
    for junk in (b"\0", b"qjR1", bytes(100)):
        copy = disk.clone()
        copy._names[newest(copy)].data += junk
        _, replayed = start_store(copy)
        assert not any(isinstance(record, CleanStopped) for record in replayed), (
            "something was written after it"
        )


# ------------------------------------------------------------------------------------ flips


def flipped_journal() -> tuple[MemoryDisk, list[JournalRecord]]:
    """A newest segment with some commits behind its snapshot, and an older one."""
    disk = MemoryDisk()
    writer = Writer(disk)
    writer.open()
    writer.append(4)
    writer.commit()
    writer.roll()
    for _ in range(4):
        writer.append(3)
        writer.commit()
    writer.store.abandon()
    return disk, writer.appended


def test_a_flip_of_any_byte_of_the_newest_segment_is_damage_a_damaged_batch_or_a_cut() -> None:
    disk, appended = flipped_journal()
    name = newest(disk)
    frames = frames_of(disk, name)
    everything = [r for r in open_and_replay(disk.clone())[0] if not isinstance(r, DirectoryMade)]
    assert len(everything) == len(appended)
    seen = {"damage": 0, "batch": 0, "cut": 0}
    rng = random.Random(1)
    for index, frame in enumerate(frames):
        snapshot_end = next(f.end for f in frames if f.type == 2)
        for offset in range(frame.offset, frame.end):
            copy = disk.clone()
            copy.flip(name, offset, rng.randrange(8))
            witnessed = frame.offset < snapshot_end or any(
                later.durable > frame.offset for later in frames[index + 1 :]
            )
            in_body = offset >= frame.body_offset
            if witnessed and not in_body:
                seen["damage"] += 1
                with pytest.raises(
                    StorageError, match=f"{name} is damaged at byte {frame.offset}: .*quorumq export"
                ):
                    start_store(copy)
                continue
            replayed, damaged = open_and_replay(copy)
            if witnessed:
                seen["batch"] += 1
                assert frame.type == BATCH_STORED
                assert damaged == [frame.fields[2]]
                lost = [r for r in everything if isinstance(r, BatchStored) and r.number == damaged[0]]
                assert replayed[1:] == [r for r in everything if r not in lost]
            else:
                seen["cut"] += 1
                cut = [f.fields[2] for f in frames[index:] if f.type == BATCH_STORED]
                small = [r for r in everything if not isinstance(r, BatchStored)]
                kept = len(small) - sum(f.type >= 16 for f in frames[index:]) + len(cut)
                batches = [r for r in everything if isinstance(r, BatchStored) and r.number not in cut]
                assert replayed[1:] == small[:kept] + batches
                assert not damaged
    assert min(seen.values()) > 20, seen


def open_and_replay(disk: MemoryDisk) -> tuple[list[JournalRecord], list[int]]:
    store, replayed = start_store(disk)
    bodies_are_right(store, replayed)
    damaged = [item.record.number for item in store.damaged]
    for number in damaged:
        assert number not in store
    store.abandon()
    return replayed, damaged


def test_a_snapshot_that_cannot_be_read_is_not_taken_for_a_crash() -> None:
    """Falling back to the segment before would bring back acked messages, so the node refuses to start."""
    disk, _ = flipped_journal()
    copy = disk.clone()
    copy.truncate(newest(copy), frames_of(disk, newest(disk))[2].offset)
    with pytest.raises(StorageError, match=r"in the snapshot: it ends here"):
        start_store(copy)
    copy = disk.clone()
    gone = frames_of(disk, newest(disk))[1]
    assert gone.type == TYPE_OF[Reserved]
    del copy._names[newest(copy)].data[gone.offset : gone.end]
    with pytest.raises(StorageError, match=r"the snapshot has 1 records and says SnapshotEnd\(records=2\)"):
        start_store(copy)
    copy = disk.clone()
    copy.truncate(newest(copy), 0)
    with pytest.raises(StorageError, match=r"damaged at byte 0: the file is empty"):
        start_store(copy)


def test_a_record_inside_a_message_or_of_another_segment_proves_nothing() -> None:
    """A torn tail stays a torn tail even when a producer sent bytes that look like a record behind it."""
    disk = MemoryDisk()
    writer = Writer(disk)
    writer.open()
    writer.append(6)
    writer.commit()
    writer.append(3)
    writer.commit()  # its records say that much was durable
    writer.store.abandon()
    whole = disk.read(newest(disk), 0, 1 << 20)
    claims = [frame for frame in frames_of(disk, newest(disk)) if frame.durable][-1]
    record = whole[claims.offset : claims.end]
    twin = MemoryDisk()
    store = Journal.open(twin, node="n1", cluster_id="test", new_directory_id=lambda: DIRECTORY + 1)
    list(store.replayed)
    store.roll([])
    store.commit()
    store.abandon()
    name = newest(twin)
    twin._names[name].data += b"torn" + record
    store = Journal.open(twin, node="n1", cluster_id="test")
    list(store.replayed)
    assert len(store.notes) == 1
    assert "cut at byte" in store.notes[0]
    store.abandon()
