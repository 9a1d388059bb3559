"""Histories in files of one machine, judged in one process; one too large for memory is cut into files."""

from __future__ import annotations

import gzip
import pickle
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Final, TypeVar, cast

from quorumq.audit import derived
from quorumq.audit.checker import check
from quorumq.audit.context import Context, merged
from quorumq.audit.findings import Judged
from quorumq.audit.lines import Lines, Summary
from quorumq.audit.table import Table, joined
from quorumq.core.values.errors import StorageError, UsageError
from quorumq.core.values.printable import plural
from quorumq.history.reader import LINE_BYTES_MAX

T = TypeVar("T")

CHUNK_BYTES: Final = 1 << 20
"""Bytes of a file that are decoded at once."""

LINES: Final = 100_000
"""Most lines of one table; a history of more is cut into files."""

PART_BYTES: Final = 32 << 20
"""Bytes of lines in a part."""


class Cut:
    """A history that is cut into parts, in memory or in files of a directory."""

    def __init__(self, folder: Path, count: int) -> None:
        self._folder, self._count = folder, count
        folder.mkdir(exist_ok=True)
        self._kept: list[Table] = []

    def add(self, table: Table) -> None:
        if self._count == 1:
            self._kept.append(table)
            return
        for number, part in table.parts(self._count).items():
            with (self._folder / str(number)).open("ab") as file:
                pickle.dump(part, file)

    def _parts(self, *, last: bool) -> Iterator[Table]:
        """Yield the parts; keep each as one table, if this is not the last time."""
        if self._count == 1:
            yield joined(self._kept)
            return
        for path in sorted(self._folder.iterdir()):
            tables = list(_pickled(path))
            several, part = len(tables) > 1, joined(tables)
            del tables  # a part is in memory once
            yield part
            if several and not last:
                with path.open("wb") as file:
                    pickle.dump(part, file)

    def map(self, function: Callable[[Table], T]) -> Iterable[T]:
        return map(function, self._parts(last=False))

    def check(self, context: Context) -> Judged:
        total = Judged()
        made: list[Any] = []
        for part in self._parts(last=True):
            result = check(part, context)
            made += result.made + result.got
            _add(total, result)
        outputs = Judged()
        derived.check(made, context, outputs)
        _add(total, outputs)
        return total


def _add(total: Judged, result: Judged) -> None:
    total.add(result)
    total.findings += result.findings


def _pickled(path: Path) -> Iterator[Table]:
    with path.open("rb") as file:
        while True:
            try:
                yield pickle.load(file)
            except EOFError:
                return


def read(paths: Sequence[Path], folder: Path, *, count: int = 0) -> tuple[Summary, Cut]:
    """Read files, and cut their lines about messages into parts.

    Args:
        folder: a directory for parts, made if it is needed.
        count: number of parts; 0: by the size of the files.

    Raises:
        StorageError: a file cannot be read.
    """
    size = sum(it.stat().st_size * (8 if it.name.endswith(".gz") else 1) for it in paths)
    cut = Cut(folder, count or max(1, -(-size // PART_BYTES)))
    summaries, lines = [], Lines()
    for path in paths:
        for text, whole in _texts(path):
            (lines.add if whole else lines.torn)(str(path), text)
            if len(lines) >= LINES:
                summaries.append(_taken(lines, cut))
                lines = Lines()
    summaries.append(_taken(lines, cut))
    return merged(summaries), cut


def _taken(lines: Lines, cut: Cut) -> Summary:
    table = lines.table()
    cut.add(table)
    return lines.summary(table)


def _texts(path: Path) -> Iterator[tuple[bytes, bool]]:
    """Yield whole lines of a file, many at a time; in the end the rest without a newline, and False.

    A packed file that ends too early is a killed writer's; one that is damaged is an error.
    """
    rest = b""
    try:
        with cast("IO[bytes]", gzip.open(path) if path.name.endswith(".gz") else path.open("rb")) as file:
            while chunk := _chunk(file):
                head, newline, tail = chunk.rpartition(b"\n")
                if newline:
                    yield rest + head + newline, True
                    rest = tail
                else:
                    rest = (rest + chunk)[: LINE_BYTES_MAX + 1]  # a longer one is only reported as too long
    except (zlib.error, gzip.BadGzipFile, OSError) as error:
        raise StorageError(f"{path} cannot be read: {error}") from None
    if rest:
        yield rest, False


def _chunk(file: IO[bytes]) -> bytes:
    try:
        return file.read1(CHUNK_BYTES) if hasattr(file, "read1") else file.read(CHUNK_BYTES)
    except EOFError:
        return b""


def temporary() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="quorumq-audit-")


def check_not_empty(lines: int, unread: int, paths: Sequence[str]) -> None:
    """Check that there is anything to check.

    Raises:
        UsageError: the files have no line of a history.
    """
    if lines:
        return
    if unread:
        raise UsageError(
            f"{', '.join(paths)}: none of {plural(unread, 'line')} is one of a history, so there is nothing to judge: "
            "name files that nodes or clients wrote (`history` in a node's file, or connect(history=))"
        )
    raise UsageError(f"{', '.join(paths)}: there is no line in it: an empty history proves nothing")
