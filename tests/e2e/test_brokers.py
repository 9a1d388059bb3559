"""Brokers of task frameworks with real nodes and the frameworks' own workers, which are killed with tasks in hand."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from quorumq.client.blocking import connect
from quorumq.lab.local import LocalCluster
from tests.measure.celery_brokers import HOLD_S, Quorumq
from tests.measure.celery_kills import Kills
from tests.patience import PATIENCE_S, until

pytestmark = pytest.mark.soak

DOCS = Path(__file__).parents[2] / "docs"
TASKS_IN_HAND = 16

TASKIQ = r"""
import asyncio
import os
from quorumq.brokers.taskiq import QuorumqBroker

broker = QuorumqBroker({nodes!r}, topic="killed-taskiq", hold_time=2)

@broker.task
async def work(number: int) -> None:
    print(f"begun {{number}}\n", end="", flush=True)
    await asyncio.sleep(float(os.environ["SECONDS"]))
    print(f"done {{number}}\n", end="", flush=True)

async def main():
    await broker.startup()
    for number in range({count}):
        await work.kiq(number)
    await broker.shutdown()
"""

DRAMATIQ = r"""
import os
import time
import dramatiq
from quorumq.brokers.dramatiq import QuorumqBroker

dramatiq.set_broker(QuorumqBroker({nodes!r}, prefix="killed-", hold_time=2))

@dramatiq.actor
def work(number):
    print(f"begun {{number}}\n", end="", flush=True)
    time.sleep(float(os.environ["SECONDS"]))
    print(f"done {{number}}\n", end="", flush=True)

def main():
    for number in range({count}):
        work.send(number)
"""

CELERY = r"""
import os
import time
from celery import Celery
import quorumq.brokers.kombu

app = Celery("program", broker="quorumq://")
app.conf.update(
    broker_transport_options={{"nodes": {nodes!r}, "prefix": "killed-", "hold_time": 2}},
    task_acks_late=True,
    task_ignore_result=True,
    worker_prefetch_multiplier=1,
    worker_redirect_stdouts=False,
)

@app.task
def work(number):
    print(f"begun {{number}}\n", end="", flush=True)
    time.sleep(float(os.environ["SECONDS"]))
    print(f"done {{number}}\n", end="", flush=True)

def main():
    for number in range({count}):
        work.delay(number)
"""

FRAMEWORKS = {
    "taskiq": ("asyncio.run(program.main())", ("worker", "program:broker", "--workers", "1"), TASKIQ),
    "dramatiq": ("program.main()", ("program", "--processes", "2", "--threads", "8"), DRAMATIQ),
    "celery": ("program.main()", ("-A", "program", "worker", "--pool", "threads", "-c", "16"), CELERY),
}
"""Call that sends the tasks, arguments of the worker's command, and a program whose workers are killed."""

PREFORK = ("-A", "program", "worker", "--concurrency", "2")
"""Arguments of Celery's worker with its default pool, of processes."""

GROUPS = {
    "taskiq": ("killed-taskiq", "workers"),
    "dramatiq": ("killed-default", "dramatiq"),
    "celery": ("killed-celery", "celery"),
}


@pytest.fixture(params=FRAMEWORKS)
def framework(request: pytest.FixtureRequest) -> str:
    name = str(request.param)
    if find_spec(name) is None:
        pytest.skip(f"needs the extra: pip install 'quorumq[{name}]'")
    return name


class Worker:
    """Processes of a framework's worker, and their output."""

    def __init__(
        self, framework: str, directory: Path, seconds: float, arguments: tuple[str, ...] = ()
    ) -> None:
        self.log = directory / f"worker-{len(list(directory.iterdir()))}.log"
        arguments = arguments or FRAMEWORKS[framework][1]
        environment = {**os.environ, "SECONDS": str(seconds), "PYTHONPATH": f"{directory}:{DOCS.parent}"}
        with self.log.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", framework, *arguments],
                cwd=directory,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def end(self, number: signal.Signals) -> None:
        """Send a signal to all processes of the worker, and wait for its end.

        SIGTERM goes to the first one alone, as a service manager does it: Celery waits for ever for a child that was
        stopped beside it.
        """
        (os.kill if number == signal.SIGTERM else os.killpg)(self.process.pid, number)
        self.process.wait(PATIENCE_S)

    def numbers(self, word: str) -> list[int]:
        """Return the numbers of the tasks that are begun or done."""
        return [int(number) for number in re.findall(rf"^{word} (\d+)$", self.log.read_text(), re.MULTILINE)]


