"""docs/verification.md lists the hazards of queues of this kind: all of them, with tests that are there."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SECTION = (ROOT / "docs" / "verification.md").read_text().split("\n## Hazards", 1)[1].split("\n## ", 1)[0]
ROWS = re.findall(r"^\| (H\d+) \|(.*)\|$", SECTION, re.MULTILINE)
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`(?: \\\[([\w, -]+)\\\])?")


@functools.cache
def names_in(path: str) -> frozenset[str]:
    """The names of the tests in a file, by its syntax: nothing is imported."""
    tree = ast.parse((ROOT / path).read_text())
    return frozenset(
        node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def test_all_hazards_are_in_the_table() -> None:
    assert [name for name, _ in ROWS] == [f"H{number}" for number in range(1, 26)]


@pytest.mark.parametrize(("name", "row"), ROWS, ids=[name for name, _ in ROWS])
def test_the_tests_of_a_hazard_are_there(name: str, row: str) -> None:
    hazard, remedy, tests = row.split(" | ")
    assert all(cell.strip() for cell in (hazard, remedy))
    names = TEST.findall(tests)
    assert names, f"{name} names no test"
    assert len(names) == tests.count("::"), f"{name}: a test is not written as `tests/file.py::name`"
    for path, test, parameters in names:
        assert (ROOT / path).is_file(), f"{name} names {path}, which is not there"
        assert test in names_in(path), f"{name} names {test}, which is not in {path}"
        source = (ROOT / path).read_text()
        for parameter in parameters.split(", ") if parameters else ():
            assert f'"{parameter}"' in source, f"{name} names [{parameter}] of {test}"
