"""Histories on any file system that Spark reads, cut into parts by message, and the results of the parts.

Spark reads the text and moves the parts; what a line means, and what follows from it, is quorumq.audit, the same
functions that check a history on one machine without Spark.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any, Final, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from quorumq.audit import derived
from quorumq.audit.checker import check
from quorumq.audit.context import Context, merged
from quorumq.audit.files import LINES, PART_BYTES
from quorumq.audit.findings import Finding, Judged
from quorumq.audit.lines import Lines, Summary
from quorumq.audit.table import Table, joined
from quorumq.core.values.errors import NotFound, StorageError, UsageError
from quorumq.history.reader import LINE_BYTES_MAX, SUFFIXES

from .folders import Folder, system_of
from .session import exactly

T = TypeVar("T")

SUMMARY: Final = -1
"""The part that is of no message: the lines about runs as a whole."""

VIOLATIONS: Final = (
    "run STRING, guarantee STRING, verdict STRING, topic STRING, partition INT, `group` STRING, producer_id STRING, "
    "seq BIGINT, id STRING, at DOUBLE, text STRING, cause STRING"
)
BLOBS: Final = "ARRAY<STRUCT<part: INT, blob: BINARY>>"
JUDGED: Final = "STRUCT<blobs: {}, findings: ARRAY<STRUCT<{}>>>".format(
    BLOBS, VIOLATIONS.replace(" ", ": ").replace(",: ", ", ")
)
"""Result of a part: blobs with its sums and with its lines about outputs, and its findings."""

_BLOBS: Final = pa.list_(pa.struct([("part", pa.int32()), ("blob", pa.binary())]))
_TYPES: Final = {
    "INT": pa.int32(), "BIGINT": pa.int64(), "DOUBLE": pa.float64(), "STRING": pa.string(), "BOOLEAN": pa.bool_()
}  # fmt: skip


def arrow_schema(text: str) -> pa.Schema:
    """Return a schema that is written as "name TYPE, …"."""
    pairs = (it.split() for it in text.split(", "))
    return pa.schema([(name.strip("`"), _TYPES[kind]) for name, kind in pairs])


_FINDINGS: Final = pa.list_(pa.struct(arrow_schema(VIOLATIONS)))


class Histories(NamedTuple):
    """Files that were found: their `lines` (file and value), and the last line of each that has no newline.

    Attributes:
        torn: last lines without a newline, of files that Spark reads to their end.
        cut_short: last lines without a newline, of packed files; Spark gives only the lines before.
        bytes: size of the files.
    """

    lines: DataFrame
    torn: Mapping[str, bytes]
    cut_short: Mapping[str, bytes]
    bytes: int

    @property
    def parts(self) -> int:
        return max(1, -(-self.bytes // PART_BYTES))


# ----------------------------------------------------------------------------- files


def files(session: SparkSession, paths: Iterable[str]) -> list[str]:
    """Return the files that these paths name: files, directories (all histories below), or patterns of either.

    Raises:
        NotFound: a path names nothing, or a directory without a history in it.
        UsageError: Spark would pass over a file.
    """
    result: dict[str, None] = {}
    for path in paths:
        mine = list(_found(session, path))
        if not mine:
            raise NotFound(
                f"{path}: there is no history here; name a file, or a directory with *.jsonl or *.jsonl.gz in it"
            )
        for name in mine:
            if name.rpartition("/")[2].startswith(("_", ".")):
                raise UsageError(
                    f"{name}: Spark passes over files whose names begin with _ or a dot, and nothing of a history may "
                    "be left out: rename it, or name the other files one by one"
                )
        result.update(dict.fromkeys(mine))
    return list(result)


def _found(session: SparkSession, path: str) -> Iterable[str]:
    where, system = system_of(session, path)
    there = system.exists(where)  # by this very name: then it is no pattern
    for status in [system.getFileStatus(where)] if there else system.globStatus(where) or []:
        if status.isFile():
            yield status.getPath().toString()
            continue
        below = system.listFiles(status.getPath(), True)
        names = []
        while below.hasNext():
            name = below.next().getPath().toString()
            if name.endswith(SUFFIXES):
                names.append(name)
        yield from sorted(names)


def read(session: SparkSession, paths: Sequence[str]) -> Histories:
    """Find histories: files, directories or patterns, on any file system that Spark reads.

    Raises:
        NotFound: a path names no history.
        UsageError: Spark would pass over a file.
        StorageError: a file cannot be opened.
    """
    names = files(session, paths)
    ends = {name: end for name in names if (end := _end(session, name)) is not None}
    packed = {name for name, (_, whole) in ends.items() if not whole}
    # A carriage return is no end of a line; Spark leaves a zero byte or bad UTF-8 to the parser.
    text = session.read.option("lineSep", "\n")
    parts = [text.text([exactly(it) for it in items]) for items in (sorted(set(names) - packed),) if items]
    if packed:
        # Spark gives up a file that cannot be unpacked to its end, with all of it, unless it is to take what there is.
        parts.append(text.option("ignoreCorruptFiles", "true").text([exactly(it) for it in sorted(packed)]))
    every = [it.select(F.col("_metadata.file_path").alias("file"), F.col("value")) for it in parts]
    torn, cut_short = dict[str, bytes](), dict[str, bytes]()
    for name, (line, whole) in ends.items():
        (torn if whole else cut_short)[system_of(session, name)[0].toUri().toString()] = line
    size = 0
    for name in names:
        path, system = system_of(session, name)
        size += int(system.getFileStatus(path).getLen()) * (8 if name.endswith(".gz") else 1)
    return Histories(reduce(DataFrame.unionByName, every), torn, cut_short, size)


def _end(session: SparkSession, name: str) -> tuple[bytes, bool] | None:
    """Return a file's last line without a newline, and True if Spark reads it; None if the file ends with a newline."""
    path, system = system_of(session, name)
    try:
        size = system.getFileStatus(path).getLen()
        stream = system.open(path)
        try:
            if name.endswith(".gz"):
                return _end_of_gzip(_chunks(session, path, stream, size))
            end = b""
            while len(end) < size and len(end) <= LINE_BYTES_MAX:
                ask = min(1 << 12 if not end else 1 << 20, size - len(end))
                stream.seek(size - len(end) - ask)
                end = _bytes(session, stream, ask) + end
                if b"\n" in end:
                    break
            return (end.rpartition(b"\n")[2], True) if end and not end.endswith(b"\n") else None
        finally:
            stream.close()
    except Exception as error:  # py4j wraps all that the file system raises
        reason = str(getattr(error, "java_exception", error)).splitlines()[0]
        raise StorageError(f"{name} cannot be read: {reason}") from None


