"""Real processes under faults: the proxy, the plan, a user's workload, and one short run with faults of every kind."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import os
import random
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import trio
from click.testing import CliRunner

from quorumq.core.values.errors import NotFound, UsageError
from quorumq.history import HistoryWriter
from quorumq.history.reader import read_history
from quorumq.lab.local import NotReady
from quorumq.lab.ports import free_ports
from sim.__main__ import main
from sim.checkers import Violation
from sim.fault_plan import Fault
from sim.options import Options
from sim.real import power
from sim.real.cluster import CLIENTS, LONER, FaultyCluster
from sim.real.faulty_node import Control, booted
from sim.real.inflict import AIM_S, LOOK_S, Inflicter
from sim.real.judgement import counted, judged
from sim.real.plan import KINDS, draw_real
from sim.real.proxy import Proxy
from sim.real.run import RealRun, Trial, Verdict
from sim.real.workload import OURS, workload_of
from sim.schedule import Schedule
from tests.patience import PATIENCE_S, until

ROOT = Path(__file__).parents[2]

WORKLOAD = """
import trio
from quorumq.client import Task

DONE = {}

async def prepare(client):
    await client.create_topic("orders", partitions=2)

async def produce(client):
    async with client.producer("orders") as producer:
        for number in range(400):
            await producer.send(b"%d" % number)
            await trio.sleep(0.02)
        await trio.sleep_forever()

def ship(message):
    DONE[message.id] = DONE.get(message.id, 0) + 1

async def check(client):
    assert not DONE, "orders were shipped"

TASKS = [Task("orders", "shippers", ship, concurrency=4, hold_time=2.0)]
PRODUCERS = [produce]
"""

SCHEDULE = Schedule(
    7,
    "real",
    Options(nodes=3, producers=0, consumers=0, fault_time=7.0),
    (
        Fault(0.5, "slow-disk", ("n1",), 1.0, 20.0),
        Fault(0.7, "full-disk", ("n2",), 1.0),
        Fault(1.0, "freeze", ("n3",), 0.6),
        Fault(1.2, "wall-jump", ("n1",), 0.0, 3600.0),
        Fault(1.5, "cut", (), 0.0, 0.0, (("n1", "n2"), ("n2", "n1"))),
        Fault(1.8, "partition", (), 0.8, 0.0, (("n1", "n2"), (CLIENTS, "n3"))),
        Fault(2.0, "delay", (), 1.0, 0.1, (("n2", "n3"),)),
        Fault(2.1, "bereave", ("n1",)),
        Fault(2.2, "rot", ("n2",)),
        Fault(2.5, "kill", ("n1",), 0.3),
        Fault(2.6, "pause", (CLIENTS,), 0.3),
        Fault(3.2, "crash", ("n1", "n3"), 0.2),
        Fault(3.9, "damage", ("n2",), 0.2),
        Fault(4.8, "flip", ("n2",), 0.2),
        Fault(5.4, "restore", ("n2",), 0.2, 1.0),
        Fault(6.3, "wipe", ("n2",), 0.2),
    ),
)


@pytest.fixture
def echo() -> Iterator[int]:
    """The port of a server that sends back all bytes."""
    (port,) = free_ports(1)
    with subprocess.Popen([sys.executable, "-c", ECHO, str(port)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield port
        process.kill()


ECHO = """
import socket, sys, threading
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("ready", flush=True)
def serve(one):
    while chunk := one.recv(1000):
        one.sendall(chunk)
while True:
    threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
