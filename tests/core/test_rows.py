"""Rows behave as a dict that is kept in order, with chunks of any size."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumq.core.values import rows
from quorumq.core.values.rows import Rows

KEYS = st.tuples(st.integers(-2, 3), st.integers(0, 12))
STEPS = st.lists(st.tuples(st.sampled_from(["put", "put", "pop"]), KEYS, st.integers(0, 9)), max_size=80)


@pytest.fixture(autouse=True, scope="module")
def small_chunks() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "CHUNK", 2)
        yield


@given(STEPS, KEYS, KEYS)
def test_rows_are_a_dict_in_order(
    steps: list[tuple[str, tuple[int, int], int]], begin: tuple[int, int], end: tuple[int, int]
) -> None:
    table, plain = Rows("qQd", 2), {}
    for step, key, value in steps:
        if step == "put":
            table.put((*key, value / 8))
            plain[key] = (*key, value / 8)
        else:
            assert table.pop(key) == plain.pop(key, None)
        table.check()
    expected = [plain[key] for key in sorted(plain)]
    assert list(table) == expected
    assert len(table) == len(plain)
    assert bool(table) is bool(plain)
    assert table.first() == (expected[0] if expected else None)
    assert (table.get(begin), begin in table) == (plain.get(begin), begin in plain)
    assert list(table.onward(begin)) == [row for row in expected if row[:2] >= begin]
    between = [row for row in expected if begin <= row[:2] < end]
    assert list(table.onward(begin, end)) == between
    twin = table.clone()
    assert twin.state() == table.state() == tuple(expected)
    twin.put((9, 9, 0.0))
    twin.put((-2, 0, 0.5))
    twin.check()
    assert table.state() == tuple(expected), "a copy changes on its own"


@given(st.lists(st.sets(st.integers(0, 20), max_size=6), max_size=6))
def test_rows_that_are_put_together_are_those_that_are_put_one_by_one(chunks: list[set[int]]) -> None:
    together, alone = Rows("qI", 1), Rows("qI", 1)
    for number, chunk in enumerate(chunks):
        rows = [(key, number) for key in sorted(chunk)]
        together.extend(rows)  # type: ignore[arg-type]
        for row in rows:
            alone.put(row)
        together.check()
        assert together.state() == alone.state()


def test_one_column_can_be_the_key_and_negative_numbers_have_their_position() -> None:
    table = Rows("qI", 1)
    for number in (5, -3, 0, 4, -9, 2, 7):
        table.put((number, 1))
    assert [row[0] for row in table] == [-9, -3, 0, 2, 4, 5, 7]
    assert (table.get((4,)), table.get((3,)), table.get((8,))) == ((4, 1), None, None)
    assert table.pop((7,)) == (7, 1)
    table.check()
    assert (7,) not in table


def test_a_table_used_as_a_queue_does_not_grow() -> None:
    table = Rows("Q", 1)
    for number in range(40):
        table.put((number,))
        assert table.pop((number - 3,)) == ((number - 3,) if number >= 3 else None)
        table.check()
    assert [row[0] for row in table] == [37, 38, 39]
    assert len(table._chunks) <= 2
