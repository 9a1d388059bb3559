"""The tasks that serve a client: its connections, its consumers' fetching, its acks.

Promise: they live until the body of `async with connect(…)` has ended, however it ends. If the program is
cancelled around the body (Ctrl-C, a deadline, a nursery in which something failed), cancellation reaches the body
alone at first: a consumer can still give back its messages, on connections that are still there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import trio

Job = Callable[..., Awaitable[object]]

IDLE_MAX: Final = 8
"""Tasks of a crew that wait for a job, at most."""


@dataclass(eq=False)
class Crew:
    """Tasks that do jobs. Each waits for the next job, because making a task for each costs twice as much."""

    begin: Callable[[Callable[[], Awaitable[None]]], None]  # begins a task
    _jobs: deque[tuple[Job, tuple[object, ...]]] = field(default_factory=deque)
    """Jobs for tasks that were woken, or begin."""
    _idle: list[trio.lowlevel.Task] = field(default_factory=list)

    def do(self, job: Job, *args: object) -> None:
        """Begin ``job(*args)`` in the next turn of the loop."""
        self._jobs.append((job, args))
        if self._idle:
            trio.lowlevel.reschedule(self._idle.pop())
        else:
            self.begin(self._work)

    async def _work(self) -> None:
        task = trio.lowlevel.current_task()

        def abort(_: object) -> trio.lowlevel.Abort:
            self._idle.remove(task)
            return trio.lowlevel.Abort.SUCCEEDED

        while True:
            job, args = self._jobs.popleft()
            await job(*args)
            if len(self._idle) >= IDLE_MAX:
                break
            self._idle.append(task)
            await trio.lowlevel.wait_task_rescheduled(abort)


@dataclass(eq=False)
class Background:
    """Tasks that serve a body, and end with it; made by `background`."""

    nursery: trio.Nursery  # runs the tasks
    _scopes: dict[trio.CancelScope, None] = field(default_factory=dict)
    _ended: bool = False

    def __post_init__(self) -> None:
        self._crew = Crew(lambda work: self.nursery.start_soon(self._sheltered, work))

    def spawn(self, task: Job, *args: object) -> None:
        """Run ``task(*args)`` until it ends, or the body does."""
        self._crew.do(task, *args)

    async def start(self, task: Job) -> None:
        """Run ``task`` like `spawn`, and return once it has called ``started``, which it must do at once.

        Raises:
            Cancelled: the caller is cancelled; nothing was begun.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        # In a cancelled scope trio would keep the task there, and nothing would end it.
        with trio.CancelScope(shield=True):
            await self.nursery.start(self._sheltered, task)

    def end(self) -> None:
        """Cancel them all, and those that they begin on their way out."""
        self._ended = True
        for scope in list(self._scopes):
            scope.cancel()
        self.nursery.cancel_scope.cancel()

    async def _sheltered(self, task: Job, **more: object) -> None:
        with trio.CancelScope(shield=True) as scope:
            self._scopes[scope] = None
            if self._ended:
                scope.cancel()
            try:
                await task(**more)
            finally:
                del self._scopes[scope]


@asynccontextmanager
async def background() -> AsyncIterator[Background]:
    """Serve the body of an ``async with`` by tasks; an exception of the body is raised as it is.

    A plain nursery would wrap the body's exception in a group, and an ``except NotStored`` around
    ``async with connect(...)`` would no longer match.
    """
    body: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            tasks = Background(nursery)
            try:
                yield tasks
            except BaseException as exc:
                body = exc
                raise
            finally:
                tasks.end()
    except BaseException as exc:
        if body is None or not _is_only(exc, body):
            raise
    if body is not None:
        raise body


def _is_only(exc: BaseException, body: BaseException) -> bool:
    """Return True if ``exc`` is ``body``, or a group of nothing but it and cancellations."""
    if isinstance(exc, BaseExceptionGroup) and exc is not body:
        return all(_is_only(item, body) for item in exc.exceptions)
    return exc is body or isinstance(exc, trio.Cancelled)
