"""Histories of any size as a DataFrame, and everything in them that could not be read.

The lines are read and checked by Spark itself (`from_json`, no Python per line), against the tables of
quorumq/history. What does not fit is not dropped but becomes a row of its own, with the reason: an audit that
skipped a line in silence could call a run good that is not.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import Any, Final, NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from quorumq.core.errors import NotFound, StorageError, UsageError
from quorumq.history import COMMON, FIELDS, KINDS, LINE_BYTES_MAX, SUFFIXES, VERSION, KindOf

from .schemas import SECONDS, TABLES, schema
from .session import exactly

SPAN_MESSAGES_MAX: Final = 1 << 24
"""A span of more messages than that was not written by quorumq: a batch is far smaller."""

TEXT_MAX: Final = 200
"""So many characters of a line are shown."""

TORN: Final = "a last line without its newline: the writer was killed"
BLANK: Final = "a blank line"
UNKNOWN_KIND: Final = "a kind that this version does not know: "
WRONG: Final = "a wrong type: "
HARMLESS: Final = (TORN, BLANK, UNKNOWN_KIND)
"""Reasons that the rules of docs/history.md allow, or that cost nothing; the others make a run incomplete."""

UNREAD: Final = (
    "file STRING, run STRING, who STRING, kind STRING, reason STRING, harmless BOOLEAN, line STRING"
)
"""The schema of what could not be read."""

_KEPT_AS_TEXT: Final = {
    "spans": "ARRAY<ARRAY<STRING>>",
    "settings": "STRING",
    "defaults": "STRING",
    "into": "STRING",
}
_ROLES: Final = "^(sim|node:.+|client:.+)$"
_ORIGIN: Final = r"^[^.]+\\.[0-9]+\\.[0-9a-fA-F]+\\.[0-9]+$"


class Histories(NamedTuple):
    """What was read: `rows` in the schema `history` of spark/schemas.py, and `unread` in the schema `UNREAD`.

    A line of which not even the run can be read is of that run of which its file is, where that is one.

    Attributes:
        judged: both together, to be kept by who needs both: a line is read once then.
        bytes: of the files.
    """

    judged: DataFrame
    bytes: int = 0

    @property
    def rows(self) -> DataFrame:
        """Lines of a history."""
        return self.judged.where(F.col("_bad").isNull()).drop("_bad", "_file")

    @property
    def unread(self) -> DataFrame:
        """What could not be read."""
        bad = self.judged.where(F.col("_bad").isNotNull()).select("_bad.*")
        unsaid = bad.where(F.col("run").isNull()).select(F.col("file").alias("_file")).distinct()
        of_files = (
            self.judged.where(F.col("_bad").isNull())
            .join(F.broadcast(unsaid), on="_file", how="left_semi")
            .groupBy(F.col("_file").alias("file"))
            .agg(F.when(F.min("run") == F.max("run"), F.min("run")).alias("_run"))
        )
        known = bad.join(F.broadcast(of_files), on="file", how="left")
        return known.withColumn("run", F.coalesce("run", "_run")).drop("_run")


def files(session: SparkSession, paths: Iterable[str]) -> list[str]:
    """The files that these paths name: files, directories (all histories below), or patterns of either.

    Raises:
        NotFound: a path names nothing, or a directory without a history in it.
        UsageError: Spark would pass over a file.
    """
    found: dict[str, None] = {}
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
        found.update(dict.fromkeys(mine))
    return list(found)


def _found(session: SparkSession, path: str) -> Iterable[str]:
    jvm: Any = session._jvm
    where = jvm.org.apache.hadoop.fs.Path(path)
    system = where.getFileSystem(session._jsc.hadoopConfiguration())
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
    """Read histories: files, directories or patterns, on any file system that Spark reads.

    Raises:
        NotFound: a path names no history.
        UsageError: Spark would pass over a file.
        StorageError: a file cannot be opened.
    """
    names = files(session, paths)
    jvm: Any = session._jvm
    # A carriage return is no end of a line; Spark leaves a zero byte or bad UTF-8 to the parser.
    text = session.read.option("lineSep", "\n")
    ends = {name: end for name in names if (end := _torn_line(session, name)) is not None}
    whole = [exactly(name) for name in names if not (name in ends and ends[name].packed)]
    packed = [exactly(name) for name in names if name in ends and ends[name].packed]
    # Spark gives up a file that cannot be unpacked to its end, with all of it, unless it is told to take what there is.
    parts = [text.text(whole)] if whole else []
    parts += [text.option("ignoreCorruptFiles", "true").text(packed)] if packed else []
    lines = reduce(
        DataFrame.unionByName,
        [it.select(F.col("_metadata.file_path").alias("file"), F.col("value")) for it in parts],
    )
    # Escaped, as `file_path` is.
    torn = [(jvm.org.apache.hadoop.fs.Path(name).toUri().toString(), end.line) for name, end in ends.items()]
    if packed:
        of_packed = [
            (file, line) for (file, line), end in zip(torn, ends.values(), strict=True) if end.packed
        ]
        lines = lines.unionByName(session.createDataFrame(of_packed, "file STRING, value STRING"))
    return parsed(session, lines, torn)._replace(bytes=sum(_size(session, name) for name in names))


def _size(session: SparkSession, name: str) -> int:
    jvm: Any = session._jvm
    path = jvm.org.apache.hadoop.fs.Path(name)
    return int(path.getFileSystem(session._jsc.hadoopConfiguration()).getFileStatus(path).getLen())


class End(NamedTuple):
    """The last line of a file, which has no newline; `packed` where the file cannot be unpacked to its end."""

    line: str
    packed: bool = False


def _torn_line(session: SparkSession, name: str) -> End | None:
    """What a file ends with that does not end with a newline; None where it does."""
    jvm: Any = session._jvm
    path = jvm.org.apache.hadoop.fs.Path(name)
    system = path.getFileSystem(session._jsc.hadoopConfiguration())
    try:
        size = system.getFileStatus(path).getLen()
        if not size:
            return None
        if name.endswith(".gz"):
            return _torn_line_of_gzip(path.toUri().getPath())
        stream = system.open(path)
        try:
            end = b""
            while len(end) < size and len(end) <= LINE_BYTES_MAX:
                ask = min(1 << 12 if not end else 1 << 20, size - len(end))
                stream.seek(size - len(end) - ask)
                end = bytes(jvm.org.apache.commons.io.IOUtils.toByteArray(stream, ask)) + end
                if end.endswith(b"\n"):
                    return None
                if b"\n" in end:
                    break
            return End(end.rpartition(b"\n")[2].decode("utf-8", "replace"))
        finally:
            stream.close()
    except Exception as error:  # py4j wraps whatever the file system raises
        reason = str(getattr(error, "java_exception", error)).splitlines()[0]
        raise StorageError(f"{name} cannot be read: {reason}") from None


def _torn_line_of_gzip(path: str) -> End | None:
    """As `_torn_line`. A member that ends too early is a killed writer's; one that is damaged is an error."""
    last, unpack = b"", zlib.decompressobj(wbits=31)
    began = False
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            while chunk:
                began = True
                last = (last + unpack.decompress(chunk)).rpartition(b"\n")[2]
                chunk = unpack.unused_data
                if unpack.eof:
                    began, unpack = False, zlib.decompressobj(wbits=31)
                    chunk = chunk.lstrip(b"\0")  # padding between members
    if began:
        return End((last + unpack.flush()).rpartition(b"\n")[2].decode("utf-8", "replace"), packed=True)
    return End(last.decode("utf-8", "replace")) if last else None


