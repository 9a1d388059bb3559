"""Lines that are no lines of a history, and the reasons."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, NamedTuple, TypeAlias

import msgspec

from quorumq.history import Field
from quorumq.history.reader import LINE_BYTES_MAX

SPAN_MESSAGES_MAX: Final = 1 << 24
"""A span of more messages than that was not written by quorumq: a batch is far smaller."""

TEXT_MAX: Final = 200
"""Most characters of a line that are shown."""

TORN: Final = "a last line without its newline: the writer was killed"
BLANK: Final = "a blank line"
UNKNOWN_KIND: Final = "a kind that this version does not know: "
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


def _names(line: bytes) -> list[str | None]:
    """Run, writer and kind of a line, which may not be JSON: writers put the run first."""
    try:
        row = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        row = None
    result: list[str | None] = []
    for name in ("run", "who", "kind"):
        value = row.get(name) if isinstance(row, dict) else None
        if not isinstance(value, str):
            match = re.search(f'"{name}" *: *"([^"\\\\]+)"'.encode(), line)
            value = match[1].decode("utf-8", "replace") if match and name != "kind" else None
        result.append(value)
    return result


def torn(file: str, line: bytes) -> Unread:
    """Return the last line of a file, which has no newline."""
    run, who, _ = _names(line)
    return Unread(file, run, who, None, TORN, True, line.decode("utf-8", "replace")[:TEXT_MAX])


def refused(file: str, line: bytes, reason: str) -> Unread:
    """Return a line that is not of the schema, with the reason."""
    run, who, kind = _names(line)
    harmless = reason == BLANK or reason.startswith(UNKNOWN_KIND)
    return Unread(file, run, who, kind, reason, harmless, line.decode("utf-8", "replace")[:TEXT_MAX])


def reason_of(line: bytes, error: Exception | None = None) -> str:
    """Return the reason why a line is no line of a history: ``error`` is what msgspec said of it.

    Values and indexes are left out, so that lines with one fault have one reason.
    """
    if not line.strip(b" \t\r\n\v\f"):
        return BLANK
    if len(line) > LINE_BYTES_MAX:
        return f"longer than {LINE_BYTES_MAX} bytes"
    if not isinstance(error, msgspec.ValidationError):
        return "not JSON"
    if named := re.fullmatch(r"Invalid value '(.*)' - at `\$\.kind`", str(error), re.DOTALL):
        return f"{UNKNOWN_KIND}{named[1]}"
    return re.sub(r"\[\d+\]|(?<=enum value )'.*'", lambda it: "[]" if it[0][0] == "[" else "", str(error))
