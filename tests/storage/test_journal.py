"""Append, commit, roll, replay: a journal on a real directory and in memory."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from quorumq.core.messages import SpanRecord
from quorumq.core.messages.records import BatchStored, DirectoryMade, RecordsMerged, Reserved
from quorumq.core.values.errors import StorageError
from quorumq.core.values.types import Span, Stamp
from quorumq.storage.damage import DamagedBatch
from quorumq.storage.disk import Disk, RealDisk
from quorumq.storage.journal import Journal
from quorumq.storage.records import decode_record, encode_record
from quorumq.storage.segment import salt_of
from quorumq.wire import cbor
from sim.memory_disk import MemoryDisk
from tests.storage.samples import (
    DIRECTORY,
    PARTITION,
    PRODUCER_ID,
    bare,
    batch,
    bodies_are_right,
    clean_stop,
    dead,
    every_kind,
    newest,
    open_store,
    small_state,
    start,
    started,
    tombstone,
)

MadeDirectory = DirectoryMade("n1", "test", DIRECTORY)


@pytest.fixture(params=["real", "memory"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    return RealDisk(tmp_path / "data" / "n1") if request.param == "real" else MemoryDisk()


def reopened(disk: Disk, **options: int) -> tuple[Journal, list[object]]:
    store, replayed = start(disk, **options)
    return store, list(replayed)


def test_a_new_directory_replays_whose_it_is_and_nothing_else(disk: Disk) -> None:
    store, replayed = start(disk)
    assert replayed == [MadeDirectory]
    assert store.fresh
    assert store.directory == DIRECTORY
    store.close()


def test_every_kind_of_record_comes_back_as_it_was_in_order_batches_last(disk: Disk) -> None:
    written = every_kind()
    store, _ = start(disk)
    assert store.append(written) > store.durable
    store.commit()
    store.append([clean_stop()])
    store.close()
    store, replayed = reopened(disk)
    small = [record for record in written if not isinstance(record, BatchStored)]
    assert replayed == [*small, bare(batch(0)), clean_stop()]
    assert not store.fresh
    bodies_are_right(store, replayed)
    store.close()


def test_replayed_state_is_replayed_again_from_the_snapshot(disk: Disk) -> None:
    """Small state moves into each new snapshot; batches stay in their segments and are found through the list."""
    written = every_kind()
    store, _ = start(disk)
    store.append(written)
    store.close()
    for turn in range(4):
        store, replayed = reopened(disk)
        assert sorted(map(repr, replayed)) == sorted(repr(bare(record)) for record in written)
        store.append([batch(turn + 1), Reserved(turn)])
        written += [batch(turn + 1), Reserved(turn)]
        bodies_are_right(store, replayed)
        store.close()


def test_clean_stop_counts_only_as_the_very_last_record(disk: Disk) -> None:
    store, _ = start(disk)
    store.append([clean_stop(), Reserved(1)])
    store.close()
    store, replayed = reopened(disk)
    assert replayed == [MadeDirectory, Reserved(1)]
    store.append([clean_stop()])
    store.close()
    store, replayed = reopened(disk)
    assert replayed[-1] == clean_stop()
    store.close()
    store, replayed = reopened(disk)
    assert clean_stop() not in replayed, "the start that saw it has used it up"
    store.close()


def test_rolling_keeps_batches_of_all_segments(disk: Disk) -> None:
    store, _ = start(disk, segment_bytes=2_000)
    numbers = 0
    rolls = 0
    for _ in range(60):
        store.append([batch(numbers), tombstone(numbers)])
        numbers += 1
        if store.should_roll:
            store.roll([tombstone(n) for n in range(numbers)][-3:])
            rolls += 1
        store.commit()
        store.check()
    assert rolls >= 4
    assert sum(store.live.values()) == numbers
    store.close()
    store, replayed = reopened(disk)
    assert [r.number for r in replayed if isinstance(r, BatchStored)] == list(range(numbers))
    assert sum(isinstance(r, RecordsMerged) for r in replayed) < numbers, (
        "older small state is in no snapshot"
    )
    bodies_are_right(store, replayed)
    assert len(store) == numbers
    store.close()


def test_the_position_counts_what_was_appended_and_nothing_that_a_snapshot_repeats(disk: Disk) -> None:
    """docs/protocol.md, RECOVERY: a position before the one reported to a peer shows an older copy of the directory."""
    store, _ = start(disk, segment_bytes=1_000)
    assert store.position == 0
    for number in range(20):
        store.append([batch(number), Reserved(number)])
        assert store.position == 2 * number, "what is not durable does not count yet"
        store.commit()
        if store.should_roll:
            store.roll([Reserved(n) for n in range(number + 1)])
            store.commit()
        assert store.position == 2 * number + 2
    store.append([clean_stop()])
    store.close()
    for _ in range(3):
        store, _ = reopened(disk, segment_bytes=1_000)
        assert store.position == 41
        store.close()


def test_appending_after_a_roll_before_its_commit_keeps_the_order(disk: Disk) -> None:
    store, _ = start(disk)
    store.append([batch(0)])
    store.roll([Reserved(1)])
    store.append([batch(1), Reserved(2)])
    store.roll([Reserved(2)])
    store.append([batch(2)])
    store.commit()
    bodies_are_right(store, [batch(0), batch(1), batch(2)])
    store.close()
    store, replayed = reopened(disk)
    assert replayed == [MadeDirectory, Reserved(2), bare(batch(0)), bare(batch(1)), bare(batch(2))]
    store.close()


def test_a_batch_is_served_before_while_and_after_it_is_written(disk: Disk) -> None:
    store, _ = start(disk)
    record = batch(7, size=100)
    body, raw = bytes(record.batch.body), record.batch.raw

    def served() -> None:
        assert bytes(store.read_slice(7)) == body
        assert bytes(store.read_slice(7, 10, 20)) == body[10:20]
        assert bytes(store.read_slice(7, 10, 20, check=False)) == body[10:20]
        assert store.raw_header(7) == raw

    store.append([record])
    served()
    commit = store.begin_commit()
    served()
    commit.run()
    served()
    store.finish(commit)
    served()
    with pytest.raises(KeyError, match="batch number 8"):
        store.read_slice(8)
    store.close()


def test_a_commit_covers_what_was_appended_before_it_began(disk: Disk) -> None:
    store, _ = start(disk)
    first = store.append([Reserved(1)])
    commit = store.begin_commit()
    second = store.append([Reserved(2)])
    commit.run()
    assert first > store.durable, "not before finish: the loop has not heard of it"
    assert store.finish(commit) == first == store.durable < second
    assert store.needs_write
    store.commit()
    assert store.durable == second
    assert not store.needs_write
    store.close()


def test_a_batch_that_waits_for_the_second_commit_is_served_after_the_first(disk: Disk) -> None:
    store, _ = start(disk)
    store.append([batch(0)])
    commit = store.begin_commit()
    store.append([batch(1)])
    commit.run()
    store.finish(commit)
    bodies_are_right(store, [batch(0), batch(1)])
    store.close()


def test_a_commit_of_the_old_segment_says_nothing_about_the_new_one() -> None:
    """A roll overtakes a commit in flight: the new segment's records must not claim the old one's offsets."""
    disk, store, _ = started()
    store.append([batch(0, size=10_000)])
    commit = store.begin_commit()
    store.roll([])
    store.append([batch(1, size=100)])
    commit.run()
    store.finish(commit)
    store.check()
    store.append([batch(2)])
    store.commit()
    store.abandon()
    name = newest(disk)
    data = disk.read(name, 0, 1 << 20)
    # Unsynced when batch 2 was written: a torn tail, as far as is known.
    disk.flip(name, data.index(b"payload 1"))
    _, replayed = start(disk)
    assert [r.number for r in replayed if isinstance(r, BatchStored)] == [0]


def test_bodies_are_written_from_where_they_are() -> None:
    """A 64 KiB batch is not copied on its way to the disk: the buffer that was appended is the one that is written."""
    disk, store, _ = started()
    record = batch(1, size=64 * 1024)
    body = memoryview(bytes(record.batch.body))
    seen: list[object] = []
    append = disk.append
    disk.append = lambda file, buffers: (seen.extend(buffers), append(file, buffers))[1]  # type: ignore[method-assign]
    store.append([record._replace(batch=record.batch._replace(body=body))])
    store.commit()
    assert any(buffer is body for buffer in seen)


def test_a_second_process_is_refused_by_pid(tmp_path: Path) -> None:
    store, _ = start(RealDisk(tmp_path))
    with pytest.raises(StorageError, match=f"in use by another quorumq process \\(pid {os.getpid()}\\)"):
        open_store(RealDisk(tmp_path))
    store.close()
    start(RealDisk(tmp_path))[0].close()


def test_a_directory_of_another_node_or_cluster_is_refused(disk: Disk) -> None:
    start(disk)[0].close()
    for node, cluster in (("n2", "test"), ("n1", "other")):
        with pytest.raises(StorageError, match="is the data directory of node 'n1' of cluster 'test'"):
            Journal.open(disk, node=node, cluster_id=cluster)
    start(disk)[0].close()


def test_an_older_segment_that_is_gone_short_or_swapped_is_named(tmp_path: Path) -> None:
    def fill(at: Path, directory: int) -> None:
        for number in range(3):
            store = Journal.open(at, node="n1", cluster_id="test", new_directory_id=lambda: directory)
            store.roll(small_state(list(store.replayed)))
            store.append([batch(number)])
            store.close()

    fill(tmp_path / "a", 1)
    fill(tmp_path / "b", 2)
    older = "000000000002.journal"
    path = tmp_path / "a" / older
    good = path.read_bytes()
    damages: list[tuple[Callable[[], object], str]] = [
        (path.unlink, f"{older} is missing"),
        (lambda: path.write_bytes(good[:100]), f"{older} is damaged at byte 100"),
        (lambda: path.write_bytes((tmp_path / "b" / older).read_bytes()), "another data directory"),
        (
            lambda: path.write_bytes((tmp_path / "a" / "000000000001.journal").read_bytes().ljust(999)),
            "renamed",
        ),
    ]
    for damage, text in damages:
        damage()
        with pytest.raises(StorageError, match=text):
            start(RealDisk(tmp_path / "a"))
        path.write_bytes(good)
    store, replayed = start(RealDisk(tmp_path / "a"))
    assert [r.number for r in replayed if isinstance(r, BatchStored)] == [0, 1, 2]
    store.close()


def test_files_that_are_not_segments_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    start(RealDisk(tmp_path))[0].close()
    start(RealDisk(tmp_path))[0].close()
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_an_unknown_record_or_version_asks_for_the_newer_program() -> None:
    from quorumq.storage.segment import encode_frame
    from quorumq.wire import cbor

    disk, store, _ = started()
    store._pending.append(
        encode_frame(b"\x83" + cbor.uint(99) + cbor.uint(0) + cbor.uint(1), 0, 0, salt_of(DIRECTORY, 1))
    )
    store.commit()
    store.abandon()
    with pytest.raises(
        StorageError, match=r"type 99, which this version of quorumq does not know.*newer version"
    ):
        start(disk)


def test_a_full_disk_does_not_start_a_roll() -> None:
    disk = MemoryDisk(capacity=1 << 20)
    store, _ = start(disk, segment_bytes=1_000)
    store.append([batch(0, size=2_000)])
    store.commit()
    assert not store.should_roll, "less than a snapshot and a MiB is free"
    disk.capacity = 1 << 22
    assert store.should_roll


def test_a_snapshot_record_over_the_limit_is_written_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    from quorumq.storage import segment, tail

    monkeypatch.setattr(tail, "HEADER_BYTES_MAX", 400)
    monkeypatch.setattr(segment, "HEADER_BYTES_MAX", 400)
    entries = tuple(entry for n in range(50) for entry in tombstone(n).entries)
    large = tombstone(0)._replace(entries=entries)
    disk = MemoryDisk()
    store = open_store(disk)
    list(store.replayed)
    store.roll([large])
    store.commit()
    with pytest.raises(StorageError, match="over the journal's limits"):
        store.append([large])
    store.close()
    _, replayed = start(disk)
    assert tuple([entry for r in replayed if isinstance(r, RecordsMerged) for entry in r.entries]) == entries
    assert len(replayed) > 2


def test_a_dropped_batch_is_gone_and_its_segment_goes_with_the_next_roll(disk: Disk) -> None:
    store, _ = start(disk)
    for number in range(4):
        store.append([batch(2 * number), batch(2 * number + 1)])
        store.roll([])
    store.commit()
    before = disk.list()
    first, second, *_ = store.live
    assert store.drop([0, 1, 2, 99]) > store.durable
    with pytest.raises(KeyError, match="batch number 1"):
        store.read_slice(1)
    assert (store.live[first], store.live[second]) == (0, 1)
    store.commit()
    store.check()
    assert disk.list() == before, "no file goes before its successor says so"
    store.abandon()
    store, replayed = reopened(disk)
    assert [r.number for r in replayed if isinstance(r, BatchStored)] == [3, 4, 5, 6, 7]
    assert f"{first:012d}.journal" not in disk.list()
    assert f"{second:012d}.journal" in disk.list()
    assert store.next_number == 8
    store.close()
    for _ in range(2):  # now it is in the snapshot
        store, replayed = reopened(disk)
        assert [r.number for r in replayed if isinstance(r, BatchStored)] == [3, 4, 5, 6, 7]
        bodies_are_right(store, replayed)
        store.close()


def test_segments_without_batches_are_deleted_by_themselves(disk: Disk) -> None:
    store, _ = start(disk)
    for time in range(5):
        store.append([Reserved(time)])
        store.roll([Reserved(time)])
        store.commit()
    assert len(disk.list()) <= 2
    store.close()
    store, replayed = reopened(disk)
    assert replayed == [MadeDirectory, Reserved(4)]
    store.close()


def test_a_failed_sync_poisons_the_journal_for_good() -> None:
    """docs/protocol.md, G1: after a failed fsync nothing is reported durable, and no later sync is believed."""
    for failing in ("write", "new segment", "directory"):
        disk, store, _ = started()
        store.append([batch(0)])
        durable = store.commit()
        store.append([batch(1)])
        if failing != "write":
            store.roll([])
        if failing == "directory":
            disk.on_operation = lambda operation, name, disk=disk: setattr(  # type: ignore[misc]
                disk, "fail_syncs", int(operation == "sync_dir")
            )
        else:
            disk.fail_syncs = 1
        commit = store.begin_commit()
        with pytest.raises(StorageError, match="the node must stop"):
            commit.run()
        disk.on_operation = None
        calls: list[Callable[[], object]] = [
            lambda store=store, commit=commit: store.finish(commit),  # type: ignore[misc]
            lambda store=store: store.append([Reserved(1)]),  # type: ignore[misc]
            store.commit,
            store.begin_commit,
            lambda store=store: store.roll([]),  # type: ignore[misc]
            lambda store=store: store.read_slice(0),  # type: ignore[misc]
        ]
        for call in calls:
            with pytest.raises(StorageError, match="the node must stop"):
                call()
        assert store.durable == durable
        store.close()
        _, replayed = start(disk.crash())
        # The old segment is synced before a new one is begun, so batch 1 may be there; it was never reported.
        expected = [0, 1] if failing == "directory" else [0]
        assert [r.number for r in replayed if isinstance(r, BatchStored)] == expected, failing


def test_a_tail_that_only_the_page_cache_has_is_written_again() -> None:
    """After a failed fsync the bytes read fine and are lost by the next power cut: the start must not build on them."""
    disk, store, _ = started()
    store.append([batch(0)])
    disk.fail_syncs = 1
    with pytest.raises(StorageError):
        store.commit()
    store.abandon()
    # The process starts again, the machine did not stop: batch 0 is still readable.
    store, replayed = start(disk)
    assert bare(batch(0)) in replayed
    assert store.append([]) == store.durable
    bodies_are_right(store, replayed)  # from the new segment: the old one held nothing else and is gone
    survivor = disk.crash()
    store, replayed = start(survivor)
    assert bare(batch(0)) in replayed, "it was reported to the core, so it has to survive from then on"
    bodies_are_right(store, replayed)


def test_damage_found_while_serving_is_an_error_for_that_batch_alone() -> None:
    disk, store, _ = started()
    store.append([batch(0), batch(1)])
    store.commit()
    name = newest(disk)
    at = disk.read(name, 0, 1 << 20).index(b"payload 0")
    disk.flip(name, at)
    with pytest.raises(DamagedBatch, match=f"{name}.*fetch it from another replica") as caught:
        store.read_slice(0, 20, 30)
    assert caught.value.number == 0
    bodies_are_right(store, [batch(1)])
    store.close()
    for _ in range(3):  # said again at every start, although older segments are not read in full
        store, replayed = start(disk)
        assert [r.number for r in replayed if isinstance(r, BatchStored)] == [1]
        assert [item.record.number for item in store.damaged] == [0]
        store.close()


def test_the_index_takes_numbers_in_any_order() -> None:
    _, store, _ = started()
    for number in (5, 3, 9, 1):
        store.append([batch(number)])
    with pytest.raises(AssertionError, match="batch number 3 is taken"):
        store.append([batch(3)])
    store.abandon()


def test_dead_letters_of_a_span_keep_their_history() -> None:
    disk, store, _ = started()
    store.append([dead(3, "x" * 5_000)])
    store.close()
    _, replayed = start(disk)
    (entry,) = replayed[-1].entries  # type: ignore[union-attr]
    assert entry.span == Span(PRODUCER_ID, 3, 4)
    assert entry.record.death.message == "x" * 5_000


def test_a_dead_letter_of_many_messages_is_written_once_and_each_has_its_ballot() -> None:
    disk, store, _ = started()
    before = disk.size(newest(disk))
    (of_one,) = dead(0, "x" * 10_000).entries
    (of_another,) = dead(1, "y" * 10_000).entries
    assert of_one.record.death is not None

    def entry(number: int) -> SpanRecord:
        span = Span(PRODUCER_ID, number, number + 1)
        death = of_one.record.death._replace(ballot=Stamp(number, "n1"), redrives=number % 3)  # type: ignore[union-attr]
        return SpanRecord(span, of_one.record._replace(death=death, n=number % 3))

    acked = tombstone(2).entries[0]
    merged = RecordsMerged(PARTITION, "billing", (of_another, acked, *map(entry, range(10, 110))))
    store.append([merged])
    store.close()
    assert disk.size(newest(disk)) - before < 2 * 10_000 + 100 * 100
    assert start(disk.crash())[1][-1] == merged


@pytest.mark.parametrize("again", [(1, 2), (2, 0), (1, 0), (0, 1)])
def test_a_dead_letter_that_is_not_where_it_should_be_is_refused(again: tuple[int, int]) -> None:
    record = RecordsMerged(PARTITION, "billing", (dead(0).entries[0], tombstone(1).entries[0]), (again,))
    header, _ = encode_record(record, 0)
    with pytest.raises(cbor.BadValue, match="one of them has none"):
        decode_record(cbor.load(header))
