"""Writes the lines of a history: buffered, whole or absent, and bounded on disk."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import IO, Final

from quorumq.history.schema import COMMON, VERSION, HistoryError, Row, check_row

BUFFER_BYTES: Final = 1 << 16
FILE_BYTES_MAX: Final = 1 << 32


monotonic: Final[Callable[[], float]] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
)
"""Seconds on the clock of deadlines (quorumq/client): counts suspended time; all processes of a machine share it."""


def mono_clock() -> tuple[float, int]:
    """Return the clocks of a real process: monotonic seconds, and the time of day in milliseconds."""
    return monotonic(), time.time_ns() // 1_000_000


BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"


def boot() -> str:
    """Return the id of this machine's boot: lines with one id are on one clock. "" if the system has none."""
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
        buffer_bytes: most bytes that are held back before they are written.
        bytes_max: beyond this many bytes, those that the file has already included, one ``truncated`` line is written,
            and the rest is counted and dropped.

    Attributes:
        dropped: lines that were not written because of ``bytes_max``, or after an error.

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
        buffer_bytes: int = BUFFER_BYTES,
        bytes_max: int = FILE_BYTES_MAX,
    ) -> None:
        self.run = run
        self.who = who
        self.dropped = 0
        self._clock = clock
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
            self._file = open(  # noqa: SIM115 - closed by close()
                file,
                "a",
                encoding="utf-8",
                newline="\n",
                opener=lambda path, flags: os.open(path, flags, 0o600),
            )
            status = os.fstat(self._file.fileno())
            self._written = status.st_size
            if stat.S_ISREG(status.st_mode) and status.st_mode & 0o077:
                with contextlib.suppress(PermissionError):  # another user's, who lets others read it
                    os.fchmod(self._file.fileno(), 0o600)
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
            fields: its fields; ``at``, ``wall_ms`` and ``within`` are filled in if they are not given, and
                ``who`` may be given by a writer that speaks for several.
        """
        if "at" not in fields or "wall_ms" not in fields:
            at, wall_ms = self._clock()
            fields.setdefault("at", at)
            fields.setdefault("wall_ms", wall_ms)
        row = {"run": self.run, "who": self.who, "within": 0.0, "kind": kind, **fields}
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
        """Hand everything so far to the system (no fsync). After an error nothing is written, as a line may be torn."""
        lines, self._buffer, self._buffered = self._buffer, [], 0
        try:
            if lines:
                self._file.write("\n".join(lines) + "\n")
            self._file.flush()
        except OSError:
            self._truncated = True
            raise

    def close(self) -> None:
        """Flush, and close the file if it was opened here."""
        self.flush()
        if self._owned:
            self._file.close()


def _cut_torn_line(path: str | os.PathLike[str]) -> None:
    """Remove the rest of a killed writer's last line, so that the next line does not continue it."""
    if not os.path.exists(path):
        return
    with open(path, "r+b") as file:
        end = file.seek(0, os.SEEK_END)
        at = end
        while at > 0:
            start = max(0, at - BUFFER_BYTES)
            file.seek(start)
            newline = file.read(at - start).rfind(b"\n")
            if newline >= 0:
                at = start + newline + 1
                break
            at = start
        if at != end:
            file.truncate(at)
