"""`quorumq work`: worker processes on a real cluster, that share jobs, are stopped, and are killed by a message."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from quorumq.cli.main import main
from quorumq.cli.work import named
from quorumq.core.values.errors import UsageError
from tests.cli.shell import Running, Shell, peeked
from tests.patience import PATIENCE_S, until

HOLD_S = 60.0

TASKS = """
import os, pathlib, time

MINE = pathlib.Path(f"{os.getpid()}.begun")
MINE.touch()

# Handlers cannot import `until`: they run where the command does.

def paired(message):  # each ends when the other worker has begun as many
    with MINE.open("a") as file:
        file.write("x")
    while min(path.stat().st_size for path in pathlib.Path().glob("*.begun")) < MINE.stat().st_size:
        time.sleep(0.02)

def mixed(message):
    while message.payload == b"wait" and not pathlib.Path("go").exists():
        time.sleep(0.02)

def gated(message):
    while not pathlib.Path("go").exists():
        time.sleep(0.02)

async def endless(message):
    import asyncio
    pathlib.Path("at-work").touch()
    await asyncio.Event().wait()

def stuck(message):
    time.sleep(0.5)  # longer than it may take

async def on_asyncio(message):
    import asyncio
    await asyncio.sleep(0.01)

async def on_trio(message):
    import trio
    await trio.sleep(0.01)

def poison(message):
    if message.payload == b"20":
        os._exit(9)