def _bytes(session: SparkSession, stream: Any, count: int) -> bytes:
    jvm: Any = session._jvm
    return bytes(jvm.org.apache.commons.io.IOUtils.toByteArray(stream, count))


def _chunks(session: SparkSession, path: Any, stream: Any, size: int) -> Iterator[bytes]:
    """Yield the bytes of a file, read without Java if it is on this machine."""
    if path.toUri().getScheme() in (None, "file"):
        with open(path.toUri().getPath(), "rb") as file:
            while chunk := file.read(1 << 20):
                yield chunk
        return
    for at in range(0, size, 1 << 20):
        yield _bytes(session, stream, min(1 << 20, size - at))


def _end_of_gzip(chunks: Iterable[bytes]) -> tuple[bytes, bool] | None:
    """Return the same as `_end`. A member that ends too early is a killed writer's; a damaged one is an error."""
    last, unpack, began = b"", zlib.decompressobj(wbits=31), False
    for chunk in chunks:
        while chunk:
            began = True
            last = (last + unpack.decompress(chunk)).rpartition(b"\n")[2]
            chunk = unpack.unused_data
            if unpack.eof:
                began, unpack = False, zlib.decompressobj(wbits=31)
                chunk = chunk.lstrip(b"\0")  # padding between members
    if began:
        return (last + unpack.flush()).rpartition(b"\n")[2], False
    return (last, True) if last else None


# ----------------------------------------------------------------------------- parts


