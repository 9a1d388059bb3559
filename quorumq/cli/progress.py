"""Progress of long commands, on standard error."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def counter(label: str) -> Iterator[Callable[[], None]]:
    """Give a function to call for each one done, and show how many are.

    Nothing is shown if standard error is not a terminal, nor if standard output is one too: then the output itself
    is the progress.
    """
    if sys.stderr is None or sys.stdout is None or not sys.stderr.isatty() or sys.stdout.isatty():
        yield lambda: None
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from quorumq.cli.common import console

    columns = (SpinnerColumn(), TextColumn("{task.description} {task.completed:,}"), TimeElapsedColumn())
    with Progress(*columns, console=console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None)
        yield lambda: bar.advance(task)


@contextlib.contextmanager
def bar(shown: bool) -> Iterator[Callable[[str, int, int], None]]:
    """Give a function that reports the step under way, the number done, and the number in all."""
    if not shown:
        yield lambda label, done, total: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from quorumq.cli.common import console

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console(stderr=True), transient=True) as progress:
        task = progress.add_task("")
        yield lambda label, done, total: progress.update(task, description=label, completed=done, total=total)
