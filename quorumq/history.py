"""What happened, one JSON object per line.

Nodes, clients and the simulator write the same history, so that one set of checkers, one diagram and one audit serve
all of them. The tables below are the schema; docs/history.md is compared with them by a test, both ways.

What a history promises: a line is complete or it is not there; every line says who wrote it, when, and how exactly
that is known; messages are named by spans, never one by one, so a batch of 10,000 costs one line. What it does not
promise: that two machines' clocks agree (each line carries its own uncertainty), or that nothing is missing after a
kill: a writer buffers.
"""

from __future__ import annotations

import functools
import gzip
import json
import math
import os
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Final, NamedTuple, cast

from quorumq.core.messages import AlterTopic, CreateTopic
from quorumq.core.topics import SETTINGS
from quorumq.core.types import NODES_MAX, Incarnation, Origin, Owner, Span, Stamp, Topic, topic_id

VERSION: Final = 1
"""The version of this schema; the first line of every writer (kind ``settings``) names it."""

SUFFIXES: Final = (".jsonl", ".jsonl.gz")
"""What a history is called in a directory; a file that is named is read whatever it is called."""

LINE_BYTES_MAX: Final = 1 << 22
"""A line that a reader accepts, in bytes. A writer splits nothing: publishes and deliveries are far below it."""

BUFFER_BYTES: Final = 1 << 16
FILE_BYTES_MAX: Final = 1 << 32

Row = dict[str, Any]
"""One line as a mapping of field names to plain values."""


class HistoryError(ValueError):
    """A line that is not of this schema. The text names the file, the line, the field and its value."""


# --------------------------------------------------------------------------- the schema


class Field(NamedTuple):
    """One field: how it looks and what it says."""

    shape: str  # a key of _SHAPES
    meaning: str


class KindOf(NamedTuple):
    """One kind of line: who writes it, which fields it must and may have, and what it says.

    ``outcomes`` lists what ``outcome`` may be; empty where anything goes.
    """

    writers: tuple[str, ...]
    required: tuple[str, ...]
    optional: tuple[str, ...]
    outcomes: tuple[str, ...]
    meaning: str


COMMON: Final[dict[str, Field]] = {
    "run": Field("text", "name of the run; lines of one run belong together, whatever file they are in"),
    "who": Field("who", "who wrote the line: `node:<id>`, `client:<name>` or `sim`"),
    "at": Field("number", "seconds: the writer's monotonic clock, or simulated time"),
    "wall_ms": Field("integer", "the writer's time of day, milliseconds since 1970"),
    "within": Field("number", "uncertainty of `at` in seconds, either way; 0 in the simulator"),
    "kind": Field("text", "which of the kinds below"),
}
"""Fields of every line."""

