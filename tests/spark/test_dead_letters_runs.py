"""`python -m spark deadletters` over data directories, run after run."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from quorumq.core.values.types import Kind, Record, Span
from tests.spark.cluster_on_disk import HOUR_MS, PRODUCER_ID, START_MS, DiskCluster, die_at


def analysed(
    data: Iterable[Path], out: Path, *more: str, code: int = 0
) -> tuple[dict[str, Any], subprocess.CompletedProcess[str]]:
    """Run the job; return its summary, and the process."""
    command = [sys.executable, "-m", "spark", "deadletters", "--out", str(out), "--json", *more]
    command += [word for path in data for word in ("--data", str(path))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    summary = json.loads(done.stdout)
    assert summary == json.loads((out / "summary.json").read_text())
    return summary, done


@pytest.mark.soak
def test_a_second_run_says_what_is_new_back_or_gone_and_what_is_damaged(tmp_path: Path) -> None:
    cluster = DiskCluster(tmp_path / "nodes", segment_bytes=1 << 12)
    for seq in range(40):
        cluster.publish(cluster.keys[0], (Span(PRODUCER_ID, seq, seq + 1),), START_MS - HOUR_MS)
    die_at(cluster, 0, "lasting", START_MS)
    die_at(cluster, 1, "lasting", START_MS + 1)
    die_at(cluster, 2, "mended", START_MS + 2)
    die_at(cluster, 3, "returning", START_MS + 3)
    cluster.resolve(cluster.keys[0], "billing", Span(PRODUCER_ID, 3, 4), Record(0, 1, Kind.OPEN))
    cluster.commit()
    first, _ = analysed(cluster.data, tmp_path / "first", "--as-of", "2026-11-22T14:00:00Z")
    assert (first["status"], first["dead"], first["problems"]["count"]) == (None, 3, 0)

    die_at(cluster, 4, "lasting", START_MS + 3 * HOUR_MS)
    die_at(cluster, 3, "returning", START_MS + 3 * HOUR_MS + 1, n=1)
    die_at(cluster, 5, "unheard-of", START_MS + 3 * HOUR_MS + 2)
    cluster.resolve(cluster.keys[0], "billing", Span(PRODUCER_ID, 2, 3), Record(0, 0, Kind.ACKED))
    cluster.commit()
    cluster.close()
    previous = ("--previous", str(tmp_path / "first"), "--as-of", "2026-11-22T18:00:00Z")
    with sorted(cluster.data[1].glob("*.journal"))[-1].open("ab") as newest:
        newest.write(b"\x01\x02")  # as of a node that is running: the beginning of its next write
    second, _ = analysed(cluster.data, tmp_path / "second", "--strict", *previous)
    assert (second["problems"]["count"], second["problems"]["harmless"]) == (1, 1)
    assert second["status"] == {"new": 1, "regressed": 1, "ongoing": 1, "gone": 1}
    page = (tmp_path / "second" / "report.html").read_text()
    assert [name for name in ("lasting", "mended", "returning", "unheard-of") if name not in page] == []

    mails, _ = analysed(cluster.data, tmp_path / "mails", "--topic", "mails", *previous)
    assert mails["status"] == {"new": 0, "regressed": 0, "ongoing": 0, "gone": 0}, "other topics are not gone"
    one, done = analysed(cluster.data[:1], tmp_path / "one", "--strict", *previous, code=1)
    assert {row["node"] for row in one["problems"]["rows"]} == {"n2", "n3"}

    segment = sorted(cluster.data[0].glob("*.journal"))[0]
    damaged = bytearray(segment.read_bytes())
    damaged[len(damaged) // 2] ^= 0x40
    segment.write_bytes(damaged)
    third, done = analysed(cluster.data, tmp_path / "third", "--strict", *previous, code=1)
    assert third["problems"]["count"] >= 1
    assert third["problems"]["rows"][0]["path"] == str(cluster.data[0])
    assert "could not be read" in done.stderr
    assert str(cluster.data[0]) in (tmp_path / "third" / "report.html").read_text()
    assert third["dead"] == second["dead"], "the other replicas have it all"
    analysed(cluster.data, tmp_path / "loose", *previous)
