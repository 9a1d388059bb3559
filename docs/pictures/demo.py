"""Runs `quorumq demo` in a terminal of 110 columns and draws what stands there at its end: docs/demo.svg.

Run `python docs/pictures/demo.py`. The numbers are those of the run.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import sys
import termios
from pathlib import Path

from rich.console import Console
from rich.text import Text

COLUMNS = 110
LINES = 45
MOVES = re.compile(r"\x1b\[[0-9;?]*[A-HJKSTfhlnsu]")


def recorded() -> str:
    """All that the demo wrote to its terminal."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(TERM="xterm-256color", COLUMNS=str(COLUMNS), LINES=str(LINES))
        os.execv(sys.executable, [sys.executable, "-c", "from quorumq.cli.main import main; main()", "demo"])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    written = b""
    while True:
        try:
            more = os.read(terminal, 65_536)
        except OSError:  # the other end is closed
            return written.decode()
        written += more


def main() -> None:
    text = MOVES.sub("", recorded()).replace("\r\n", "\n")
    lines = text.split("\n")
    starts = [at for at, line in enumerate(lines) if "SIGSTOP" in line]
    shown = lines[starts[-1] :] if starts else lines[-LINES:]
    console = Console(record=True, width=COLUMNS, force_terminal=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(Text.from_ansi("\n".join(line.rsplit("\r", 1)[-1] for line in shown).rstrip()))
    drawn = console.export_svg(title="make demo")
    drawn = re.sub(r"@font-face \{.*?\}\n", "", drawn, flags=re.DOTALL)  # a picture loads nothing
    Path(__file__).parents[1].joinpath("demo.svg").write_text(drawn)


if __name__ == "__main__":
    main()