FIELDS: Final[dict[str, Field]] = {
    "asked": Field("number", "when the FETCH that this answers was sent, on the clock of `at`"),
    "attempt": Field("integer", "1 for the first delivery of a message to the group, by the cluster's count"),
    "clock": Field("text", "what `at` is: `mono` or `simulated`"),
    "complete": Field("flag", "whether every replica that must be asked was"),
    "crcs": Field("text", "CRC-32C of each record's bytes, 8 hex digits per message, in order of the spans"),
    "defaults": Field("object", "settings that a CREATE does not name, and that the topic gets if it is new"),
    "delay": Field("number", "seconds until a message is due: published, or rejected"),
    "detail": Field("text", "anything more, for people"),
    "fault": Field("text", "what was done to the run, as `crash`, `partition`, `heal` …"),
    "from_ms": Field(
        "integer", "where a generation begins: it reads batches published at or after this time"
    ),
    "generation": Field("integer", "the group's generation; 0 for the first"),
    "group": Field("text", "the group's name"),
    "history": Field("integer", "version of this schema"),
    "hold_time": Field("number", "seconds asked for"),
    "incarnation": Field("integer", "which start of the node this is, counted from 1"),
    "into": Field(
        "object", "`topic`, `partition` and `spans` of outputs; `index` where an input has several"
    ),
    "links": Field("links", "directed pairs [from, to] of node ids and client names"),
    "messages": Field("integer", "how many messages"),
    "n": Field("integer", "the redrive number: how often the message was redriven before"),
    "nodes": Field("texts", "node ids and client names that it concerns"),
    "op": Field("integer", "the writer's number for one request: an `invoke` and its outcome share it"),
    "outcome": Field("text", "`invoke` when the request is sent, later what came of it"),
    "owner": Field("owner", "whose hold: `node.n.nonce#time@node`, numbers in hex but for n"),
    "partition": Field("integer", "the partition's number"),
    "phase": Field("text", "a part of the run that begins here"),
    "published_ms": Field("integer", "when the batch was made, by its producer's time of day"),
    "reason": Field("text", "why"),
    "rewind": Field("flag", "whether a group that is there is to be rewound"),
    "seconds": Field("number", "how long it lasts"),
    "settings": Field("object", "options of the run, of the node or client, or of a topic"),
    "spans": Field("spans", "messages: a list of [origin, start, stop), origin as `node.n.nonce.k`"),
    "start": Field("text", "where a group is to begin: `earliest`, `latest` or `time`"),
    "state": Field(
        "text", "what a listing shows: `ready`, `held`, `delayed`, `dead`, `acked`, `skipped`, `purged`"
    ),
    "token": Field("token", "the fencing token, as text that sorts like it"),
    "topic": Field(
        "text", "the topic's name; `#` and how often it was deleted before come behind it, if it was"
    ),
    "ttl": Field("number", "seconds after which a published message expires"),
    "until": Field(
        "number", "the deadline of a delivery on the clock of `at`; work after it may not be alone"
    ),
    "via": Field("text", "the node that was asked"),
}
"""Fields that some kinds have."""

_MESSAGES: Final = ("topic", "partition", "spans")
_DELIVERED: Final = ("topic", "partition", "group", "generation", "n", "spans", "owner")
_CALL: Final = ("invoke", "ok", "unknown", "fail")
_SETTLED: Final = ("invoke", "ok", "hold-lost", "already-resolved", "stale-generation", "unknown", "fail")
_ACKED: Final = ("acked", "acked_after_expiry", "acked_unproven")

