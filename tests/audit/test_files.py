"""Parts of a history in files."""

from __future__ import annotations

import pickle
from pathlib import Path

from quorumq.audit.files import Cut
from quorumq.audit.lines import Lines
from quorumq.audit.table import Table, joined


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
