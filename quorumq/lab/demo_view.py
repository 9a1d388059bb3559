"""Display while the demo runs, and the table at its end.

On a terminal a picture that is redrawn a few times a second; anywhere else a line when something happens and one
every few seconds. Nothing here decides anything: it is given a `Scene` and draws it.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final

from quorumq.lab.demo_verdict import Account, Tail, Verdict
from quorumq.lab.leash import Leashed

EVENTS_SHOWN: Final = 7
REFRESH_PER_S: Final = 8
PLAIN_EVERY_S: Final = 3.0


@dataclass(slots=True)
class NodeScene:
    """One node as it is now."""

    state: str = "starting"  # "up", "down", "quarantine 3.2 s" …
    held: int = 0
    messages: int = 0


@dataclass(slots=True)
class Worker:
    """One worker process: its name, and its history file."""

    name: str
    tail: Tail
    process: Leashed
    state: str = "starting"
    account: Account = field(default_factory=Account)

    @property
    def who(self) -> str:
        """Return the signature of its lines of the history."""
        return f"client:{self.name}"


@dataclass(slots=True)
class Scene:
    """Everything that is drawn."""

    account: Account = field(default_factory=Account)  # as far as the histories go now
    nodes: dict[str, NodeScene] = field(default_factory=dict)
    workers: dict[str, Worker] = field(default_factory=dict)
    expected: int = 0
    began: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    @property
    def counts(self) -> tuple[str, str, str]:
        it = self.account
        published, acked, dead = len(it.published), len(it.acks), len(it.rejected)
        return f"{published:,} published", f"{acked:,} acked", f"{dead:,} dead-lettered"


@dataclass(eq=False)
class View:
    """Draws a scene. Use it as a context manager around the run."""

    scene: Scene  # changed in place by the one who runs the demo
    console: Any  # a rich console; it writes plain lines if it is not a terminal
    events: deque[str] = field(default_factory=lambda: deque(maxlen=EVENTS_SHOWN))
    _live: Any = None
    _next_line: float = 0.0

    def __enter__(self) -> View:
        if self.console.is_terminal:
            from rich.live import Live

            self._live = Live(
                console=self.console,
                refresh_per_second=REFRESH_PER_S,
                get_renderable=self._picture,
                transient=True,
            )
            self._live.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._live is not None:
            self._live.stop()
            for event in self.events:
                self.console.print(event, markup=False)

    def event(self, text: str) -> None:
        """Show an event that a person should notice."""
        line = f"{self.scene.seconds:5.1f} s  {text}"
        if self._live is None:
            self.console.print(line, markup=False)
        else:
            self.events.append(line)

    def tick(self) -> None:
        """Print the progress now and then, if nothing is redrawn."""
        scene = self.scene
        if self._live is not None or scene.seconds < self._next_line:
            return
        self._next_line = scene.seconds + PLAIN_EVERY_S
        nodes = ", ".join(f"{name} {node.state}" for name, node in scene.nodes.items())
        self.console.print(f"{scene.seconds:5.1f} s  {', '.join(scene.counts)}; {nodes}", markup=False)

    def _picture(self) -> Any:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        scene, account = self.scene, self.scene.account
        counts = (f"{scene.seconds:5.1f} s", *scene.counts, f"{account.redelivered:,} redelivered")
        nodes = [(name, node.state, node.messages, node.held) for name, node in scene.nodes.items()]
        workers = [
            (it.name, it.state, it.account.delivered, it.account.ended) for it in scene.workers.values()
        ]
        side = Table.grid(padding=(0, 4))
        side.add_row(
            _states(("node", "messages", "holds"), nodes),
            _states(("worker", "delivered", "settled"), workers),
        )
        return Group(
            Text("   ".join(counts)),
            ProgressBar(total=max(1, scene.expected), completed=account.ended, width=76),
            "",
            side,
            "",
            *(Text(event) for event in self.events),
        )


def _states(titles: tuple[str, str, str], rows: list[tuple[str, str, int, int]]) -> Any:
    """Return a table with name, state, and two numbers a row."""
    from rich.table import Table

    who, *numbers = titles
    rich_table = Table(box=None, padding=(0, 2), header_style="dim")
    rich_table.add_column(who, min_width=9, no_wrap=True)
    rich_table.add_column(min_width=16, no_wrap=True)
    for title in numbers:
        rich_table.add_column(title, justify="right", min_width=9, no_wrap=True)
    for name, state, one, other in rows:
        rich_table.add_row(name, _coloured(state), f"{one:,}", f"{other:,}")
    return rich_table


def _coloured(state: str) -> Any:
    from rich.text import Text

    style = {"up": "green", "works": "green"}.get(
        state, "yellow" if state.startswith("quarantine") else "bold red"
    )
    return Text(state, style=style)


def verdict_table(verdict: Verdict) -> Any:
    """Return the numbers of a run as a rich table."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, padding=(0, 2))
    table.add_column(justify="right", min_width=9)
    table.add_column()

    def row(number: int, text: str, *, bad: bool = False) -> None:
        table.add_row(Text(f"{number:,}", style="bold red" if bad else ""), text)

    row(verdict.published, "published")
    row(verdict.delivered, "delivered")
    row(verdict.acked, "acked")
    row(verdict.dead_lettered, "dead-lettered")
    for name, number in verdict.errors.items():
        table.add_row("", f"{number:>5,}  {name}")
    for name, number in verdict.malformed_errors.items():
        table.add_row("", f"{number:>5,}  {name}, malformed on purpose")
    row(verdict.redelivered, "redelivered: their hold had run out")
    row(verdict.late_acks, "acks that came after their hold")
    row(verdict.killed.holds if verdict.killed else 0, "holds live on the node when it was killed")
    row(verdict.lost, "lost", bad=verdict.lost > 0)
    row(verdict.delivered_after_ack, "delivered after ack", bad=verdict.delivered_after_ack > 0)
    if verdict.overlapping:
        row(verdict.overlapping, "delivered twice at once", bad=True)
    if verdict.never_published:
        row(verdict.never_published, "delivered and never published", bad=True)
    return table
