"""The format version of a directory: when it has to be raised, and that a newer one is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from quorumq.core.values.errors import StorageError
from quorumq.storage import records
from quorumq.storage.segment import FORMAT_VERSION

TYPES_OF = {1: {1, 2, 3, 4, 5, 6, 7, *range(16, 28), *range(30, 36), 37, *range(40, 47)}}
"""The types of records that each format version has."""


def test_a_new_type_of_record_comes_with_a_new_format_version() -> None:
    assert set(records.CLASS_OF) == TYPES_OF[FORMAT_VERSION]
    assert max(TYPES_OF) == FORMAT_VERSION


def test_a_directory_of_a_newer_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    newer = FORMAT_VERSION + 1
    writer = (
        "import sys\n"
        "from quorumq.storage import log\n"
        f"log.FORMAT_VERSION = {newer}\n"
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
        from quorumq.storage.journal import Journal

        with pytest.raises(
            StorageError,
            match=rf"format version {newer} by a newer quorumq; this one reads versions 1 to {FORMAT_VERSION}\. "
            r"Start this node with the release that wrote it, or a newer one\. .*keep the directory as it is",
        ):
            Journal.open(str(tmp_path), node="n1", cluster_id="test", salvage=salvage)
    assert before == {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.name != "LOCK"}
