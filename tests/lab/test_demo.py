"""`quorumq demo` as a command: one short run on real processes, and refused arguments."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from unittest.mock import Mock

import pytest
from click.testing import CliRunner
from rich.console import Console

from quorumq.cli.main import main
from quorumq.history.reader import read_history
from quorumq.lab import demo
from quorumq.lab.demo_input import MESSAGES_MAX, malformed_chunks
from quorumq.lab.demo_verdict import ACKED_OUTCOMES
from sim.checkers import check_history
from sim.checkers.exclusive import Exclusive
from tests.patience import PATIENCE_S, until


def command(*arguments: str, **settings: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", "from quorumq.cli.main import main; main()", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, **settings,
    )  # type: ignore[call-overload,no-any-return]  # fmt: skip


def children_of(pid: int) -> list[int]:
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == pid:
                pids.append(int(entry.name))
    return pids


def alive(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.e2e
def test_a_demo_passes_and_its_numbers_are_those_of_its_histories(tmp_path: Path) -> None:
    """With --keep, from another directory; about half a minute."""
    keep = tmp_path / "kept"
    with command("demo", "--json", "--keep", str(keep), cwd=tmp_path) as process:
        out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err.decode()
    report = json.loads(out.decode().splitlines()[-1])
    malformed = sum(report["malformed_errors"].values())
    assert malformed == len(malformed_chunks())
    assert malformed < report["published"] <= MESSAGES_MAX + malformed
    assert report["dead_lettered"] == malformed + sum(report["errors"].values())
    assert report["acked"] + report["dead_lettered"] == report["published"]
    assert (report["lost"], report["delivered_after_ack"], report["passed"]) == (0, 0, True)
    assert report["late_acks"] >= 1
    assert report["redelivered"] >= 1
    assert report["killed"]["holds"] >= 1
    assert 0.3 <= report["killed"]["acked_share"] <= 0.7
    assert report["stopped"]["seconds"] > 5
    rows = list(read_history(sorted((keep / "histories").glob("*.jsonl"))))
    settled = {
        (row["partition"], producer_id, seq)
        for row in rows
        if row["kind"] in ("ack", "dead_letter") and row["outcome"] in ("ok", *ACKED_OUTCOMES)
        for producer_id, start, stop in row["spans"]
        for seq in range(start, stop)
    }  # fmt: skip
    assert len(settled) == report["published"]
    clients, nodes = ("publisher", "w1", "w2", "w3"), ("n1", "n2", "n3")
    assert {row["who"] for row in rows} == {f"client:{name}" for name in clients} | {
        f"node:{name}" for name in nodes
    }
    assert len({row["run"] for row in rows}) == 1
    assert all(row["crcs"] for row in rows if row["kind"] == "deliver"), "so that the audit can compare bytes"
    tries = Counter(
        json.dumps(row["spans"]) for row in rows if row["kind"] == "publish" and row["outcome"] == "invoke"
    )
    assert max(tries.values()) > 1, "publishes were under way at the node that was killed, and were repeated"
    assert b"quorumq dev --dir" in err
    # The other checker: a worker that is stopped before it writes down a delivery writes it too late for that one.
    rows.sort(key=lambda row: row["at"])
    assert {violation.promise for violation in check_history(rows)} <= {Exclusive.promise}


@pytest.mark.e2e
def test_ctrl_c_stops_everything_that_was_started(tmp_path: Path) -> None:
    with command("demo", cwd=tmp_path, env={**os.environ, "TMPDIR": str(tmp_path)}) as process:
        until(
            lambda: len(children_of(process.pid)) >= 7, "three nodes, three workers and who watches", process
        )
        started = children_of(process.pid)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, err.decode()
    assert b"Traceback" not in err, err.decode()
    assert not [pid for pid in started if alive(pid)]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("installed", [False, True])
def test_the_extra_of_the_gateway_is_named_only_if_it_is_missing(
    installed: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "is_installed", lambda: installed)
    demo._say_more(Console(width=100), Mock(missing=(), passed=False), None)
    assert ("quorumq dev" in (said := capsys.readouterr().out), "pip install" in said) == (
        True,
        not installed,
    )


def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    (tmp_path / "something").touch()
    result = CliRunner().invoke(main, ["demo", "--keep", str(tmp_path)])
    assert result.exit_code == 64
    assert "is not empty" in result.output
