"""Parts of a history in files."""

from __future__ import annotations

import pickle
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quorumq.audit import clocks
from quorumq.audit.files import Cut
from quorumq.audit.lines import Lines
from quorumq.audit.table import Table, joined
from quorumq.audit.words import titled


def tables_of(seqs: range) -> Table:
    """Return the table of one copy of each of these messages."""
    lines = Lines()
    for seq in seqs:
        text = (
            '{"run":"r","who":"node:a","within":0,"kind":"store","topic":"t","partition":0,'
            f'"spans":[["a.1.1.1",{seq},{seq + 1}]],"at":{seq},"wall_ms":1}}\n'
        )
        lines.add("h", text.encode())
    return lines.table()


def test_a_part_of_several_tables_is_joined_once_and_read_the_same_each_time(tmp_path: Path) -> None:
    first, second = tables_of(range(0, 3000)), tables_of(range(3000, 5000))
    cut = Cut(tmp_path / "parts", 3)
    cut.add(first)
    cut.add(second)
    before = [part.rows.tolist() for part in cut.map(lambda part: part)]
    for path in (tmp_path / "parts").iterdir():
        with path.open("rb") as file:
            pickle.load(file)
            assert not file.read(1), "one table is left of each part"
    assert str([part.rows.tolist() for part in cut.map(lambda part: part)]) == str(before)
    assert sum(map(len, before)) == len(joined([first, second]).rows)


def test_a_part_has_only_the_names_that_its_rows_use() -> None:
    table = tables_of(range(0, 3000))
    for part in table.parts(3).values():
        assert set(part.rows["owner"].tolist()) == {-1}, "no name stays none"
        assert len(part.writers) == len(part.spaces) == len(part.calls) == 1


LISTED = (
    '{{"run":"r","who":"client:c","within":0,"kind":"list","topic":"{topic}","partition":0,"group":"g",'
    '"state":"dead","spans":[{spans}],"at":1,"wall_ms":1}}\n'
)


def test_lines_are_taken_together_as_each_alone() -> None:
    two = ",".join(f'["a.1.1.1",{seq},{seq + 1}]' for seq in (4, 8))
    texts = [
        LISTED.format(topic=topic, spans=spans).encode() for topic, spans in (("t", two), ("u", ""))
    ]  # as many spans as lines
    together, alone = Lines(), Lines()
    together.add("h", b"".join(texts))
    for text in texts:
        alone.add("h", text)
    assert str(together.table()) == str(alone.table())
    (summary,) = {str(lines.summary(lines.table()).lines) for lines in (together, alone)}
    assert "'topic': 'u'" in summary


def test_a_refused_line_names_nothing() -> None:
    lines = Lines()
    for wrong in ('["a.1.1.1",5,4]', '["a",4,5]'):
        lines.add("h", LISTED.format(topic="t", spans=wrong).encode())
    lines.add("h", LISTED.format(topic="t", spans='["a.1.1.1",4,5]').replace("client:c", "nobody").encode())
    table = lines.table()
    assert (len(lines), table.writers, table.spaces) == (0, [], [])
    assert len(lines.summary(table).unread) == 3


def test_a_guarantee_is_named_once() -> None:
    assert titled("G1").startswith("G1 durable: ")
    assert titled("groups").startswith("groups as asked: ")


def test_bounds_of_any_number_of_parts_are_merged_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part has some of nearly all windows, so all of them grow with the lines."""
    monkeypatch.setattr(clocks, "BOUNDS", 1_000)
    rng = np.random.default_rng(7)
    given: list[weakref.ref[Any]] = []
    most = 0

    def tables() -> Iterator[Any]:
        nonlocal most
        for _ in range(100):
            table = np.zeros(500, clocks._BOUND)
            table["early_window"], table["seconds"] = rng.integers(0, 800, 500), rng.random(500)
            given.append(weakref.ref(table))
            every.append(table.copy())
            most = max(most, sum(it() is not None for it in given))
            yield table
            del table

    every: list[Any] = []
    result = clocks.tightest(tables())
    expected: dict[int, float] = {}
    for window, seconds in np.concatenate(every)[["early_window", "seconds"]].tolist():
        expected[window] = min(seconds, expected.get(window, 1.0))
    assert dict(result[["early_window", "seconds"]].tolist()) == expected
    assert len(result) == len(expected)
    assert most <= 5