def _parse_schema() -> str:
    """The table `history`, with what JSON writes as mixed lists left as text, and a place for what fits nowhere."""
    columns = [
        f"`{column.name}` {_KEPT_AS_TEXT.get(column.name, column.type.simpleString())}"
        for column in TABLES["history"]
    ]
    return ", ".join([*columns, "`_corrupt` STRING"])


def parsed(session: SparkSession, lines: DataFrame, torn: Sequence[tuple[str, str]] = ()) -> Histories:
    """Lines (`file` and `value`) into rows; ``torn``: the file and text of last lines that have no newline."""
    options = {"columnNameOfCorruptRecord": "_corrupt", "allowNonNumericNumbers": "false"}
    row = F.from_json("value", _parse_schema(), options).alias("row")
    cut = F.expr("false")
    if torn:
        by_file = session.createDataFrame(list(torn), "file STRING, torn STRING")
        lines = lines.join(F.broadcast(by_file), on="file", how="left")
        cut = F.coalesce(F.col("value") == F.col("torn"), F.expr("false"))
    judged = lines.select("file", "value", cut.alias("cut"), row).select(
        "file", "value", "cut", "row.*", _reason().alias("_reason")
    )
    bad = F.struct(
        "file",
        _said("run"),
        _said("who"),
        "kind",
        F.when(F.col("_reason") == WRONG, F.concat("_reason", _wrong()))
        .otherwise(F.col("_reason"))
        .alias("reason"),
        F.expr(" OR ".join(f"startswith(_reason, '{reason}')" for reason in HARMLESS)).alias("harmless"),
        F.substring("value", 1, TEXT_MAX).alias("line"),
    )
    of_bad = F.when(F.col("_reason").isNotNull(), bad)
    return Histories(judged.select(*_typed(), of_bad.alias("_bad"), F.col("file").alias("_file")))


