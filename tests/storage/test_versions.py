"""Directories of other format versions: an older one is read and goes on in the newest, a newer one is refused."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from quorumq.core.errors import StorageError
from quorumq.core.nodecore import NodeCore
from quorumq.core.records import BatchStored, CleanStopped, JournalRecord, Reclaimed
from quorumq.core.state import NodeConfig
from quorumq.core.types import Kind, Now
from quorumq.storage import records
from quorumq.storage.disk import RealDisk
from quorumq.storage.inspect import inspect_segment
from quorumq.storage.segment import FORMAT_VERSION
from tests.storage.samples import (
    ORIGIN,
    PARTITION,
    bare,
    batch,
    bodies_are_right,
    clean_stop,
    every_kind,
    open_store,
    start,
    tombstone,
)

DATA = Path(__file__).parent / "data"

TYPES_OF = {
    1: {1, 2, 3, 4, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27},
    2: {1, 2, 3, 4, 5, 6, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 30, 31, 32, 40, 41, 42},
}
"""The types of records that each format version has."""


def test_a_new_type_of_record_comes_with_a_new_format_version() -> None:
    assert set(records.CLASS_OF) == TYPES_OF[FORMAT_VERSION]
    assert max(TYPES_OF) == FORMAT_VERSION


def versions(directory: Path) -> list[int]:
    """The format version of each segment, oldest first."""
    return [
        next(iter(inspect_segment(path))).fields["version"] for path in sorted(directory.glob("*.journal"))
    ]


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return Path(shutil.copytree(DATA / "version-1", tmp_path / "data"))


def written_by_version_1() -> list[JournalRecord]:
    stop = clean_stop()._replace(quarantine_s=0.0, recovered=())  # version 1 had neither
    return [
        *every_kind(),
        *(batch(number) for number in range(1, 5)),
        *(tombstone(number) for number in (1, 2)),
        stop,
    ]


def test_a_directory_of_version_1_is_read_whole_and_goes_on_in_the_newest(old: Path) -> None:
    assert versions(old) == [1, 1]
    store, replayed = start(RealDisk(old))
    expected = written_by_version_1()
    assert sorted(map(repr, replayed)) == sorted(repr(bare(record)) for record in expected)
    bodies_are_right(store, replayed)
    assert versions(old)[-1] == FORMAT_VERSION
    reclaimed = Reclaimed(PARTITION, (expected[7].batch.header.sections[0],), (0,))  # type: ignore[union-attr]
    store.append([batch(5), reclaimed])
    store.commit()
    store.close()

    store, replayed = start(RealDisk(old))
    batches = [record.number for record in replayed if isinstance(record, BatchStored)]
    assert sorted(batches) == [0, 1, 2, 3, 4, 5]
    bodies_are_right(store, replayed)
    assert reclaimed in replayed
    left = [record for record in replayed if not isinstance(record, BatchStored)]
    was = [record for record in expected if not isinstance(record, BatchStored | CleanStopped)]
    assert sorted(map(repr, left)) == sorted(map(repr, [*was, reclaimed]))
    store.close()


def test_a_core_starts_from_a_directory_of_version_1(old: Path) -> None:
    store = open_store(RealDisk(old))
    config = NodeConfig(node="n1", nodes=("n1", "n2", "n3"), cluster_id="test")
    now = Now(0.0, 1_790_000_000_000)
    core = NodeCore(config, store.replayed, nonce=1, directory=1, now=now, rng=random.Random(0))
    replica = core.replicas[PARTITION]
    assert replica.present.messages == 5
    kinds = [record.kind for _, record in replica.group("billing").records.items()]
    assert sorted(kinds) == [Kind.DEAD, Kind.ACKED, Kind.ACKED][: len(kinds)] or kinds
    assert core.state.incarnation.n == 2
    assert core.state.outdated(("n2",)) == ("n2",), "what was seen then spoke version 1"
    assert core.topics[PARTITION.topic].name == "orders"
    assert ORIGIN in dict.fromkeys(replica.present.origins())
    store.abandon()


def test_a_directory_of_a_newer_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    newer = FORMAT_VERSION + 1
    writer = (
        "import sys\n"
        "from quorumq.storage import journal\n"
        f"journal.FORMAT_VERSION = {newer}\n"
        "from quorumq.storage.disk import RealDisk\n"
        "from tests.storage.samples import every_kind, start\n"
        "store, _ = start(RealDisk(sys.argv[1]))\n"
        "store.append(every_kind()[1:])\n"
        "store.commit()\n"
        "store.close()\n"
    )
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", writer, str(tmp_path)], check=True, cwd=root)
    (tmp_path / "000000000009.journal.new").write_bytes(b"begun by the newer one")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.name != "LOCK"}
    for salvage in (False, True):
        from quorumq.storage.store import Store

        with pytest.raises(
            StorageError,
            match=rf"format version {newer} by a newer quorumq; this one reads versions 1 to {FORMAT_VERSION}\. "
            r"Start this node with the release that wrote it, or a newer one\. .*keep the directory as it is",
        ):
            Store.open(str(tmp_path), node="n1", cluster_id="test", salvage=salvage)
    assert before == {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.name != "LOCK"}
