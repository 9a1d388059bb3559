"""Log of a node, for its operator.

One line per thing that happened, as JSON or for a terminal, on standard error. Each kind of line is limited by
itself, so that ten thousand broken connections cannot hide the one disk that fails; how many were held back is
said with the next line of that kind. Changes are never held back: what one client does must not hide what another one
did. A line that cannot be written is lost: the disk that is full may be the one
that the log is on, and its reader may be gone, and neither may stop a node.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Callable, MutableMapping
from typing import Any, Final, TextIO

import structlog

from quorumq.core.values.printable import printable

LINES_PER_KIND: Final = 20
"""Lines of one kind within `PERIOD_S`; errors are never held back."""
PERIOD_S: Final = 10.0
KINDS_MAX: Final = 1000
NEVER_HELD_BACK: Final = "change"
"""Kind of the lines of changes (node/changes.py), which have no limit. Errors are not held back either."""

LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}


class RateLimit:
    """A structlog processor that drops what comes too often.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kinds: dict[str, list[float]] = {}  # event -> [period began, lines in it, suppressed]
        self.suppressed = 0

    def __call__(
        self, logger: object, method: str, event: MutableMapping[str, Any]
    ) -> MutableMapping[str, Any]:
        now = self._clock()
        kind = str(event.get("event"))
        whose = str(event.pop("limited_by", ""))  # the client that the limit is for, if each has its own
        seen = self._kinds.get(kind := f"{kind} {whose}")
        if seen is None:
            if len(self._kinds) >= KINDS_MAX:
                self._kinds.clear()
            seen = self._kinds[kind] = [now, 0, 0]
        if now - seen[0] >= PERIOD_S:
            seen[0], seen[1] = now, 0
        limited = method not in ("error", "critical") and event.get("event") != NEVER_HELD_BACK
        if seen[1] >= LINES_PER_KIND and limited:
            seen[2] += 1
            self.suppressed += 1
            raise structlog.DropEvent
        seen[1] += 1
        if seen[2]:
            event["suppressed_before"] = int(seen[2])
            seen[2] = 0
        return event


def escaped(logger: object, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A structlog processor: names and texts from clients and peers reach no terminal as they are."""
    return {name: printable(value) if isinstance(value, str) else value for name, value in event.items()}


class Lines:
    """Writes lines to a file, as far as it takes them."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def msg(self, line: str) -> None:
        """Write one line."""
        with contextlib.suppress(OSError):
            self._file.write(line + "\n")
            self._file.flush()

    debug = info = warning = error = msg


def make_log(
    form: str, level: str, node: str, file: TextIO | None = None, limit: RateLimit | None = None
) -> Any:
    """Return a logger that writes to ``file``; standard error if None.

    Args:
        form: "json" or "console".
        level: "debug", "info", "warning" or "error".
        limit: the rate limit to use; one of its own if None.
    """
    render: Any
    if form == "json":
        render = structlog.processors.JSONRenderer()
    else:
        render = structlog.dev.ConsoleRenderer(colors=(file or sys.stderr).isatty())
    return structlog.wrap_logger(
        Lines(file or sys.stderr),
        processors=[
            limit or RateLimit(),
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            escaped,
            render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS.get(level, logging.INFO)),
        cache_logger_on_first_use=True,
        context_class=dict,
    ).bind(node=node)