KINDS: Final[dict[str, KindOf]] = {
    "settings": KindOf(
        ("node", "client", "sim"),
        ("history", "settings"),
        ("clock", "detail"),
        (),
        "The first line of every writer: the schema's version and the options it runs with.",
    ),
    "phase": KindOf(
        ("sim",),
        ("phase",),
        ("seconds", "detail"),
        (),
        "A part of the run begins: `faults`, `healed`, `drained`, `end`.",
    ),
    "fault": KindOf(
        ("sim",),
        ("fault",),
        ("nodes", "links", "seconds", "detail"),
        (),
        "Something was done to the cluster, or undone.",
    ),
    "start": KindOf(
        ("node",),
        ("incarnation",),
        ("detail", "outcome"),
        ("fresh", "restored", "quarantine"),
        "The node started: on an empty directory, with the holds of a clean stop, or into quarantine.",
    ),
    "stop": KindOf(
        ("node",),
        ("incarnation",),
        ("reason", "detail"),
        (),
        "The node stopped cleanly, or says why it must.",
    ),
    "crash": KindOf(
        ("node", "sim"),
        (),
        ("incarnation", "nodes", "detail"),
        (),
        "The node was killed; what was not durable may be lost.",
    ),
    "publish": KindOf(
        ("client",),
        (*_MESSAGES, "op", "outcome"),
        ("crcs", "published_ms", "delay", "ttl", "via", "detail"),
        _CALL,
        "PUBLISH. `fail`: nothing is stored by this try. `unknown`: it may be. `crcs` stands in the `invoke`.",
    ),
    "derive": KindOf(
        ("client",),
        (*_MESSAGES, "group", "into"),
        ("crcs", "detail"),
        (),
        "One output of each of these messages, as `group` got them, is published; `into` names them in order.",
    ),
    "store": KindOf(
        ("node",),
        _MESSAGES,
        ("detail",),
        (),
        "These messages are durable (durability `os`: written) on this node, by STORE or by anti-entropy.",
    ),
    "hold_won": KindOf(
        ("node",),
        _DELIVERED,
        ("token", "attempt", "op", "until"),
        (),
        "This coordinator won these messages and began to write them to the client.",
    ),
    "hold_lost": KindOf(
        ("node",),
        ("topic", "partition", "group", "spans", "owner"),
        ("reason",),
        (),
        "This coordinator gave up a HOLD round, or what it won, and released it.",
    ),
    "expire": KindOf(
        ("node",),
        ("topic", "partition", "group", "spans"),
        ("n", "attempt"),
        (),
        "Holds ran out at this replica, and an attempt was counted.",
    ),
    "deliver": KindOf(
        ("client",),
        (*_DELIVERED, "token", "attempt", "until", "asked"),
        ("crcs", "op", "via", "detail"),
        (),
        "Messages were handed to the application. `crcs` are of the bytes that it got.",
    ),
    "ack": KindOf(
        ("client",),
        (*_DELIVERED, "op", "outcome"),
        ("via", "detail"),
        ("invoke", *_ACKED, "already-resolved", "stale-generation", "unknown", "fail"),
        "ACK and its verdict (docs/protocol.md, ACK).",
    ),
    "reject": KindOf(
        ("client",),
        (*_DELIVERED, "op", "outcome"),
        ("delay", "via", "detail"),
        _SETTLED,
        "REJECT with a delay: deliver it again later.",
    ),
    "dead_letter": KindOf(
        ("client", "node"),
        (*_DELIVERED, "outcome"),
        ("op", "reason", "via", "detail"),
        _SETTLED,
        "REJECT to the dead letters; by a node where a message ran out of deliveries or time.",
    ),
    "extend": KindOf(
        ("client",),
        (*_DELIVERED, "op", "outcome"),
        ("hold_time", "until", "via", "detail"),
        _SETTLED,
        "EXTEND. With `ok`, `until` is the new deadline.",
    ),
    "leave": KindOf(
        ("client",),
        (*_DELIVERED, "op"),
        ("via", "detail"),
        (),
        "LEAVE: these were never handed to the application and never will be.",
    ),
    "release": KindOf(
        ("node",),
        ("topic", "partition", "group", "spans", "owner"),
        ("reason",),
        (),
        "This coordinator gave back what it delivered, as the reply was never begun.",
    ),
    "redrive": KindOf(
        ("client",),
        ("topic", "partition", "group", "generation", "n", "spans", "op", "outcome"),
        ("via", "detail"),
        ("invoke", "ok", "already-resolved", "unknown", "fail"),
        "REDRIVE of dead letters that were listed at redrive number `n`.",
    ),
    "purge": KindOf(
        ("client",),
        ("topic", "partition", "group", "op", "outcome"),
        ("messages", "via", "detail"),
        _CALL,
        "PURGE of a group's backlog, or of its dead letters where the group's name ends in `!dead`.",
    ),
    "set_group": KindOf(
        ("client",),
        ("topic", "group", "op", "outcome"),
        ("start", "from_ms", "rewind", "generation", "via", "detail"),
        _CALL,
        "A group is created, or rewound. With `ok`, `generation` and `from_ms` are what it is now.",
    ),
    "register": KindOf(
        ("node",),
        ("topic", "group", "generation", "from_ms"),
        ("detail",),
        (),
        "The node has this of the group: which generation is current, and where that begins.",
    ),
    "list": KindOf(
        ("client", "node", "sim"),
        ("topic", "partition", "group", "state", "spans"),
        ("n", "generation", "complete", "via", "detail"),
        (),
        "A listing (PEEK) showed these messages in this state.",
    ),
    "set_topic": KindOf(
        ("client",),
        ("topic", "op", "outcome"),
        ("settings", "defaults", "via", "detail"),
        _CALL,
        "CREATE or ALTER of a topic. `settings`, in the `invoke`, are those that the request names, `defaults` what "
        "it leaves to the node.",
    ),
    "delete_topic": KindOf(
        ("client",),
        ("topic", "op", "outcome"),
        ("via", "detail"),
        _CALL,
        "DELETE of a topic, for good. What is created later under its name is another topic.",
    ),
    "topic": KindOf(
        ("node",),
        ("topic", "settings"),
        ("detail",),
        (),
        "The node has this register of the topic.",
    ),
    "truncated": KindOf(
        ("node", "client", "sim"),
        ("detail",),
        (),
        (),
        "The writer reached its limit: what comes after is not here.",
    ),
}
"""Every kind of line."""


