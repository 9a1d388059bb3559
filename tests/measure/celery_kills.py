"""Count the tasks that kill -9 repeats or loses in a Celery application: `python -m tests.measure.celery_kills`.

Two workers of 8 processes each do five kinds of tasks (celery_tasks.py) that are sent at an even rate. A worker and a
server of the broker are killed in turn, and started again after some seconds. A task counts if its publish returned:
done once, more than once, or never. The longest wait is that of a mail: from its publish until it was done.

redis and rabbitmq take the program of their server: `… redis --program /usr/bin/redis-server`, which the path of
libraries has to suit; `… rabbitmq --program …/sbin/rabbitmq-server`, with `erl` and `epmd` on the PATH. Python needs
celery, and redis for Redis.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from quorumq.lab.leash import Leashed, end, logged
from tests.measure.celery_brokers import BROKERS, VISIBILITY_S, Broker

VARIABLE: Final = "CELERY_KILLS"
WORKERS: Final = 2
KINDS: Final = ("mail",) * 5 + ("thumbnail",) * 3 + ("invoice", "webhook")
"""Kinds of ten tasks in a row."""
REPORT_EVERY: Final = 80
"""Tasks between two reports, which are delayed."""
REPORT_DELAY_S: Final = 5.0
DOWN_S: Final = 2.0
QUIET_S: Final = VISIBILITY_S + 15.0
"""Seconds without a task that is done, until one that is not done counts as never done."""
AGAIN_S: Final = VISIBILITY_S + 5.0
"""Seconds after the last task in which one may be done once more."""
STOP_S: Final = 20.0


@dataclass
class Kills:
    """One run.

    Args:
        broker: its servers, which run.
        folder: for the files of the workers.
        seconds: for how long tasks are sent.
        every: seconds between two kills of a worker, and between two of a server.
        rate: tasks a second.
        again_s: seconds to wait for repetitions.

    Attributes:
        sent: time of each publish that returned, in seconds since 1970, by kind and number.
        refused: tasks whose publish raised.
        killed: number of kills of workers and of servers.
    """

    broker: Broker
    folder: Path
    seconds: float
    every: float
    rate: float = 8.0
    again_s: float = AGAIN_S
    sent: dict[tuple[str, int], float] = field(default_factory=dict)
    refused: dict[tuple[str, int], str] = field(default_factory=dict)
    killed: Counter[str] = field(default_factory=Counter)

    def run(self) -> None:
        """Send tasks, kill, and wait until no task is missing or no more are done."""
        self.path = self.folder / "done"
        os.environ[VARIABLE] = json.dumps({"settings": self.broker.settings, "done": str(self.path)})
        tasks: Any = importlib.import_module("tests.measure.celery_tasks")
        workers = [self._worker(number) for number in range(WORKERS)]
        sender = threading.Thread(target=self._send, args=(tasks,))
        try:
            sender.start()
            self._kill(workers)
            sender.join()
            self.broker.wait()
            self._drain()
        finally:
            for worker in workers:
                if worker.poll() is None:
                    end_of(worker)

    def _worker(self, number: int) -> Leashed:
        words = f"-A tests.measure.celery_tasks worker --concurrency 8 -n {number}@kills --loglevel warning"
        return logged(
            [sys.executable, "-m", "celery", *words.split()],
            self.folder / f"worker-{number}.log",
            Path(__file__).parents[2],
        )

    def _send(self, tasks: Any) -> None:
        began = time.monotonic()
        for number in itertools.count():
            pause = began + number / self.rate - time.monotonic()
            if number / self.rate > self.seconds:
                return
            time.sleep(max(0.0, pause))
            self._publish(tasks, KINDS[number % len(KINDS)], number)
            if number % REPORT_EVERY == 0:
                self._publish(tasks, "report", number, countdown=REPORT_DELAY_S)

    def _publish(self, tasks: Any, kind: str, number: int, **options: Any) -> None:
        at = time.time()
        try:
            getattr(tasks, kind).apply_async((number,), **options)
        except Exception as error:
            self.refused[kind, number] = repr(error)
        else:
            self.sent[kind, number] = at

    def _kill(self, workers: list[Leashed]) -> None:
        """Kill a worker in the middle between two kills of a server."""
        rng, began = random.Random(7), time.monotonic()
        for turn in itertools.count(1):
            until = began + turn * self.every / 2
            if turn * self.every / 2 > self.seconds:
                return
            time.sleep(max(0.0, until - time.monotonic()))
            if turn % 2:
                number = rng.randrange(WORKERS)
                os.killpg(workers[number].pid, signal.SIGKILL)
                workers[number].wait()
                time.sleep(DOWN_S)
                workers[number] = self._worker(number)
            else:
                number = rng.randrange(self.broker.servers)
                self.broker.kill(number)
                time.sleep(DOWN_S)
                self.broker.start(number)
            self.killed["server" if turn % 2 == 0 else "worker"] += 1

    def _drain(self) -> None:
        last, count = time.monotonic(), 0
        while time.monotonic() < last + QUIET_S:
            lines = self.done()
            if sum(lines.values()) > count:
                last, count = time.monotonic(), sum(lines.values())
            if not self.sent.keys() - lines.keys():
                time.sleep(self.again_s)
                return
            time.sleep(0.5)

    def done(self) -> Counter[tuple[str, int]]:
        """Return how often each task was done."""
        return Counter((kind, number) for kind, number, _ in self._lines())

    def _lines(self) -> list[tuple[str, int, float]]:
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        return [(kind, int(number), float(at)) for kind, number, at in map(str.split, lines)]

    def figures(self, kind: str = "") -> dict[str, Any]:
        """Return the numbers of tasks of a kind, or of all: sent, done once, twice or more often, never, refused."""
        times = [count for task, count in self._counts(kind).items() if task in self.sent]
        first = {(one, number): at for one, number, at in reversed(self._lines())}
        waits = [first[task] - at for task, at in self.sent.items() if task[0] == "mail" and task in first]
        return {
            "sent": len(times),
            "once": times.count(1),
            "more often": sum(count > 1 for count in times),
            "never": times.count(0),
            "refused": sum(task[0] == kind or not kind for task in self.refused),
            "longest wait s": round(max(waits, default=0.0), 1) if kind in ("", "mail") else "",
        }

    def report(self, name: str) -> None:
        """Print the figures, also of a run that was stopped."""
        print(f"{name}: killed {dict(self.killed)} in {self.seconds:g} s")
        for kind in ("", *dict.fromkeys(KINDS), "report"):
            print(
                " ".join(f"{figure} {value};" for figure, value in self.figures(kind).items()), kind or "all"
            )
        for error, count in Counter(self.refused.values()).most_common(3):
            print(f"refused {count}: {error}")

    def _counts(self, kind: str) -> Counter[tuple[str, int]]:
        done = self.done()
        return Counter({task: done[task] for task in self.sent if not kind or task[0] == kind})


def end_of(worker: Leashed) -> None:
    """Stop a worker, and kill the rest of its processes."""
    end([worker], STOP_S)
    try:
        os.killpg(worker.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("broker", choices=sorted(BROKERS))
    parser.add_argument("--program", default="", help="the server, of redis and rabbitmq")
    parser.add_argument("--seconds", type=float, default=600.0, help="for how long tasks are sent")
    parser.add_argument("--every", type=float, default=60.0, help="seconds between two kills of a kind")
    parser.add_argument("--keep", type=Path, help="folder for all files; else they are removed")
    words = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped by SIGTERM"))
    with tempfile.TemporaryDirectory() as made:
        folder = words.keep or Path(made)
        folder.mkdir(parents=True, exist_ok=True)
        broker: Broker = BROKERS[words.broker](folder, words.program)
        try:
            for number in range(broker.servers):
                broker.start(number)
            broker.wait()
            kills = Kills(broker, folder, words.seconds, words.every)
            try:
                kills.run()
            finally:
                kills.report(words.broker)
        finally:
            broker.close()


if __name__ == "__main__":
    main()