@contextmanager
def working(
    framework: str, directory: Path, seconds: float, arguments: tuple[str, ...] = ()
) -> Iterator[Worker]:
    """Run a worker, and stop it as a service manager does unless it was killed."""
    worker = Worker(framework, directory, seconds, arguments)
    try:
        yield worker
    finally:
        if worker.process.poll() is None:
            worker.end(signal.SIGTERM)


def send(framework: str, directory: Path) -> None:
    """Call ``main`` of the program in a process of its own."""
    call, _, _ = FRAMEWORKS[framework]
    environment = {**os.environ, "SECONDS": "0", "PYTHONPATH": f"{directory}:{DOCS.parent}"}
    command = [sys.executable, "-c", f"import asyncio, program; {call}"]
    subprocess.run(command, cwd=directory, env=environment, check=True, timeout=PATIENCE_S)


def test_the_program_of_the_page_runs(framework: str, shared: LocalCluster, tmp_path: Path) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", (DOCS / f"from-{framework}.md").read_text(), re.DOTALL)
    scheme = "quorumq://" if framework == "celery" else ""
    assert f'"{scheme}127.0.0.1:7401"' in program
    nodes = ";".join(scheme + address for address in shared.addresses) if scheme else shared.addresses
    (tmp_path / "program.py").write_text(program.replace(f'"{scheme}127.0.0.1:7401"', repr(nodes)))
    send(framework, tmp_path)
    arguments = PREFORK if framework == "celery" else ()
    with working(framework, tmp_path, 0, arguments) as worker:
        for name in ("ann", "bob"):
            until(
                lambda name=name: f"mailed {name}@example.org" in worker.log.read_text(), worker.log.read_text
            )


def test_a_killed_worker_loses_no_task_and_a_long_task_runs_once(
    framework: str, shared: LocalCluster, tmp_path: Path
) -> None:
    """Tasks take three times their hold. The first worker is killed with 16 of them in hand."""
    _, _, program = FRAMEWORKS[framework]
    text = program.format(nodes=shared.addresses, count=TASKS_IN_HAND)
    (tmp_path / "program.py").write_text(text)
    send(framework, tmp_path)
    topic, group = GROUPS[framework]
    with connect(shared.addresses) as client, working(framework, tmp_path, 600.0) as first:
        until(lambda: client.backlog(topic, group).held == TASKS_IN_HAND, first.log.read_text)
        until(lambda: first.numbers("begun"), first.log.read_text)
        first.end(signal.SIGKILL)
    with working(framework, tmp_path, 6.0) as second:
        until(lambda: len(second.numbers("done")) >= TASKS_IN_HAND, second.log.read_text)
        with connect(shared.addresses) as client:
            until(lambda: not unsettled(client.backlog(topic, group)), second.log.read_text)
    assert sorted(second.numbers("begun")) == list(range(TASKS_IN_HAND)), "a task ran twice in one worker"


def unsettled(backlog: object) -> int:
    """Return the number of messages that a group has not settled."""
    return int(backlog.ready + backlog.held + backlog.delayed)  # type: ignore[attr-defined]


def test_a_stopped_worker_gives_back_what_it_has_not_begun(
    framework: str, shared: LocalCluster, tmp_path: Path
) -> None:
    _, _, program = FRAMEWORKS[framework]
    text = program.replace("killed-", "stopped-").format(nodes=shared.addresses, count=4 * TASKS_IN_HAND)
    (tmp_path / "program.py").write_text(text)
    send(framework, tmp_path)
    with working(framework, tmp_path, 0.5) as worker:
        until(lambda: worker.numbers("begun"), worker.log.read_text)
    topic, group = GROUPS[framework]
    with connect(shared.addresses) as client:
        backlog = client.backlog(topic.replace("killed-", "stopped-"), group)
    assert backlog.held == 0, worker.log.read_text()
    assert backlog.ready == 4 * TASKS_IN_HAND - len(worker.numbers("done"))


def test_no_task_of_an_application_is_lost_while_workers_and_nodes_are_killed(tmp_path: Path) -> None:
    """The application and the kills of the table in docs/rivals.md, for a minute."""
    if find_spec("celery") is None:
        pytest.skip("needs the extra: pip install 'quorumq[celery]'")
    broker = Quorumq(tmp_path)
    try:
        broker.cluster.start_all()
        kills = Kills(broker, tmp_path, seconds=40.0, every=20.0, again_s=2 * HOLD_S)
        kills.run()
    finally:
        broker.close()
    figures = kills.figures()
    assert (figures["never"], figures["refused"]) == (0, 0), (figures, kills.refused)
    assert figures["sent"] == len(kills.sent) > 200
    assert kills.killed == {"worker": 2, "server": 2}