# ------------------------------------------------------------------ values as text


LABEL_DELETIONS_MAX: Final = 1000
"""How often a topic's name may have been deleted before for its label to say so; beyond that it has the topic's id."""


def label_after(name: str, deletions: int) -> str:
    """What a history calls the topic that has a name after so many others that had it were deleted.

    For a topic of which no more is known; of any other `topic_label` tells.
    """
    return f"{name}#{deletions}" if deletions else name


@functools.lru_cache(maxsize=1000)
def topic_label(topic: bytes, name: str) -> str:
    """What a history calls a topic, by its id: all writers call it the same.

    The id says how often the name had been deleted before (docs/protocol.md, section 1, "topic"), and a delivery or a
    receipt, which have no more than id and name, need nothing else.
    """
    for deletions in range(LABEL_DELETIONS_MAX):
        for rf in range(1, NODES_MAX, 2):
            if topic == topic_id(name, rf, deletions):
                return label_after(name, deletions)
    return f"{name}#{topic.hex()}"


def settings_value(source: Topic | CreateTopic | AlterTopic) -> dict[str, object]:
    """The settings that a register has or a request names; times have a point, whoever wrote them."""
    found: dict[str, object] = {}
    for name in ("partitions", *SETTINGS):
        value = getattr(source, name)
        if value is not None:
            exact = name in ("partitions", "max_deliveries", "durability")
            found[name] = (
                value if exact else [float(it) for it in value] if name == "backoff" else float(value)
            )
    return found


def origin_text(origin: Origin) -> str:
    """An origin as it is written: ``node.n.nonce.k``, the nonce in hex. Node ids have no dot."""
    return f"{origin.node}.{origin.n}.{origin.nonce:x}.{origin.k}"


def parse_origin(text: str) -> Origin:
    """The inverse of `origin_text`; ValueError where it is none."""
    node, n, nonce, k = text.split(".")
    return Origin(node, int(n), int(nonce, 16), int(k))


def owner_text(owner: Owner) -> str:
    """An owner as it is written: ``node.n.nonce#time@node``, nonce and time in hex."""
    (n, nonce), ballot = owner.incarnation, owner.ballot
    return f"{owner.node}.{n}.{nonce:x}#{ballot.time:x}@{ballot.node}"


def parse_owner(text: str) -> Owner:
    """The inverse of `owner_text`; ValueError where it is none."""
    who, ballot = text.split("#")
    node, n, nonce = who.split(".")
    at, by = ballot.split("@")
    return Owner(node, Incarnation(int(n), int(nonce, 16)), Stamp(int(at, 16), by))


def token_text(ballot: Stamp) -> str:
    """A fencing token: 20 digits, ``@`` and the node id, so that texts sort as tokens do."""
    return f"{ballot.time:020d}@{ballot.node}"


def spans_value(spans: Iterable[Span]) -> list[list[object]]:
    """Spans as they are written."""
    return [[origin_text(span.origin), span.start, span.stop] for span in spans]


# ----------------------------------------------------------------------- validation


def _is_int(value: object) -> bool:
    return type(value) is int


def _is_number(value: object) -> bool:
    return type(value) is int or (type(value) is float and math.isfinite(value))


def _is_spans(value: object) -> bool:
    if not isinstance(value, list):
        return False
    for item in value:
        if not (isinstance(item, list) and len(item) == 3 and _is_int(item[1]) and _is_int(item[2])):
            return False
        if not (0 <= item[1] < item[2] and _parses(parse_origin, item[0])):
            return False
    return True


def _parses(parse: Callable[[str], object], value: object) -> bool:
    if not isinstance(value, str):
        return False
    try:
        parse(value)
    except ValueError:
        return False
    return True


def _is_token(value: object) -> bool:
    return isinstance(value, str) and len(value) > 21 and value[20] == "@" and value[:20].isdigit()


def _is_who(value: object) -> bool:
    if not isinstance(value, str):
        return False
    role, colon, name = value.partition(":")
    return value == "sim" or (role in ("node", "client") and colon == ":" and bool(name))


