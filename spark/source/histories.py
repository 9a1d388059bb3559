"""The table `history`: files of JSON Lines, each line checked by quorumq's own reader."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from quorumq.core.values.errors import StorageError, UsageError
from quorumq.history import SUFFIXES, HistoryError, histories_of, read_history

from ..schemas import GENERATION, SECONDS, SPANS, TABLES, Column
from .arrow import Batches, Same, Values
from .options import Options, Wanted


class HistoryFile(InputPartition):
    """One file."""

    def __init__(self, path: str) -> None:
        self.path = path


def plan(options: Options, selection: Wanted) -> list[HistoryFile]:
    """Return one task for each file; for a directory, its files called `*.jsonl` or `*.jsonl.gz`, at any depth.

    Raises:
        UsageError: there is no such file, or none in a directory.
    """
    files: list[str] = []
    for name in options.paths:
        path = Path(name)
        inside = histories_of(path)
        if not inside:
            ends = f"no file in this directory ends in {' or '.join(SUFFIXES)}"
            problem = ends if path.is_dir() else "there is no such file"
            raise UsageError(f"{path}: {problem}; give the files of a history")
        files += map(str, inside)
    return [HistoryFile(name) for name in dict.fromkeys(files)]


def read(
    task: HistoryFile, options: Options, selection: Wanted, schema: StructType
) -> Iterator[pa.RecordBatch]:
    """Yield the lines of one file. A last line without its newline is the mark of a killed writer, and left out.

    Raises:
        StorageError: a line that is not of the schema: names file and line.
    """
    out = Batches(schema)
    try:
        for row in read_history([task.path]):
            values: dict[str, Values] = {
                column.name: Same(_value(column, row.get(column.name))) for column in TABLES["history"]
            }
            yield from out.add(1, 32 * len(row.get("spans", ())), values)
    except HistoryError as error:
        raise StorageError(str(error)) from None
    yield from out.rest()


def _value(column: Column, value: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, dict):
        return json.dumps(value, sort_keys=True)
    if column.type == SPANS:
        return [
            {"producer_id": producer_id, "start": start, "stop": stop} for producer_id, start, stop in value
        ]
    if column.type == GENERATION:
        return Decimal(value)
    return float(value) if column.type == SECONDS else _text(value)


def _text(value: Any) -> Any:
    """Return a value with a question mark for half a character, which JSON can say and UTF-8 cannot."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")
    return [_text(item) for item in value] if isinstance(value, list) else value
