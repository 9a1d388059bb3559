"""Workload on the cluster while it is hurt: this, or a file of a user's with the same names in it.

    TASKS      tasks for `Client.work_all`: `Task(topic, group, handler, …)`, each on a client of its own
    PRODUCERS  functions of a client, which publish until they are cancelled, when the faults are over
    prepare    creates topics; called with a client before anything else
    check      called with a client when all is settled: its assertions are in the verdict

TASKS is all that a file must have. Handlers may be plain functions, which run in threads.
"""

from __future__ import annotations

import runpy
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import trio

from quorumq.client import Client, Message, Task
from quorumq.core.values.errors import NotFound, QuorumqError, UsageError
from sim.real.cluster import HOLD_S

TOPIC = "real"
RATE = 30.0
"""Messages a second of each producer."""

SLOW = 10
"""Messages with a number that is a multiple of this plus 5 take their time."""

SLOW_SHARES = (0.5, 0.9)
"""Least and most share of the hold that a slow handler takes. A message that a node forgot is then still at work."""


def numbers(topic: str, pause: float, batch: int = 1) -> Callable[[Client], Awaitable[None]]:
    """Publish numbers, one after the other, with any outcome, with a pause after each ``batch``."""

    async def confirm(pending: Any) -> None:
        with suppress(QuorumqError):  # the history has it: unknown, or not stored
            await pending.wait()

    async def produce(client: Client) -> None:
        async with client.producer(topic) as producer, trio.open_nursery() as nursery:
            for number in count(1):
                nursery.start_soon(confirm, await producer.send(b"%d" % number))
                if number % batch == 0:
                    await trio.sleep(pause)

    return produce


class Again(Exception):
    """The message is to be delivered once more."""


def work_s(number: int, attempt: int) -> float:
    """Return the seconds that the handler of a message takes: at the first attempt some take most of their hold.

    So at any time some messages are in hand. A redelivered message is done at once, as it may have to be alone.
    """
    if number % SLOW != SLOW // 2 or attempt > 1:
        return 0.005
    least, most = SLOW_SHARES
    return HOLD_S * (least + (most - least) * (number // SLOW % 20 + 1) / 20)


async def handle(message: Message) -> None:
    """Handle a message: most are fine, some take long, some are redelivered, some are dead letters."""
    number = int(message.payload)
    if number % 40 == 0:
        raise ValueError("every fortieth is given up")
    if number % 40 == 1 and message.attempt == 1:
        raise Again
    await trio.sleep(work_s(number, message.attempt))


async def prepare(client: Client) -> None:
    """Create the topic."""
    await client.create_topic(TOPIC, partitions=6, max_deliveries=20, backoff=[0.2, 1.0])


@dataclass
class Workload:
    """See the module."""

    tasks: Sequence[Task]
    producers: Sequence[Callable[[Client], Awaitable[None]]] = ()
    prepare: Callable[[Client], Awaitable[None]] | None = None
    check: Callable[[Client], Awaitable[None]] | None = None
    read: list[tuple[str, str]] = field(init=False)
    """Each topic and group that is read."""

    def __post_init__(self) -> None:
        pairs = [
            (topic, task.group)
            for task in self.tasks
            for topic in ([task.topic] if isinstance(task.topic, str) else task.topic)
        ]
        self.read = list(dict.fromkeys(pairs))


OURS = Workload(
    [
        Task(TOPIC, group, handle, retry=(Again,), concurrency=40, hold_time=HOLD_S)
        for group in ("one", "two")
        for _ in range(2)
    ],
    [numbers(TOPIC, 1 / RATE)] * 2,
    prepare,
)


def workload_of(path: Path | None) -> Workload:
    """Return the workload in a Python file; ours without one.

    Raises:
        NotFound: there is no such file.
        UsageError: it raises, or has no tasks.
    """
    if path is None:
        return OURS
    if not path.is_file():
        raise NotFound(f"{path}: there is no such file")
    try:
        scope = runpy.run_path(str(path), run_name="workload")
    except Exception as error:
        raise UsageError(f"{path} cannot be run: {type(error).__name__}: {error}") from error
    tasks = scope.get("TASKS")
    if not tasks or not all(isinstance(task, Task) for task in tasks):
        raise UsageError(f"{path} needs TASKS, a list of quorumq.client.Task, with one at least")
    return Workload(tasks, scope.get("PRODUCERS", ()), scope.get("prepare"), scope.get("check"))