def _typed() -> list[Column]:
    columns = []
    for field in schema("history"):
        column = F.col(f"`{field.name}`")
        if field.name == "spans":
            column = F.expr(
                "transform(spans, s -> named_struct('origin', s[0], 'start', CAST(s[1] AS BIGINT), "
                "'stop', CAST(s[2] AS BIGINT)))"
            )
        columns.append(column.alias(field.name, metadata=field.metadata))
    return columns


def _by(what: Callable[[KindOf], tuple[str, ...]]) -> list[tuple[list[str], tuple[str, ...]]]:
    """Kinds that agree in something, together."""
    found: dict[tuple[str, ...], list[str]] = {}
    for name, spec in KINDS.items():
        found.setdefault(what(spec), []).append(name)
    return [(names, value) for value, names in found.items()]


def _wrong() -> Column:
    """The first field that is there and could not be read as what it must be."""
    first = F.lit("not an object of fields")
    for name in reversed((*COMMON, *FIELDS)):
        there = F.get_json_object("value", f"$.{name}").isNotNull()
        first = F.when(there & F.col(f"`{name}`").isNull(), F.lit(name)).otherwise(first)
    return first


def _said(name: str) -> Column:
    """A field of a line that may not be JSON: writers put the run first, so that even a torn line mostly has it."""
    text = F.regexp_extract("value", f'"{name}" *: *"([^"\\\\]+)"', 1)
    return F.coalesce(F.col(name), F.nullif(text, F.lit(""))).alias(name)


def _reason() -> Column:
    """Why a line is not a line of a history; null where it is."""

    def get(name: str) -> Column:
        return F.col(f"row.`{name}`")

    kind = get("kind")
    reason = F.when(F.col("cut"), F.lit(TORN)).when(F.col("value").rlike(r"^\s*$"), F.lit(BLANK))
    reason = reason.when(
        F.octet_length("value") > LINE_BYTES_MAX, F.lit(f"longer than {LINE_BYTES_MAX} bytes")
    )
    broken = get("_corrupt").isNotNull() | F.col("row").isNull()
    reason = reason.when(broken & F.expr("try_parse_json(value) IS NULL"), F.lit("not JSON"))
    reason = reason.when(broken, F.lit(WRONG))
    for name in COMMON:
        reason = reason.when(get(name).isNull(), F.lit(f"field {name!r} is missing"))
    reason = reason.when(~get("who").rlike(_ROLES), F.lit("a wrong type: who"))
    # 1e400 is JSON; clocks that far off would leave nothing decidable, or nothing to be looked at.
    numbers = [F.abs(get(column.name)) for column in TABLES["history"] if column.type == SECONDS]
    reason = reason.when(F.greatest(*numbers) == float("inf"), F.lit("a number that is not finite"))
    reason = reason.when(~kind.isin(*KINDS), F.concat(F.lit(UNKNOWN_KIND), kind))
    reason = reason.when(
        (kind == "settings") & (get("history") > VERSION),
        F.concat(F.lit("a history of version "), get("history"), F.lit(f"; this reads {VERSION}")),
    )
    for name in FIELDS:
        needing = [kind_name for kind_name, spec in KINDS.items() if name in spec.required]
        if needing:
            lacks = kind.isin(*needing) & get(name).isNull()
            reason = reason.when(lacks, F.concat(F.lit(f"field {name} is missing of a "), kind))
    outcome, role = get("outcome"), F.substring_index(get("who"), ":", 1)
    for names, outcomes in _by(lambda spec: spec.outcomes):
        if outcomes:
            reason = reason.when(kind.isin(*names) & ~outcome.isin(*outcomes), F.lit("an unknown outcome"))
    for names, writers in _by(lambda spec: spec.writers):
        reason = reason.when(kind.isin(*names) & ~role.isin(*writers), F.lit("not of this writer"))
    spans = F.expr(
        "exists(row.spans, s -> size(s) <> 3 OR NOT coalesce(s[0] RLIKE '" + _ORIGIN + "', false) "
        "OR NOT coalesce(try_cast(s[1] AS BIGINT) >= 0 AND try_cast(s[1] AS BIGINT) < try_cast(s[2] AS BIGINT) "
        f"AND try_cast(s[2] AS BIGINT) - try_cast(s[1] AS BIGINT) <= {SPAN_MESSAGES_MAX}, false))"
    )
    reason = reason.when(F.coalesce(spans, F.expr("false")), F.lit("a wrong type: spans"))
    return reason.when(
        get("token").isNotNull() & ~get("token").rlike("^[0-9]{20}@.+$"), F.lit("a wrong type: token")
    )
