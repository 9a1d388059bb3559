"""The reason why a line is not a line of a history: looked for slowly, once a line was refused."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, NamedTuple, TypeAlias

import msgspec

from quorumq.history import COMMON, FIELDS, KINDS, VERSION, Field, Row
from quorumq.history.reader import LINE_BYTES_MAX

SPAN_MESSAGES_MAX: Final = 1 << 24
"""A span of more messages than that was not written by quorumq: a batch is far smaller."""

TEXT_MAX: Final = 200
"""Most characters of a line that are shown."""

TORN: Final = "a last line without its newline: the writer was killed"
BLANK: Final = "a blank line"
UNKNOWN_KIND: Final = "a kind that this version does not know: "
WRONG: Final = "a wrong type: "
HARMLESS: Final = (TORN, BLANK, UNKNOWN_KIND)
"""Reasons that the rules of docs/history.md allow, or that cost nothing; the others make a run incomplete."""

_SMALL: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)]
_WHOLE: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]
_SHAPES: Final[dict[str, Any]] = {
    "integer": _WHOLE, "number": float, "flag": bool, "texts": list[str], "object": dict[str, Any],
    "links": list[list[str]], "spans": list[tuple[str, _WHOLE, _WHOLE]],
}  # fmt: skip
_COUNTS: Final = frozenset(("attempt", "history", "n", "partition"))
ROLES: Final = {"n": "node", "c": "client", "s": "sim"}
WHO: Final = re.compile("sim|(node|client):.+", re.DOTALL)
PRODUCER_ID: Final = re.compile(r"[^.]+\.[0-9]+\.[0-9a-fA-F]+\.[0-9]+")
TOKEN: Final = re.compile("[0-9]{20}@.+", re.DOTALL)


def type_of(name: str, field: Field) -> Any:
    """Return the type that msgspec reads a field as."""
    return _SMALL if name in _COUNTS else _SHAPES.get(field.shape, str)


class Unread(NamedTuple):
    """A line that could not be read, and why."""

    file: str
    run: str | None
    who: str | None
    kind: str | None
    reason: str
    harmless: bool
    line: str


def _names(line: bytes, row: Row | None) -> tuple[str | None, str | None, str | None]:
    """Run, writer and kind of a line, which may not be JSON: writers put the run first."""
    result: list[str | None] = []
    for name in ("run", "who", "kind"):
        value = (row or {}).get(name)
        if not isinstance(value, str):
            match = re.search(f'"{name}" *: *"([^"\\\\]+)"'.encode(), line)
            value = match[1].decode("utf-8", "replace") if match and name != "kind" else None
        result.append(value)
    return result[0], result[1], result[2]


def torn(file: str, line: bytes) -> Unread:
    """Return the last line of a file, which has no newline."""
    run, who, kind = _names(line, None)
    return Unread(file, run, who, kind, TORN, True, line.decode("utf-8", "replace")[:TEXT_MAX])


def refused(file: str, line: bytes) -> Unread:
    """Return a line that is not of the schema, with the reason."""
    reason, row = reason_of(line)
    text = line.decode("utf-8", "replace")[:TEXT_MAX]
    return Unread(file, *_names(line, row), reason, reason.startswith(HARMLESS), text)


def reason_of(line: bytes) -> tuple[str, Row | None]:
    """Return the reason why a line is not a line of a history, and the line, if it is an object of fields."""
    if not line.strip(b" \t\r\n\v\f"):
        return BLANK, None
    if len(line) > LINE_BYTES_MAX:
        return f"longer than {LINE_BYTES_MAX} bytes", None
    try:
        row = json.loads(line, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return "not JSON", None
    if not isinstance(row, dict):
        return WRONG + "not an object of fields", None
    return _reason(row) or "not JSON", row


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _reason(row: Mapping[str, Any]) -> str:
    fields = COMMON | FIELDS
    for name, field in fields.items():
        value = row.get(name)
        if name != "spans" and value is not None and not _fits(name, field, value):
            return WRONG + name
    for name in COMMON:
        if row.get(name) is None:
            return f"field {name!r} is missing"
    if not WHO.fullmatch(row["who"]):
        return WRONG + "who"
    numbers = [
        row[name] for name, field in fields.items() if field.shape == "number" and row.get(name) is not None
    ]
    if not all(map(math.isfinite, numbers)):
        return "a number that is not finite"
    kind, role = row["kind"], row["who"].partition(":")[0]
    if kind not in KINDS:
        return f"{UNKNOWN_KIND}{kind}"
    if kind == "settings" and (row.get("history") or 0) > VERSION:
        return f"a history of version {row['history']}; this reads {VERSION}"
    spec = KINDS[kind]
    for name in FIELDS:
        if name in spec.required and row.get(name) is None:
            return f"field {name} is missing of a {kind}"
    if spec.outcomes and row.get("outcome") is not None and row["outcome"] not in spec.outcomes:
        return "an unknown outcome"
    if role not in spec.writers:
        return "not of this writer"
    if row.get("spans") is not None and not _are_spans(row["spans"]):
        return WRONG + "spans"
    if row.get("token") is not None and not TOKEN.fullmatch(row["token"]):
        return WRONG + "token"
    if row.get("crcs"):
        return WRONG + "crcs"
    return WRONG + "into" if kind == "derive" else ""


def _fits(name: str, field: Field, value: Any) -> bool:
    if field.shape == "number":
        return type(value) in (int, float)
    try:
        msgspec.convert(value, type_of(name, field))
    except msgspec.ValidationError:
        return False
    return True


def _are_spans(value: Any) -> bool:
    try:
        return all(
            PRODUCER_ID.fullmatch(producer_id)
            and 0 <= start < stop <= min(start + SPAN_MESSAGES_MAX, 1 << 62)
            for producer_id, start, stop in msgspec.convert(value, list[tuple[str, int, int]])
        )
    except msgspec.ValidationError:
        return False
