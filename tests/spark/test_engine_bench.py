"""The bench's own parts: what a process takes, and the comparison of what was found with what was planted."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.spark.scale.bench import measured, wrong_with_audit, wrong_with_letters

MANIFEST: dict[str, Any] = {
    "run": "generated",
    "faults": [{"guarantees": ["G1", "G7"], "producer_id": "a.1.5eed0.1", "seq": 4}],
}


def test_a_process_is_measured_with_what_it_starts() -> None:
    inner = "x = bytearray(150 << 20); x[:] = b'1' * len(x); import time; time.sleep(1.5); print('done')"
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}]); sys.exit(3)"
    cost = measured([sys.executable, "-c", outer])
    assert (cost.code, cost.output) == (3, "done\n")
    assert cost.python_mb > 140
    assert cost.java_mb == 0
    assert cost.cpu_s > 0


def test_an_audit_is_compared_both_ways(tmp_path: Path) -> None:
    def with_(*rows: tuple[str, str, str, str, int]) -> list[str]:
        names = ("run", "guarantee", "verdict", "producer_id", "seq")
        table = pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows])
        (tmp_path / "tables" / "violations").mkdir(parents=True, exist_ok=True)
        pq.write_table(table, tmp_path / "tables" / "violations" / "part.parquet")
        return wrong_with_audit(MANIFEST, tmp_path, {"spliced-0": []})

    g1 = ("generated", "G1", "broken", "a.1.5eed0.1", 4)
    g7 = ("generated", "G7", "broken", "a.1.5eed0.1", 4)
    spliced = ("spliced-0", "G2", "broken", "x", 1)
    assert with_(g1, g7, spliced) == []
    assert with_(g1, g7, spliced, ("generated", "G4", "not decidable", "b", 1)) == []
    assert len(with_(g1, spliced)) == 1
    assert len(with_(g1, g7, spliced, ("generated", "G1", "broken", "b", 1))) == 1
    assert len(with_(g1, g7)) == 1
    assert len(with_(g1, g7, spliced, ("spliced-1", "G2", "broken", "x", 1))) == 1


def test_an_analysis_is_compared_both_ways(tmp_path: Path) -> None:
    manifest = {
        "rows": 12,
        "faults": [
            {"fault": "burst", "topic": "t0", "failure": "f0", "deaths": 5},
            {"fault": "deploy", "topic": "t1", "version": "2.0", "failure": "f1", "deaths": 6},
            {"fault": "rare", "failure": "f2", "deaths": 1},
            {"fault": "poison-key", "name": "k", "deaths": 4},
        ],
    }
    good: dict[str, list[dict[str, Any]]] = {
        "failures": [{"failure": f"f{i}", "deaths": deaths} for i, deaths in enumerate((5, 6, 1))],
        "poison": [{"kind": "key", "name": "k"}],
        "bursts": [{"topic": "t0", "failure": "f0"}, {"topic": "t1", "failure": "f1"}],
        "deploys": [{"topic": "t1", "version": "2.0", "regression": True}],
    }

    def with_(**changed: list[dict[str, Any]]) -> list[str]:
        for name, rows in {**good, **changed}.items():
            (tmp_path / "tables" / name).mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.Table.from_pylist(rows), tmp_path / "tables" / name / "part.parquet")
        return wrong_with_letters(manifest, tmp_path)

    assert with_() == []
    assert len(with_(bursts=[{"topic": "t1", "failure": "f1"}])) == 1
    assert len(with_(bursts=[*good["bursts"], {"topic": "t2", "failure": "f0"}])) == 1
    assert len(with_(poison=[*good["poison"], {"kind": "payload", "name": "p"}])) == 1
    assert len(with_(deploys=[{"topic": "t1", "version": "2.0", "regression": None}])) == 1
    assert len(with_(failures=good["failures"][:2])) == 3