"""


Start = Callable[..., Running]


@pytest.fixture(autouse=True)
def tasks(tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(TASKS)


def is_settled(shell: Shell, topic: str, dead: int) -> bool:
    """Return True if no message is left to settle. Acked ones may be reclaimed and are then not counted."""
    counts = shell.states(topic)
    return counts.pop("dead", 0) == dead and not counts.keys() - {"acked"}


def left(shell: Shell, topic: str) -> int:
    """Return the number of messages that are not acked."""
    return sum(count for state, count in shell.states(topic).items() if state != "acked")


def both_begin(folder: Path) -> None:
    """Wait until two workers have imported their functions."""
    until(lambda: len(list(folder.glob("*.begun"))) == 2, "both have begun")


def stopped(worker: Running) -> dict[str, int]:
    """Stop a worker and return its counts."""
    assert worker.send(signal.SIGTERM) == 0
    counts: dict[str, int] = json.loads(worker.out.read_text())
    return counts


@pytest.mark.e2e
def test_two_workers_share_jobs_and_sigterm_is_free(shell: Shell, start: Start, tmp_path: Path) -> None:
    shell("topics create jobs --max-deliveries 1")
    shell("groups create jobs g")
    workers = [start("work", "jobs", "tasks:paired", "--group", "g", "--json") for _ in range(2)]
    both_begin(tmp_path)
    shell("publish jobs", *(str(number) for number in range(8)))
    until(lambda: is_settled(shell, "jobs", 0), "all are done")
    assert [stopped(worker)["done"] for worker in workers] == [4, 4]


@pytest.mark.e2e
def test_a_late_worker_gets_what_the_first_has_not_begun(shell: Shell, start: Start, tmp_path: Path) -> None:
    shell("topics create late --max-deliveries 1")
    shell("publish late", *(str(number) for number in range(12)))
    first = start("work", "late", "tasks:gated", "--group", "g", "--json")
    until(lambda: list(tmp_path.glob("*.begun")), "the first is there")
    until(lambda: any(line["state"] == "held" for line in peeked(shell, "late")), "it has begun")
    second = start("work", "late", "tasks:mixed", "--group", "g", "--json")
    until(lambda: left(shell, "late") == 1, "all others are done")
    (tmp_path / "go").touch()
    until(lambda: is_settled(shell, "late", 0), "all are done")
    assert [stopped(worker)["done"] for worker in (first, second)] == [1, 11]


@pytest.mark.e2e
def test_an_async_def_runs_on_asyncio_unless_told_otherwise(shell: Shell, start: Start) -> None:
    """F1: the whole backlog became dead letters with "no running event loop"."""
    for topic, options in (("on_asyncio", ()), ("on_trio", ("--runtime", "trio"))):
        shell(f"publish {topic} a b c")
        worker = start("work", topic, f"tasks:{topic}", "--group", "g", "--json", *options)
        until(lambda topic=topic: is_settled(shell, topic, 0) and not left(shell, topic), "all are done")
        assert stopped(worker)["done"] == 3
    shell("publish wrong a")
    worker = start("work", "wrong", "tasks:on_asyncio", "--group", "g", "--runtime", "trio")
    assert worker.process.wait(PATIENCE_S) == 64
    assert "--runtime asyncio" in worker.err.read_text()
    (line,) = shell("consume wrong --group g --max 1 --json").lines()
    assert line["attempt"] == 1, "given back, and counted nowhere"


@pytest.mark.e2e
def test_sigterm_gives_back_what_is_not_begun(shell: Shell, start: Start) -> None:
    shell("publish many", *(str(number) for number in range(100)))
    worker = start("work", "many", "tasks:stuck", "--group", "g", "--json")
    until(lambda: 0 < shell.states("many").get("ready", 0) < 99, "it has begun")
    worked = stopped(worker)
    assert worked["retried"] == worked["lost"] == worked["dead_lettered"] == 0
    assert shell.states("many").get("ready", 0) == 100 - worked["done"]
    lines = shell("consume many --group g --max 99 --wait 1 --json").lines()
    assert {line["attempt"] for line in lines} == {1}


@pytest.mark.e2e
def test_a_stop_that_interrupts_a_job_costs_it_no_attempt(shell: Shell, start: Start, tmp_path: Path) -> None:
    shell("topics create long --max-deliveries 1")
    shell("publish long job")
    for count in range(2):
        worker = start("work", "long", "tasks:endless", "--group", "g", "--grace", "0.1", "--json")
        until((tmp_path / "at-work").exists, "it has begun: a message may be held and not be begun")
        assert stopped(worker)["interrupted"] == 1
        (tmp_path / "at-work").unlink()
        (line,) = peeked(shell, "long")
        assert (line["state"], line["attempts"], line["interruptions"]) == ("ready", 0, count + 1)
    assert "2 deliveries interrupted" in shell(f"show long {line['id']}").out


@pytest.mark.e2e
@pytest.mark.parametrize("concurrency", [pytest.param(1, marks=pytest.mark.soak), 8])
def test_one_poison_message_kills_its_worker_alone(shell: Shell, start: Start, concurrency: int) -> None:
    topic = f"poison-{concurrency}"
    shell(f"topics create {topic} --max-deliveries 3")
    shell(f"publish {topic}", *(str(number) for number in range(41)))
    options = ("work", topic, "tasks:poison", "--group", "g", "--hold-time", "2", "--json")
    worker = start(*options, "--concurrency", str(concurrency))
    crashes = []

    def settled_in_the_end() -> bool:
        nonlocal worker
        if worker.process.poll() is not None:
            crashes.append(worker.process.returncode)
            worker = start(*options, "--concurrency", str(concurrency))
        return is_settled(shell, topic, 1)

    until(settled_in_the_end, lambda: shell.states(topic))
    assert crashes == [9] * 3, shell(f"deadletters list {topic} --group g --json").out
    stopped(worker)


def test_a_failed_import_names_the_module() -> None:
    assert named("TimeoutError") is TimeoutError
    assert named("json:JSONDecodeError") is json.JSONDecodeError
    with pytest.raises(UsageError, match="'nowhere:f' cannot be imported"):
        named("nowhere:f")
    with pytest.raises(UsageError, match="'json:nothing' is not there"):
        named("json:nothing")


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("def f(:", "SyntaxError: invalid syntax"),
        ("x = 1\nraise ValueError('no\\nsuch')", "ValueError: no ({path}, line 2)"),
        ("import nothing_there", "No module named 'nothing_there' ({path}, line 1)"),
        ("f = 3", "'{module}:f' is 3, and no function"),
        ("", "'{module}:f' is not there"),
    ],
)
def test_a_function_that_cannot_be_had_is_said_in_three_lines_at_most(
    code: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = f"tasks_{abs(hash(code))}"
    path = tmp_path / f"{module}.py"
    path.write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    done = CliRunner().invoke(main, ["work", "jobs", f"{module}:f", "--group", "g"])
    assert done.exit_code == 64
    assert said.format(path=path, module=module) in done.output
    assert len(done.output.splitlines()) <= 3