def _is_links(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(pair, list) and len(pair) == 2 and all(isinstance(end, str) for end in pair)
        for pair in value
    )


_SHAPES: Final[dict[str, tuple[Callable[[object], bool], str]]] = {
    "text": (lambda value: isinstance(value, str), "text"),
    "texts": (
        lambda value: isinstance(value, list) and all(isinstance(x, str) for x in value),
        "a list of texts",
    ),
    "integer": (_is_int, "an integer"),
    "number": (_is_number, "a finite number"),
    "flag": (lambda value: isinstance(value, bool), "true or false"),
    "object": (lambda value: isinstance(value, dict), "an object"),
    "spans": (_is_spans, 'a list of ["node.n.nonce.k", start, stop] with 0 <= start < stop'),
    "owner": (lambda value: _parses(parse_owner, value), '"node.n.nonce#time@node"'),
    "token": (_is_token, '20 digits, "@" and a node id'),
    "who": (_is_who, '"node:<id>", "client:<name>" or "sim"'),
    "links": (_is_links, "a list of [from, to]"),
}


def check_row(row: Mapping[str, object]) -> str:
    """What is wrong with a line, or "".

    Fields that this schema does not know are let through: a later version may add some.
    """
    for name, field in COMMON.items():
        if name not in row:
            return f"field {name!r} is missing: {field.meaning}"
    kind = row["kind"]
    spec = KINDS.get(kind) if isinstance(kind, str) else None
    if spec is None:
        return f"kind is {kind!r}: it must be one of {', '.join(KINDS)}"
    for name in spec.required:
        if name not in row:
            return f"field {name!r} is missing from a {kind!r} line: {FIELDS[name].meaning}"
    for name, value in row.items():
        known = COMMON.get(name) or FIELDS.get(name)
        if known is None:
            continue
        if name not in COMMON and name not in spec.required and name not in spec.optional:
            return f"a {kind!r} line has no field {name!r}"
        test, shape = _SHAPES[known.shape]
        if not test(value):
            return f"{name} is {_shown(value)}: it must be {shape}"
    if spec.outcomes and "outcome" in row and row["outcome"] not in spec.outcomes:
        return (
            f"outcome of a {kind!r} line is {row['outcome']!r}: it must be one of {', '.join(spec.outcomes)}"
        )
    role = str(row["who"]).partition(":")[0]
    if role not in spec.writers:
        return f"{row['who']!r} wrote a {kind!r} line: only {' and '.join(spec.writers)} do"
    return ""


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


# --------------------------------------------------------------------------- writing


def mono_clock() -> tuple[float, int]:
    """The clocks of a real process: monotonic seconds, suspended time included, and the time of day in milliseconds."""
    return _MONOTONIC(), time.time_ns() // 1_000_000


def _boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


_MONOTONIC: Final = _boottime if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
"""The clock of deadlines (quorumq/client): all processes of a machine share it."""

BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"


def boot() -> str:
    """Which start of which machine this is, so that lines on one clock can be told from others; "" where none says."""
    try:
        return Path(BOOT_ID).read_text(encoding="ascii").strip()
    except OSError:
        return ""


