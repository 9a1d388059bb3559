"""OUT on another file system: a view of this machine's disk, by Hadoop's own classes, without a session of Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.java_gateway import launch_gateway

from quorumq.core.values.errors import NotFound, UsageError
from spark.folders import Folder, folder_of, is_elsewhere
from spark.java import java_home
from spark.jobs.output import SUMMARY, Output
from spark.session import check_shared

OUTPUT = Output("audit", 1)


@pytest.fixture
def hadoop(tmp_path: Path) -> Iterator[Any]:
    """Java's classes and Hadoop's settings, as a session has them for a `Folder`. viewfs://view/all is `tmp_path`."""
    with java_home():
        gateway: Any = launch_gateway()
    settings = gateway.jvm.org.apache.hadoop.conf.Configuration()
    settings.set("fs.viewfs.mounttable.view.link./all", f"file://{tmp_path}")
    yield SimpleNamespace(_jvm=gateway.jvm, _jsc=SimpleNamespace(hadoopConfiguration=lambda: settings))
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


@pytest.mark.parametrize(
    ("name", "elsewhere"),
    [
        ("out", False),
        ("/a/out", False),
        ("file:/a", False),
        ("a:b/c", False),
        ("s3a://b/o", True),
        ("hdfs:/o", True),
    ],
)
def test_a_uri_is_another_file_systems(name: str, elsewhere: bool) -> None:
    assert is_elsewhere(name) == elsewhere


@pytest.mark.soak
def test_out_elsewhere_is_complete_or_not_there_and_locked_meanwhile(hadoop: Any, tmp_path: Path) -> None:
    out = folder_of("viewfs://view/all/out", hadoop)
    check_shared(out, False, "spark://a:7077")
    with pytest.raises(NotFound, match=r"viewfs://view.*/out has no summary\.json"):
        OUTPUT.read_head(out)

    def made(new: Folder, lines: int) -> None:
        assert lines, "it fails"
        (new / SUMMARY).local.write_text(json.dumps({**OUTPUT.mark, "lines": lines}))
        (new / "tables").local.mkdir()
        (new / "tables" / "runs").local.write_text("rows of the driver")

    with pytest.raises(AssertionError, match="it fails"), OUTPUT.staged(out, False) as new:
        made(new, 0)
    assert list(tmp_path.iterdir()) == []
    with OUTPUT.staged(out, False) as new:
        made(new, 1)
        with pytest.raises(UsageError, match=r"another run writes to .*delete viewfs://view.*/\.out\.lock"):
            OUTPUT.staged(out, True).__enter__()
        executors = tmp_path / ".out.new" / "steps"
        executors.mkdir(parents=True)
        (executors / "part-0").write_text("rows of executors")
        assert (new / "steps").exists()
        assert ((new / "steps").fetch() / "part-0").read_text() == "rows of executors"
        (new / "steps").remove()
        assert not executors.exists()
    files = sorted(
        it.relative_to(tmp_path) for it in tmp_path.rglob("*") if it.is_file() and it.suffix != ".crc"
    )
    assert list(map(str, files)) == ["out/summary.json", "out/tables/runs"]
    assert OUTPUT.read_head(out)["lines"] == 1
    with pytest.raises(UsageError, match="--overwrite"), OUTPUT.staged(out, False):
        pytest.fail("it must not begin")
    with OUTPUT.staged(out, True) as new:
        made(new, 2)
    assert OUTPUT.read_head(folder_of(str(out), hadoop))["lines"] == 2
    assert [it.name for it in tmp_path.iterdir()] == ["out"]
    (tmp_path / "photos").mkdir()
    with pytest.raises(UsageError, match="not from an earlier run"):
        OUTPUT.check(folder_of("viewfs://view/all/photos", hadoop), True)
