"""The table `history`: the lines of the page's example, and what is refused."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from quorumq.core.values.errors import StorageError, UsageError
from spark.schemas import schema
from spark.source import histories
from spark.source.options import Wanted, read_options

EXAMPLE = re.search(
    r"```jsonl\n(.*?)```", (Path(__file__).parent.parent.parent / "docs" / "history.md").read_text(), re.S
)


def rows_of(path: Path) -> list[dict[str, Any]]:
    options = read_options({"table": "history", "path": str(path)})
    parts = [
        part
        for task in histories.plan(options, Wanted())
        for part in histories.read(task, options, Wanted(), schema("history"))
    ]
    return [row for part in parts for row in part.to_pylist()]


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_every_line_is_a_row_and_a_torn_one_is_left_out(tmp_path: Path, name: str) -> None:
    assert EXAMPLE is not None
    lines = [json.loads(line) for line in EXAMPLE[1].splitlines()]
    (tmp_path / "deep").mkdir()
    text = (EXAMPLE[1] + '{"run":"r1"').encode()
    (tmp_path / "deep" / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    rows = rows_of(tmp_path)
    assert [row["kind"] for row in rows] == [line["kind"] for line in lines]
    for row, line in zip(rows, lines, strict=True):
        for name, value in line.items():
            cell = row[name]
            if name == "spans":
                assert [list(span.values()) for span in cell] == value
            elif name == "settings":
                assert json.loads(cell) == value
            else:
                assert cell == value, name
        assert all(row[name] is None for name in row if name not in line)


def test_a_file_that_is_no_history_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no such file"):
        rows_of(tmp_path / "nowhere")
    with pytest.raises(UsageError, match=r"ends in \.jsonl"):
        rows_of(tmp_path)
    (tmp_path / "a.jsonl").write_text('{"run": "r1"}\n')
    with pytest.raises(StorageError, match=r"a\.jsonl:1: field 'who' is missing"):
        rows_of(tmp_path)


def test_half_a_character_becomes_a_question_mark(tmp_path: Path) -> None:
    said = '"at":9.0,"wall_ms":1,"kind":"fault","fault":"x\\ud800y \\ud83d\\ude00","nodes":["\\udfff"]}\n'
    (tmp_path / "a.jsonl").write_text('{"run":"r1","who":"sim","within":0,' + said)
    (row,) = rows_of(tmp_path)
    assert (row["fault"], row["nodes"]) == ("x?y 😀", ["?"])