"""


async def ended(stream: trio.SocketStream) -> bool:
    """Return True if the connection ends after the bytes under way."""
    try:
        while await stream.receive_some():
            pass
    except trio.BrokenResourceError:
        pass
    return True


def test_the_proxy_blocks_one_direction_delays_and_cuts(echo: int) -> None:
    (port,) = free_ports(1)

    async def use(proxy: Proxy) -> None:
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        await stream.send_all(b"one")
        assert await stream.receive_some() == b"one"
        proxy.block([("b", "a")])  # requests arrive, and answers do not
        await stream.send_all(b"two")
        with trio.fail_after(PATIENCE_S):
            while proxy.carried["a", "b"] < 6:
                await trio.sleep(0.01)
        with trio.move_on_after(0.2) as waited:
            await stream.receive_some()
        assert waited.cancelled_caught
        proxy.unblock([("b", "a")])
        assert await stream.receive_some() == b"two"
        proxy.delay([("a", "b"), ("b", "a")], 0.15)
        began = trio.current_time()
        await stream.send_all(b"three")
        assert await stream.receive_some() == b"three"
        assert trio.current_time() - began >= 0.3
        proxy.heal()
        proxy.cut([("a", "b")])
        with trio.fail_after(PATIENCE_S):
            assert await ended(stream)
            again = await trio.open_tcp_stream("127.0.0.1", port)
            await again.send_all(b"four")
            assert await again.receive_some() == b"four"

    with Proxy({port: ("a", "b", echo)}) as proxy:
        trio.run(use, proxy)


def test_a_proxy_that_cannot_listen_says_so(echo: int) -> None:
    with pytest.raises(BaseException) as raised, Proxy({echo: ("a", "b", echo)}):  # noqa: PT011
        pass
    assert raised.group_contains(OSError)


def test_a_plan_is_the_seeds_own_and_has_what_processes_can_have() -> None:
    seen: dict[str, None] = {}
    for seed in range(20):
        schedule = draw_real(seed, 5, 200.0)
        assert schedule == draw_real(seed, 5, 200.0)
        assert Schedule.from_json(schedule.to_json()) == schedule
        assert [fault.at for fault in schedule.faults] == sorted(fault.at for fault in schedule.faults)
        names = {"n1", "n2", "n3", "n4", "n5", "n6", CLIENTS, LONER}
        for fault in schedule.faults:
            seen[fault.kind] = None
            assert 0.0 <= fault.at < 200.0
            assert {*fault.nodes, *(name for pair in fault.links for name in pair)} <= names
        for begin in (0.0, 60.0, 120.0):
            assert any(begin <= fault.at < begin + 60.0 for fault in schedule.faults)
    assert seen.keys() == set(KINDS)


def test_a_node_hears_what_its_disk_does(tmp_path: Path) -> None:
    path = tmp_path / "control.json"
    control = Control(str(path))
    assert control.get("full", False) is False
    path.write_text('{"full": true}')
    until(lambda: control.get("full", False), "it has read what stands there")
    assert control.get("fsync_s", 0.0) == 0.0


def test_a_power_cut_takes_what_was_not_synced(tmp_path: Path) -> None:
    data, log = tmp_path / "data", tmp_path / "n.synced"
    data.mkdir()
    (data / "old").write_bytes(b"o" * 10)
    seen: set[tuple[object, ...]] = set()
    for seed in range(60):
        power.begin(data, log)
        with (data / "old").open("ab") as file:  # appended, and not synced
            file.write(b"p" * 10_000)
        (data / "new").write_bytes(b"n" * 20)
        new = {"file": (data / "new").stat().st_ino, "bytes": 15}  # synced, and its name is not
        with log.open("a") as file:
            file.write(json.dumps(new) + "\n")
        power.lose(data, log, random.Random(seed))
        old = (data / "old").read_bytes()
        assert old[:10] == b"o" * 10
        assert set(old[10:]) <= set(b"p\0")
        there = (data / "new").exists()
        if there:
            assert (data / "new").read_bytes()[:15] == b"n" * 15
        seen.add((there, min(len(old), 11), len(old) == 10_010, b"\0" in old))
        (data / "new").unlink(missing_ok=True)
        (data / "old").write_bytes(b"o" * 10)
    assert {one[0] for one in seen} == {False, True}
    assert {one[1:3] for one in seen} == {(10, False), (11, False), (11, True)}
    assert any(one[3] for one in seen)


@pytest.mark.parametrize(("kind", "ahead"), [("crash", 0.0), ("wrong-clock", 3600.0)])
async def test_after_a_loss_of_power_a_node_is_in_another_boot(
    kind: str, ahead: float, tmp_path: Path
) -> None:
    cluster = FaultyCluster(3, keep=tmp_path / "kept", rng=random.Random(1))
    hurts = Inflicter(cluster, HistoryWriter(io.StringIO(), run="r", who="sim"))
    boots = []
    try:
        cluster.command = lambda name: ["sh", "-c", "exec sleep 60", "--config"]  # type: ignore[method-assign]
        for fault in (Fault(0.0, "kill", ("n1",)), Fault(0.0, kind, ("n1",), 0.0, ahead)):
            cluster.spawn("n1")
            await hurts.inflict(fault)
            boots.append(booted(lambda: "b", Control(str(cluster.control_path("n1"))))())
    finally:
        cluster.close()
    assert boots == ["b", "b/1"], "a process that was killed stays in its boot"
    assert cluster.controls["n1"].get("wall_s", 0.0) == ahead


def test_a_power_cut_undoes_a_rename_that_was_not_synced(tmp_path: Path) -> None:
    data, log = tmp_path / "data", tmp_path / "n.synced"
    data.mkdir()
    names = set()
    for seed in range(20):
        (data / "one").write_bytes(b"1")
        power.begin(data, log)
        (data / "one").rename(data / "two")
        power.lose(data, log, random.Random(seed))
        (name,) = os.listdir(data)
        assert (data / name).read_bytes() == b"1"
        names.add(name)
        (data / name).unlink()
    assert names == {"one", "two"}


def test_a_workload_that_is_none_is_refused(tmp_path: Path) -> None:
    assert workload_of(None) is OURS
    path = tmp_path / "w.py"
    with pytest.raises(NotFound, match="no such file"):
        workload_of(path)
    path.write_text("1 / 0")
    with pytest.raises(UsageError, match="ZeroDivisionError"):
        workload_of(path)
    path.write_text("TASKS = [1]")
    with pytest.raises(UsageError, match="needs TASKS"):
        workload_of(path)


def test_the_workload_of_the_page_is_one(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "verification.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    path = tmp_path / "w.py"
    path.write_text(program)
    workload = workload_of(path)
    assert [task.topic for task in workload.tasks] == ["orders"]
    assert len(workload.producers) == 1


def test_a_run_without_a_history_is_not_ok() -> None:
    none: Counter[str] = Counter()
    assert not Verdict([], none, none, none, none, drained=True).ok
    assert Verdict([], none, none, none, none, drained=True, lines=1).ok


@pytest.mark.parametrize(
    ("met", "code", "said"), [(3, 3, "3 of 12"), (5, 3, "5 of 12"), (6, 0, ""), (12, 0, "")]
)
def test_faults_that_met_no_one_show_nothing(
    met: int, code: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults, those = Counter(kill=10, crash=2), Counter(kill=met)

    async def run(self: RealRun) -> Verdict:
        self.cluster.close()
        return Verdict([], Counter(acked=1), faults, those, Counter(), drained=True, lines=1)

    monkeypatch.setattr(RealRun, "run", run)
    done = CliRunner().invoke(main, ["real", "--minutes", "1"])
    assert done.exit_code == code
    assert f"crash 0 of 2, kill {met} of 10\nmet a running node: {met} of 12\n" in done.output
    assert done.stdout.splitlines()[-1] == (f"too few faults met a running node: {said}" if said else "ok")
    done = CliRunner().invoke(main, ["real", "--minutes", "1", "--json"])
    fields = json.loads(done.stdout)
    assert (done.exit_code, fields["ok"], fields["met"]) == (code, code == 0, {"kill": met})


def test_a_broken_promise_comes_before_faults_that_met_no_one() -> None:
    broken = Verdict(
        [Violation("no loss", 1.0, "gone")],
        Counter(),
        Counter(kill=2),
        Counter(),
        Counter(),
        drained=True,
        lines=1,
    )
    assert broken.too_few
    assert not broken.kept


class FakeProxy:
    """Remembers which pairs are blocked."""

    def __init__(self) -> None:
        self.blocked: Counter[tuple[str, str]] = Counter()

    def block(self, pairs: list[tuple[str, str]]) -> None:
        self.blocked.update(pairs)

    def unblock(self, pairs: list[tuple[str, str]]) -> None:
        self.blocked.subtract(pairs)


class FakeCluster:
    """Three nodes. Those in ``serving`` serve."""

    nodes = ("n1", "n2", "n3")
    clients = (CLIENTS, LONER)

    def __init__(self, *serving: str) -> None:
        self.serving = set(serving)
        self.proxy = FakeProxy()
        self.log: list[tuple[str, str, float]] = []

    def serves(self, name: str) -> bool:
        return name in self.serving

    running = serves

    def kill(self, name: str) -> None:
        self.serving.discard(name)
        self.log.append(("kill", name, trio.current_time()))

    def spawn(self, name: str) -> None:
        self.serving.add(name)

    def warm(self, names: tuple[str, ...]) -> None:
        self.warmed = dict.fromkeys(names, trio.current_time() + 1.0)

    def is_warm(self, name: str) -> bool:
        return trio.current_time() >= self.warmed[name]

    def flip(self, name: str) -> None:
        assert name not in self.serving

    wipe = flip

    def pause(self, name: str) -> None:
        assert name in self.serving

    resume = pause


def hurting(cluster: FakeCluster) -> Inflicter:
    """Return an inflicter with a history that no test reads."""
    return Inflicter(cluster, HistoryWriter(io.StringIO(), run="r", who="sim"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fault", "met"),
    [
        (Fault(0.0, "kill", ("n1", "n2"), 0.1), 1),
        (Fault(0.0, "kill", ("n2", "n3"), 0.1), 0),
        (Fault(0.0, "partition", (), 0.1, 0.0, (("n1", "n2"), ("n2", "n3"))), 0),
        (Fault(0.0, "partition", (), 0.1, 0.0, ((CLIENTS, "n2"), (CLIENTS, "n1"))), 1),
        (Fault(0.0, "pause", (CLIENTS,), 0.1), 1),
    ],
)
async def test_a_fault_counts_apart_where_it_met_a_node_that_serves(fault: Fault, met: int) -> None:
    hurts = hurting(FakeCluster("n1"))
    await hurts.run((fault,))
    assert (hurts.counts.total(), hurts.met.total()) == (1, met)


async def test_a_node_that_something_is_done_to_is_not_met_again() -> None:
    hurts = hurting(FakeCluster("n1"))
    await hurts.run((Fault(0.0, "freeze", ("n1",), 1.0), Fault(0.5, "kill", ("n1",), 1.0)))
    assert (hurts.counts, hurts.met) == ({"freeze": 1, "kill": 1}, {"freeze": 1, "kill": 0})


async def test_a_fault_that_is_aimed_waits_for_all_nodes_and_a_delivery() -> None:
    cluster = FakeCluster("n1", "n2")
    hurts = hurting(cluster)
    hurts.delivery = partial(trio.sleep, 2.0)
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(hurts.run, (Fault(1.0, "kill", ("n1",), 0.1, 0.2),))
        await trio.sleep(5.0)
        cluster.spawn("n3")
    ((_, _, at),) = cluster.log
    assert 7.2 <= at - began < 7.2 + 2 * LOOK_S
    cluster.serving.discard("n3")
    began = trio.current_time()
    await hurts.run((Fault(0.0, "kill", ("n1",), 0.1, 0.2),))
    assert cluster.log[-1][2] - began == pytest.approx(AIM_S), "whatever is the matter, it comes"
    cluster.spawn("n3")
    began = trio.current_time()
    await hurts.run((Fault(0.0, "kill", ("n1",), 0.1, 0.2),))
    assert 3.2 <= cluster.log[-1][2] - began < 3.2 + 2 * LOOK_S, "it takes a second to have a process ready"


async def test_a_directory_is_lost_once_its_node_serves() -> None:
    cluster = FakeCluster("n2")
    hurts = hurting(cluster)
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(hurts.run, (Fault(0.0, "flip", ("n1",), 0.1), Fault(0.0, "wipe", ("n1",), 0.1)))
        await trio.sleep(5.0)
        cluster.spawn("n1")
    assert hurts.met == {"flip": 1, "wipe": 1}
    assert [kind for kind, _, _ in cluster.log] == ["kill", "kill"]
    assert 5.0 <= trio.current_time() - began < 6.0


async def test_a_fault_for_all_clients_is_for_the_one_that_can_be_alone_too() -> None:
    cluster = FakeCluster("n1", "n2", "n3")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(hurting(cluster).run, (Fault(0.0, "pause", (CLIENTS,), 1.0),))
        await trio.sleep(0.5)
        assert {pair for pair, count in cluster.proxy.blocked.items() if count} == {
            pair for name in cluster.nodes for who in (CLIENTS, LONER) for pair in ((who, name), (name, who))
        }
    assert not +cluster.proxy.blocked


def test_a_node_serves_once_it_says_so_and_one_that_ends_by_itself_is_a_finding(tmp_path: Path) -> None:
    cluster = FaultyCluster(3, keep=tmp_path / "kept", rng=random.Random(1))
    try:
        cluster.log_path("n1").write_text('{"event": "node_started"}\n')
        cluster.command = lambda name: ["sleep", "60"]  # type: ignore[method-assign]
        cluster.spawn("n1")
        assert not cluster.serves("n1"), "that line is of an earlier start"
        with cluster.log_path("n1").open("a") as log:
            log.write('{"event": "node_started"}\n')
        assert cluster.serves("n1")
        cluster.kill("n1")
        assert not cluster.serves("n1")
        cluster.command = lambda name: ["sh", "-c", "echo no space; exit 74"]  # type: ignore[method-assign]
        cluster.spawn("n1")
        assert cluster._processes["n1"].wait() == 74
        assert not cluster.ended, "it was killed"
        cluster.spawn("n1")
        assert cluster.ended == ["node n1 ended with exit code 74: no space"]
    finally:
        cluster.close()


def test_a_process_that_is_warm_replaces_a_node(tmp_path: Path) -> None:
    cluster = FaultyCluster(3, keep=tmp_path / "kept", rng=random.Random(1))
    waits = (
        'touch "$1.$$.warm"; while [ -e "$1.$$.warm" ]; do sleep 0.01; done; echo node_started; exec sleep 60'
    )
    try:
        cluster.command = lambda name: ["sh", "-c", waits, "sh", str(cluster.control_path(name)), "--config"]  # type: ignore[method-assign]
        cluster.warm(["n1"])
        spare = cluster.spares["n1"]
        until(lambda: cluster.is_warm("n1"), "it waits")
        assert not cluster.running("n1")
        cluster.spawn("n1")
        assert cluster.pid("n1") == spare.pid
        until(lambda: cluster.serves("n1"), "it has begun")
        assert not cluster.is_warm("n1")
        cluster.kill("n1")
        cluster.warm(["n1"])
        lost = cluster.spares["n1"]
        lost.kill()
        lost.wait()
        cluster.spawn("n1")
        assert cluster.pid("n1") not in (None, lost.pid), "one that is gone takes nobody's place"
        cluster.warm(["n2"])
        taken = cluster.spares["n2"]
    finally:
        cluster.close()
    assert taken.poll() is not None


class Draining(Trial):
    """A trial whose listing shows ``remaining`` unsettled messages, by the seconds since."""

    def __init__(self, remaining: Callable[[float], float]) -> None:
        super().__init__(SCHEDULE, OURS, None)
        self.remaining = remaining
        self.began = trio.current_time()

    async def unsettled(self, client: object) -> float:
        await trio.lowlevel.checkpoint()
        return self.remaining(trio.current_time() - self.began)


async def test_draining_goes_on_as_long_as_something_moves() -> None:
    slow = Draining(lambda seconds: max(0.0, 12 - seconds // 50))
    assert await slow.drain(None) == ""  # type: ignore[arg-type]
    assert trio.current_time() - slow.began > 590


@pytest.mark.parametrize("stuck_at", [3.0, math.inf])
async def test_draining_ends_when_nothing_moves(stuck_at: float) -> None:
    stuck = Draining(lambda seconds: stuck_at if seconds > 100 else 50 - seconds // 10)
    said = await stuck.drain(None)  # type: ignore[arg-type]
    assert "none was settled for 60 s" in said
    assert trio.current_time() - stuck.began < 100 + 60 + 15


async def test_nodes_that_do_not_come_back_break_a_promise() -> None:
    class Stuck(Inflicter):
        async def heal(self, patience: float) -> None:
            raise NotReady(f"not ready after {patience:g} s: node n1 waits")

    stuck = Stuck(FakeCluster(), HistoryWriter(io.StringIO(), run="r", who="sim"))  # type: ignore[arg-type]
    said = await Draining(lambda seconds: 0.0).heal(stuck)
    assert said == "not ready after 60 s: node n1 waits"
    at = {"run": "r", "who": "sim", "wall_ms": 0, "within": 0.0, "kind": "phase"}
    rows = [{**at, "at": 1.0, "phase": "healed"}, {**at, "at": 2.0, "phase": "end", "detail": said}]
    (violation,) = judged(rows, 3)
    assert violation.promise == "live after healing"
    assert said in violation.text


def test_a_list_of_a_client_says_nothing_of_the_end() -> None:
    life = {"topic": "t", "partition": 0, "group": "g", "spans": [["p", 0, 1]], "generation": 0, "n": 0}
    listed = {"kind": "list", "who": "client:x", "state": "dead", **life}
    assert judged([{**listed, "at": 1.0}, {**listed, "at": 2.0}], 3) == []


@pytest.mark.e2e
def test_a_users_workload_runs_under_every_fault_and_is_judged(tmp_path: Path) -> None:
    workload, schedule, keep = tmp_path / "w.py", tmp_path / "s.json", tmp_path / "kept"
    workload.write_text(WORKLOAD)
    schedule.write_text(SCHEDULE.to_json())
    command = [
        "real", "--schedule", str(schedule), "--workload", str(workload), "--keep", str(keep), "--json",
    ]  # fmt: skip
    done = CliRunner().invoke(main, command)
    fields = json.loads(done.output)
    assert fields["violations"] == []
    assert fields["drained"]
    assert fields["workload"] == ["AssertionError at w.py:21: orders were shipped"]
    assert done.exit_code == 1
    assert set(fields["faults"]) == {fault.kind for fault in SCHEDULE.faults} - {"bereave"}
    assert fields["left_out"] == {"bereave": 1}
    assert fields["counts"]["delivered"]  # on a busy machine each publish beside the faults may be unknown
    rows = list(read_history(sorted((keep / "histories").glob("*.jsonl"))))
    assert counted(rows)["delivered"] == fields["counts"]["delivered"]
    without = [row for row in rows if row["kind"] != "ack"]
    assert "no loss" in {violation.promise for violation in judged(without, 3)}
    assert {row["run"] for row in rows} == {"local"}
    page = tmp_path / "page.html"
    done = CliRunner().invoke(main, ["diagram", str(keep / "histories"), "-o", str(page)])
    assert done.exit_code == 0, done.output
    text = page.read_text()
    assert "Fault: partition of n1→n2, clients→n3 for 0.8 s" in text.replace("\\u2192", "→")
    done = CliRunner().invoke(main, command)
    assert "is not empty" in done.output


@pytest.mark.e2e
def test_ctrl_c_ends_all_processes(tmp_path: Path) -> None:
    keep = tmp_path / "kept"
    command = [sys.executable, "-m", "sim", "real", "--nodes", "3", "--minutes", "5", "--keep", str(keep)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, env=environment)
    until(lambda: len(list(keep.glob("histories/c*.jsonl"))) >= 2, "two clients have begun")
    assert len(running(keep)) >= 2
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, said
    assert "stopped" in said
    assert running(keep) == []


def running(keep: Path) -> list[str]:
    """Processes whose command names something in that directory, but for the one that started them."""
    commands = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = entry.read_bytes().decode(errors="replace")
        except OSError:
            continue
        if f"{keep}/" in text:
            commands.append(text)
    return commands


def test_the_command_prints_a_schedule_that_can_be_changed(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["real", "--nodes", "3", "--minutes", "1", "--seed", "4", "--print"])
    assert done.exit_code == 0, done.output
    assert Schedule.from_json(done.output) == draw_real(4, 3, 60.0)
    path = tmp_path / "s.json"
    path.write_text("{}")
    done = CliRunner().invoke(main, ["real", "--schedule", str(path)])
    assert done.exit_code == 1
    assert "not a schedule" in done.output
    assert dataclasses.asdict(draw_real(4, 3, 60.0))["profile"] == "real"
