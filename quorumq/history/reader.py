"""Reads the lines of histories, each checked."""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Final, cast

from quorumq.core.values.errors import NotFound
from quorumq.history.schema import VERSION, HistoryError, Row, check_row

SUFFIXES: Final = (".jsonl", ".jsonl.gz")
"""Endings of the names of histories in a directory; a file that is named itself is read under any name."""

LINE_BYTES_MAX: Final = 1 << 22
"""A line that a reader accepts, in bytes. A writer splits nothing: publishes and deliveries are far below it."""


def histories_of(paths: Iterable[str | Path]) -> list[Path]:
    """Return the files that these paths name, each once: files, or directories with all histories below, sorted.

    Raises:
        NotFound: if there is no file at a path, or no history in a directory.
    """
    result: dict[Path, None] = {}
    for path in map(Path, paths):
        files = path.rglob("*") if path.is_dir() else [path]
        ends = SUFFIXES if path.is_dir() else ""
        mine = sorted(file for file in files if file.name.endswith(ends) and file.is_file())
        if not mine:
            named = " or ".join(f"*{it}" for it in SUFFIXES)
            raise NotFound(
                f"{path}: there is no history here; name a file, or a directory with {named} in it"
            )
        result.update(dict.fromkeys(mine))
    return list(result)


def read_history(paths: Iterable[str | os.PathLike[str]]) -> Iterator[Row]:
    """Yield the lines of these files, one file after the other, each checked.

    If the last line has no newline, its writer was killed, and the line is left out.

    Args:
        paths: files in any order; those that end in .gz are unpacked.

    Raises:
        HistoryError: if a line is not of the schema: the text begins with ``file:line``.
        OSError: if a file cannot be read.
    """
    for path in paths:
        with _opened(Path(path)) as file:
            number = 0
            while line := _line_of(file, path, number + 1):
                number += 1
                if len(line) > LINE_BYTES_MAX:
                    raise HistoryError(f"{path}:{number}: the line is longer than {LINE_BYTES_MAX} bytes")
                if not line.endswith(b"\n"):
                    break
                try:
                    row = json.loads(line)
                except ValueError as error:
                    raise HistoryError(f"{path}:{number}: not JSON: {error}") from None
                problem = check_row(row) if isinstance(row, dict) else "not a JSON object"
                if problem:
                    raise HistoryError(f"{path}:{number}: {problem}")
                if row["kind"] == "settings" and row["history"] > VERSION:
                    raise HistoryError(
                        f"{path}:{number}: the history has version {row['history']}, this reader knows {VERSION}: "
                        "use a newer quorumq to read it"
                    )
                yield row


def _opened(path: Path) -> IO[bytes]:
    return cast("IO[bytes]", gzip.open(path)) if path.name.endswith(".gz") else path.open("rb")


def _line_of(file: IO[bytes], path: str | os.PathLike[str], number: int) -> bytes:
    try:
        return file.readline(LINE_BYTES_MAX + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise HistoryError(f"{path}:{number}: not to be unpacked: {error}") from None
