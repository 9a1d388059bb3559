"""The tables are a contract: complete and explained."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql.types import StructType

from spark.__main__ import main
from spark.schemas import TABLES, schema
from spark.source.options import READ, STREAM, WRITE

DOC = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()


@pytest.mark.parametrize("table", TABLES)
def test_every_column_occurs_once_and_is_explained(table: str) -> None:
    names = [column.name for column in TABLES[table]]
    assert len(set(names)) == len(names)
    assert all(column.meaning for column in TABLES[table])


@pytest.mark.parametrize("table", TABLES)
def test_a_schema_carries_the_meanings(table: str) -> None:
    made = schema(table)
    assert isinstance(made, StructType)
    assert [(field.name, field.metadata["comment"]) for field in made] == [
        (column.name, column.meaning) for column in TABLES[table]
    ]


def section(title: str) -> str:
    match = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^#|\Z)", DOC, re.S | re.M)
    assert match is not None, f"docs/spark.md has no section {title!r}"
    return match[1]


def rows_in(title: str) -> list[str]:
    return [line for line in section(title).splitlines() if line.startswith("| `")]


@pytest.mark.parametrize("table", TABLES)
def test_the_command_prints_every_column(table: str) -> None:
    printed = CliRunner().invoke(main, ["columns", table]).output.splitlines()
    assert printed == [
        table,
        *(f"  {column.name} ({column.type.simpleString()}): {column.meaning}" for column in TABLES[table]),
    ]
    assert set(printed) <= set(CliRunner().invoke(main, ["columns"]).output.splitlines())


@pytest.mark.parametrize(
    ("title", "options"),
    [
        ("Options of read", READ),
        ("Options of readStream", [name for name in STREAM if name not in READ]),
        ("Options of write", WRITE),
    ],
)
def test_the_page_lists_every_option(title: str, options: Sequence[str]) -> None:
    named = re.findall(r"^\| `(\w+)` \| .+ \|$", section(title), re.M)
    assert len(named) == len(rows_in(title))
    assert sorted(named) == sorted(options)
    if title == "Options of readStream":
        named = set(re.findall("`(\\w+)`", section(title).partition("|")[0]))
        assert named == set(STREAM) & set(READ)
