"""What a person sees while the demo runs, and the table at its end.

On a terminal a picture that is redrawn a few times a second; anywhere else a line when something happens and one
every few seconds. Nothing here decides anything: it is given a `Scene` and draws it.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final

from quorumq.lab.demo_verdict import Verdict

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
class WorkerScene:
    """One worker as it is now."""

    state: str = "starting"
    node: str = ""
    delivered: int = 0
    settled: int = 0


@dataclass(slots=True)
class Scene:
    """Everything that is drawn."""

    nodes: dict[str, NodeScene] = field(default_factory=dict)
    workers: dict[str, WorkerScene] = field(default_factory=dict)
    expected: int = 0
    published: int = 0
    acked: int = 0
    rejected: int = 0
    redelivered: int = 0
    began: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self.began


@dataclass(eq=False)
class View:
    """Draws a scene. Use it as a context manager around the run."""

    scene: Scene  # changed in place by the one who runs the demo
    console: Any  # of rich; where it is not a terminal, plain lines come out
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
            for event in self.events:
                self.console.print(event, markup=False)

    def event(self, text: str) -> None:
        """Something happened that a person should notice."""
        line = f"{self.scene.seconds:5.1f} s  {text}"
        if self._live is None:
            self.console.print(line, markup=False)
        else:
            self.events.append(line)

    def tick(self) -> None:
        """Time has passed; where nothing is redrawn, say now and then how far it is."""
        scene = self.scene
        if self._live is not None or scene.seconds < self._next_line:
            return
        self._next_line = scene.seconds + PLAIN_EVERY_S
        nodes = ", ".join(f"{name} {node.state}" for name, node in scene.nodes.items())
        self.console.print(
            f"{scene.seconds:5.1f} s  {scene.published:,} published, {scene.acked:,} acked, "
            f"{scene.rejected:,} dead-lettered; {nodes}",
            markup=False,
        )

    def _picture(self) -> Any:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        scene = self.scene
        done = scene.acked + scene.rejected
        counts = Text(
            f"{scene.seconds:5.1f} s   {scene.published:,} published   {scene.acked:,} acked   "
            f"{scene.rejected:,} dead-lettered   {scene.redelivered:,} redelivered"
        )
        nodes = Table(box=None, padding=(0, 2), header_style="dim")
        for title in ("node", "", "messages", "holds"):
            width = 16 if title == "" else 9
            nodes.add_column(
                title, justify="left" if title in ("node", "") else "right", min_width=width, no_wrap=True
            )
        for name, node in scene.nodes.items():
            nodes.add_row(name, _coloured(node.state), f"{node.messages:,}", f"{node.held:,}")
        workers = Table(box=None, padding=(0, 2), header_style="dim")
        for title in ("worker", "", "delivered", "settled"):
            workers.add_column(title, justify="left" if title in ("worker", "") else "right", min_width=9)
        for name, worker in scene.workers.items():
            workers.add_row(
                f"{name} at {worker.node}",
                _coloured(worker.state),
                f"{worker.delivered:,}",
                f"{worker.settled:,}",
            )
        side = Table.grid(padding=(0, 4))
        side.add_row(nodes, workers)
        return Group(
            counts,
            ProgressBar(total=max(1, scene.expected), completed=done, width=76),
            "",
            side,
            "",
            *(Text(event) for event in self.events),
        )


def _coloured(state: str) -> Any:
    from rich.text import Text

    style = {"up": "green", "works": "green"}.get(
        state, "yellow" if state.startswith("quarantine") else "bold red"
    )
    return Text(state, style=style)


def verdict_table(verdict: Verdict) -> Any:
    """The numbers of a run as a rich table."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, padding=(0, 2))
    table.add_column(justify="right", min_width=9)
    table.add_column()

    def row(number: int, what: str, *, bad: bool = False) -> None:
        table.add_row(Text(f"{number:,}", style="bold red" if bad else ""), what)

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
    if verdict.strangers:
        row(verdict.strangers, "delivered and never published", bad=True)
    return table