class Parts:
    """The parts of histories, as rows of Spark: `quorumq.audit.audit.Parts`.

    PySpark asks for pandas if a function takes tables, and not if it takes columns. So a column of lines becomes one of
    parts, null but for a few rows, and the blobs of a part are aggregated.
    """

    def __init__(self, histories: Histories, steps: Folder) -> None:
        """Read all lines, once, and write the parts below ``steps``."""
        self._session = histories.lines.sparkSession
        self._steps, self._count, self._cut_short = steps, histories.parts, histories.cut_short
        self._maps = 0
        torn, count = dict(histories.torn), histories.parts

        def in_parts(columns: Iterator[tuple[pa.Array, pa.Array]]) -> Iterator[pa.Array]:
            return cut(columns, torn, count)

        items = F.arrow_udf(in_parts, BLOBS).asNondeterministic()("file", "value")
        self._rows = self._step("parts", histories.lines.select(items.alias("some")).select(F.inline("some")))

    def _step(self, name: str, frame: DataFrame) -> DataFrame:
        path = (self._steps / name).uri
        frame.write.parquet(path)
        return self._session.read.schema(frame.schema).parquet(exactly(path))

    def _of_each(self, rows: DataFrame, function: Callable[[list[Any]], Any], returned: str) -> DataFrame:
        """Return the results of a function for all blobs of a part, as the column `found`."""

        def of_blobs(blobs: pa.Array) -> pa.Scalar:
            return function([pickle.loads(it) for it in blobs.to_pylist()])

        result = F.arrow_udf(of_blobs, returned)("blob")
        return rows.groupBy("part").agg(result.alias("found"))

    def summary(self) -> Summary:
        lines = Lines()
        for file, line in self._cut_short.items():
            lines.torn(file, line)
        return merged([*_blobs(self._rows.where(F.col("part") == SUMMARY)), lines.summary(lines.table())])

    def map(self, function: Callable[[Table], T]) -> Iterable[T]:
        parts = self._rows.where(F.col("part") != SUMMARY)
        result = self._of_each(parts, lambda tables: pickle.dumps(function(joined(tables))), "BINARY")
        self._maps += 1  # their results are written, because together they may not fit in Java's memory
        step = self._step(f"map-{self._maps}", result.select("found"))
        return (pickle.loads(row["found"]) for row in step.toLocalIterator())

    def check(self, context: Context) -> Judged:
        """Check all parts; their findings stay where they are (`findings`)."""
        count = self._count
        parts = self._rows.where(F.col("part") != SUMMARY)
        stated = self._of_each(parts, lambda tables: _told(check(joined(tables), context), count), JUDGED)
        self._judged = [self._step("judged", stated.select("found.*"))]
        if context.into:
            outputs = self._judged[0].select(F.inline("blobs")).where(F.col("part") != SUMMARY)
            stated = self._of_each(outputs, lambda items: _told(_of_outputs(items, context), count), JUDGED)
            self._judged.append(self._step("outputs", stated.select("found.*")))
        total = Judged()
        for frame in self._judged:
            for it in _blobs(frame.select(F.inline("blobs")).where(F.col("part") == SUMMARY)):
                total.add(it)
        return total

    def findings(self, more: Sequence[Finding]) -> DataFrame:
        result = [it.select(F.inline("findings")) for it in self._judged]
        result.append(self._session.createDataFrame([tuple(it[:12]) for it in more], VIOLATIONS))
        return reduce(DataFrame.unionByName, result)


def cut(
    columns: Iterable[tuple[pa.Array, pa.Array]], torn: Mapping[str, bytes], count: int
) -> Iterator[pa.Array]:
    """Cut lines (`file` and `value`) into parts, each a pickled table, and summaries: null but for some rows."""
    lines = Lines()
    waiting: pa.Array | None = None  # as many nulls as there were rows; the last of all has what is left
    for files_, texts in columns:
        if waiting is not None:
            yield _with(waiting, _packed(lines, count) if len(lines) >= LINES else None)
            lines = Lines() if len(lines) >= LINES else lines
        ends = pc.run_end_encode(files_)
        values, begin = texts.cast(pa.binary()).to_pylist(), 0
        for end, file in zip(ends.run_ends.to_pylist(), ends.values.to_pylist(), strict=True):
            _add(lines, file, values[begin:end], torn)
            begin = end
        waiting = pa.nulls(len(texts), _BLOBS)
    if waiting is not None:
        yield _with(waiting, _packed(lines, count))


def _with(nulls: pa.Array, blobs: dict[int, bytes] | None) -> pa.Array:
    if blobs is None or not len(nulls):
        return nulls
    rows = [{"part": part, "blob": blob} for part, blob in blobs.items()]
    return pa.concat_arrays([nulls[1:], pa.array([rows], _BLOBS)])


def _add(lines: Lines, file: str, values: list[bytes], torn: Mapping[str, bytes]) -> None:
    if file in torn and torn[file] in values:
        values.remove(torn[file])
        lines.torn(file, torn[file])
    if values:
        lines.add(file, b"\n".join(values) + b"\n")


def _packed(lines: Lines, count: int) -> dict[int, bytes]:
    table = lines.table()
    parts = {0: table} if count == 1 else table.parts(count)
    return {part: pickle.dumps(it) for part, it in {SUMMARY: lines.summary(table), **parts}.items()}


def _of_outputs(items: Iterable[list[Any]], context: Context) -> Judged:
    result = Judged()
    derived.check((it for mine in items for it in mine), context, result)
    return result


def _told(result: Judged, count: int) -> pa.Scalar:
    """Return the blobs and findings of a part; its lines about outputs are grouped by the part of the output."""
    outputs: dict[int, list[Any]] = {}
    for it in result.made + result.got:
        outputs.setdefault(zlib.crc32(repr(derived.key_of(it)).encode()) % count, []).append(it)
    findings, result.findings, result.made, result.got = result.findings, [], [], []
    blobs = [{"part": part, "blob": pickle.dumps(it)} for part, it in {SUMMARY: result, **outputs}.items()]
    names = [it.name for it in _FINDINGS.value_type]
    rows = [dict(zip(names, it, strict=False)) for it in findings]
    return pa.scalar(
        {"blobs": blobs, "findings": rows}, pa.struct([("blobs", _BLOBS), ("findings", _FINDINGS)])
    )


def _blobs(rows: DataFrame) -> list[Any]:
    return [pickle.loads(row["blob"]) for row in rows.select("blob").collect()]
