"""Log of a node, for its operator.

One line per thing that happened, as JSON or for a terminal, on standard error. Each kind of line is limited by
itself, so that ten thousand broken connections cannot hide the one disk that fails; the next line of that kind has the
number of those held back. Changes are never held back, because those of one client must not hide those of another one.
If a line cannot be written, it is lost: the full disk may be that of the log, or its reader may be gone, and neither
may stop a node.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, TextIO

from quorumq.core.values.printable import printable

LINES_PER_KIND: Final = 20
"""Lines of one kind within `PERIOD_S`; errors are never held back."""
PERIOD_S: Final = 10.0
KINDS_MAX: Final = 1000
NEVER_HELD_BACK: Final = "change"
"""Kind of the lines of changes (node/changes.py), which have no limit. Errors are not held back either."""

LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}


class RateLimit:
    """Limit of the lines of each kind."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kinds: dict[str, list[float]] = {}  # event -> [period began, lines in it, suppressed]
        self.suppressed = 0

    def admit(self, level: str, event: str, whose: str) -> int | None:
        """Count one line.

        Args:
            whose: the client that the limit is for, if each has its own; else "".

        Returns:
            The number of lines held back before this one, or None if this one is held back too.
        """
        now = self._clock()
        seen = self._kinds.get(kind := f"{event} {whose}")
        if seen is None:
            if len(self._kinds) >= KINDS_MAX:
                self._kinds.clear()
            seen = self._kinds[kind] = [now, 0, 0]
        if now - seen[0] >= PERIOD_S:
            seen[0], seen[1] = now, 0
        if seen[1] >= LINES_PER_KIND and level != "error" and event != NEVER_HELD_BACK:
            seen[2] += 1
            self.suppressed += 1
            return None
        seen[1] += 1
        before, seen[2] = int(seen[2]), 0
        return before


class Log:
    """Writes a line per event, as far as its file takes them.

    Args:
        console: True for lines to read at a terminal; else each is a JSON object.
        level: the lowest level that is written, a name in `LEVELS`.

    Why no library: importing one took a third of the CPU time in which a node starts.
    """

    def __init__(self, console: bool, level: str, node: str, file: TextIO, limit: RateLimit) -> None:
        self._form = self._text if console else self._json
        self._least = LEVELS.get(level, LEVELS["info"])
        self._node = node
        self._file = file
        self._limit = limit

    def debug(self, event: str, **fields: Any) -> None:
        """Write a line that helps to find a fault."""
        self._write("debug", event, fields)

    def info(self, event: str, **fields: Any) -> None:
        """Write a line about normal operation."""
        self._write("info", event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        """Write a line about a condition that an operator may have to end."""
        self._write("warning", event, fields)

    def error(self, event: str, **fields: Any) -> None:
        """Write a line about a failure of this node.

        Args:
            fields: values by name; ``exc_info`` is an exception, or True for the current one, and adds its traceback.
        """
        self._write("error", event, fields)

    def _write(self, level: str, event: str, fields: dict[str, Any]) -> None:
        if LEVELS[level] < self._least:
            return
        before = self._limit.admit(level, event, str(fields.pop("limited_by", "")))
        if before is None:
            return
        error = fields.pop("exc_info", None)
        line = {"node": self._node, **fields, "event": event, "level": level}
        if before:
            line["suppressed_before"] = before
        line["timestamp"] = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        if error := sys.exception() if error is True else error:
            line["exception"] = "".join(traceback.format_exception(error)).rstrip()
        line = {name: printable(value) if isinstance(value, str) else value for name, value in line.items()}
        with contextlib.suppress(OSError):
            self._file.write(self._form(line) + "\n")
            self._file.flush()

    def _json(self, line: dict[str, Any]) -> str:
        return json.dumps(line, default=repr)

    def _text(self, line: dict[str, Any]) -> str:
        stamp, level, event = (line.pop(name) for name in ("timestamp", "level", "event"))
        trace = line.pop("exception", "")
        fields = " ".join(f"{name}={one_word(value)}" for name, value in line.items())
        text = f"{stamp} [{level:<7}] {event:<30} {fields}"
        return f"{text}\n{trace}" if trace else text


def one_word(value: object) -> str:
    """Return the text of a value, in quotes if it has spaces or line ends."""
    text = str(value)
    return text if len(text.split()) == 1 else repr(text)


def make_log(
    form: str, level: str, node: str, file: TextIO | None = None, limit: RateLimit | None = None
) -> Log:
    """Return a log of the ``form`` "json" or "console" that writes to ``file``; standard error if None."""
    return Log(form == "console", level, node, file or sys.stderr, limit or RateLimit())