class HistoryWriter:
    """Appends lines to a file; buffered, and bounded in memory and on disk.

    Lines are complete or absent: the buffer is written in whole lines. What is in the buffer is lost with the
    process; `flush` hands it to the system. One thread.

    Args:
        file: a path, which is appended to and closed by `close`, or an open text file, which is only flushed.
        run: the name of the run.
        who: ``node:<id>``, ``client:<name>`` or ``sim``.
        settings: goes into the first line.
        clock: gives (at, wall_ms) for lines that do not bring them.
        within: the uncertainty of that clock in seconds.
        buffer_bytes: what is held back at most before it is written.
        bytes_max: beyond this many bytes one ``truncated`` line is written, and the rest is counted and dropped.

    Attributes:
        dropped: lines that were not written because of ``bytes_max``.

    Raises:
        OSError: from `write`, `flush` and `close`, as the file gives it.
        HistoryError: from `write`, for a line that is not of the schema.
    """

    def __init__(
        self,
        file: str | os.PathLike[str] | IO[str],
        *,
        run: str,
        who: str,
        settings: Mapping[str, object] | None = None,
        clock: Callable[[], tuple[float, int]] = mono_clock,
        within: float = 0.0,
        buffer_bytes: int = BUFFER_BYTES,
        bytes_max: int = FILE_BYTES_MAX,
    ) -> None:
        self.run = run
        self.who = who
        self.dropped = 0
        self._clock = clock
        self._within = within
        self._buffer: list[str] = []
        self._buffered = 0
        self._buffer_bytes = buffer_bytes
        self._written = 0
        self._bytes_max = bytes_max
        self._truncated = False
        self._owned = isinstance(file, str | os.PathLike)
        self._file: IO[str]
        if isinstance(file, str | os.PathLike):
            _cut_torn_line(file)
            self._file = open(file, "a", encoding="utf-8", newline="\n")  # noqa: SIM115 - closed by close()
        else:
            self._file = file
        real = clock is mono_clock
        options = {**(settings or {}), **({"boot": boot()} if real and boot() else {})}
        self.write("settings", history=VERSION, clock="mono" if real else "simulated", settings=options)

    def __enter__(self) -> HistoryWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def write(self, kind: str, **fields: object) -> None:
        """Append one line.

        Args:
            kind: one of `KINDS`.
            fields: its fields; ``at``, ``wall_ms`` and ``within`` are filled in where they are not given, and
                ``who`` may be given by a writer that speaks for several.
        """
        if "at" not in fields or "wall_ms" not in fields:
            at, wall_ms = self._clock()
            fields.setdefault("at", at)
            fields.setdefault("wall_ms", wall_ms)
        row = {"run": self.run, "who": self.who, "within": self._within, "kind": kind, **fields}
        self.append(row)

    def append(self, row: Row) -> None:
        """Append a whole line, checked against the schema."""
        problem = check_row(row)
        if problem:
            raise HistoryError(f"a history line of {row.get('who')!r}: {problem}")
        if self._truncated:
            self.dropped += 1
            return
        text = json.dumps(row, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
        if self._written + len(text) + 1 > self._bytes_max:
            self._truncated = True
            self.dropped += 1
            detail = f"the limit of {self._bytes_max} bytes is reached"
            text = json.dumps({**{name: row[name] for name in COMMON}, "kind": "truncated", "detail": detail})
        self._buffer.append(text)
        self._buffered += len(text) + 1
        self._written += len(text) + 1
        if self._buffered >= self._buffer_bytes:
            self.flush()

    def flush(self) -> None:
        """Hand everything so far to the system (no fsync)."""
        if self._buffer:
            self._file.write("\n".join(self._buffer) + "\n")
            self._buffer.clear()
            self._buffered = 0
        self._file.flush()

    def close(self) -> None:
        """Flush, and close the file if it was opened here."""
        self.flush()
        if self._owned:
            self._file.close()


def _cut_torn_line(path: str | os.PathLike[str]) -> None:
    """Remove what a killed writer left of its last line, so that the next line does not continue it."""
    if not os.path.exists(path):
        return
    with open(path, "r+b") as file:
        end = file.seek(0, os.SEEK_END)
        at = end
        while at > 0:
            start = max(0, at - BUFFER_BYTES)
            file.seek(start)
            found = file.read(at - start).rfind(b"\n")
            if found >= 0:
                at = start + found + 1
                break
            at = start
        if at != end:
            file.truncate(at)


# --------------------------------------------------------------------------- reading


def histories_of(path: Path) -> list[Path]:
    """The files that a path names: itself, or of a directory all below whose names end in one of SUFFIXES, sorted.

    Returns:
        None of them where nothing is there.
    """
    if path.is_dir():
        return sorted(found for found in path.rglob("*") if found.name.endswith(SUFFIXES) and found.is_file())
    return [path] if path.is_file() else []


def read_history(paths: Iterable[str | os.PathLike[str]]) -> Iterator[Row]:
    """The lines of these files, one file after the other, each checked.

    A last line without its newline is the mark of a killed writer and is left out.

    Args:
        paths: files in any order; what ends in .gz is unpacked.

    Raises:
        HistoryError: a line that is not of the schema: the text begins with ``file:line``.
        OSError: a file cannot be read.
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
