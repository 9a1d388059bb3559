"""The tables are a contract: complete, explained, and the history's is that of quorumq/history.py."""

from __future__ import annotations

import pytest
from pyspark.sql.types import StructType

from quorumq.history import COMMON, FIELDS
from spark.schemas import TABLES, schema


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


def test_the_history_has_every_field_of_the_schema_of_histories() -> None:
    assert [column.name for column in TABLES["history"]] == [*COMMON, *sorted(FIELDS)]
