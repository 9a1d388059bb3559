"""A cluster of three nodes becomes nine and then three others, by commands alone, while messages flow; and another one
becomes five and loses one, at twenty times the rate.

Clients have the addresses of the first nodes only. ``QUORUMQ_GROWING_RATE`` sets another rate (messages a second).
The tests print of each phase, as a command is, the seconds, the delays from publish to delivery, and cores in use.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trio
from click.testing import CliRunner

from quorumq.cli.main import main
from quorumq.client import Client, Message, MessageId, connect
from quorumq.core.values.errors import Unanswered
from quorumq.history import HistoryWriter
from quorumq.history.reader import read_history
from quorumq.lab.demo_verdict import Account, keys_of
from quorumq.lab.local import LocalCluster
from tests.e2e.added import Members, exported
from tests.e2e.groups import KEPT_S, drained, payloads, publish
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.soak

RATE = float(os.environ.get("QUORUMQ_GROWING_RATE", "50"))
FAST = 20 * RATE
"""Messages a second, or as many as the machine can, while three nodes become five."""
TOPICS = {"kept": KEPT_S, "settled": 0.0}
"""Topics with load, and their retention in seconds: payload of the first has to move, that of the second is deleted."""
PARTITIONS = 6
ADDED = "abcdef"
"""Nodes that are added; the last three are left in the end."""
BACKLOG = 300
"""Messages of a topic that is read at the end only."""
LATER = 10
"""Messages of a topic that is made in the end."""
STEADY_S = 8.0
"""Seconds of each phase in which the cluster stays as it is."""
END_S = 120.0
"""Limit for the rest of the messages, in seconds: several holds, so less than a client's patience."""


@dataclass
class Steady:
    """Producers and consumers of each topic, at a steady rate, with histories.

    Args:
        addresses: addresses that the clients begin with.
        folder: directory for histories.
        rate: messages a second, of all producers together.
    """

    addresses: list[str]
    folder: Path
    rate: float
    published: int = 0
    acked: dict[MessageId, None] = field(default_factory=dict)
    _producing: bool = True

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Publish and consume during the body; afterwards publish no more, and go on until all is acked."""
        async with AsyncExitStack() as stack:
            names = [f"{kind}-{topic}" for topic in TOPICS for kind in ("p", "c0", "c1")]
            clients = {name: await self.client(stack, name) for name in names}
            async with trio.open_nursery() as consuming:
                async with trio.open_nursery() as producing:
                    for name, client in clients.items():
                        kind, topic = name.split("-")
                        if kind == "p":
                            producing.start_soon(self._produce, client, topic)
                        else:
                            consuming.start_soon(self._consume, client, topic)
                    yield
                    self._producing = False
                with trio.fail_after(END_S):
                    while len(self.acked) < self.published:
                        await trio.sleep(0.05)
                consuming.cancel_scope.cancel()

    async def client(self, stack: AsyncExitStack, name: str) -> Client:
        writer = stack.enter_context(
            HistoryWriter(self.folder / f"{name}.jsonl", run="local", who=f"client:{name}")
        )
        return await stack.enter_async_context(connect(self.addresses, history=writer, timeout=PATIENCE_S))

    async def _produce(self, client: Client, topic: str) -> None:
        due = trio.current_time()
        async with client.producer(topic) as producer:
            while self._producing:
                await producer.send(b"x" * 100)
                self.published += 1
                due = max(due + len(TOPICS) / self.rate, trio.current_time() - 1.0)
                await trio.sleep_until(due)

    async def _consume(self, client: Client, topic: str) -> None:
        async with client.consumer(topic, "g", auto_extend=False) as consumer:
            async for messages in consumer.batches(20):
                await self._settle(client, messages)

    async def _settle(self, client: Client, messages: list[Message]) -> None:
        while unsettled := [message for message in messages if message.outcome is None]:
            with suppress(Unanswered):
                await client.ack(unsettled)
        self.acked.update((message.id, None) for message in messages)

    def account(self) -> tuple[Account, list[tuple[float, float]]]:
        """Return the account of all clients' histories, and of each message when it was published and its delay."""
        account = Account()
        sent: dict[Any, float] = {}
        came: dict[Any, float] = {}
        for row in read_history(sorted(self.folder.glob("*.jsonl"))):
            account.feed(row)
            if row["kind"] == "publish" and row["outcome"] == "invoke":
                for key in keys_of(row):
                    sent.setdefault(key, row["at"])
            elif row["kind"] == "deliver":
                for key in keys_of(row):
                    came[key] = min(row["at"], came.get(key, row["at"]))
        return account, sorted((sent[key], at - sent[key]) for key, at in came.items())


def percentile(delays: list[tuple[float, float]], begin: float, until: float, share: float = 0.99) -> float:
    """Return a percentile of the delays of messages that were published in a time."""
    values = sorted(delay for at, delay in delays if begin <= at < until)
    assert values, "no message was published in that time"
    return values[min(len(values) - 1, int(share * len(values)))]


class Phase(NamedTuple):
    """Times in monotonic seconds, and processor seconds that nodes and clients used meanwhile."""

    name: str
    begin: float
    until: float
    nodes_cpu_s: float
    clients_cpu_s: float


@dataclass
class Phases:
    """Phases of a test."""

    members: Members
    done: list[Phase] = field(default_factory=list)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        begin, nodes, clients = time.monotonic(), self.members.cpu_s(), time.process_time()
        yield
        used = sum(cpu_s - nodes.get(node, 0.0) for node, cpu_s in self.members.cpu_s().items())
        self.done.append(Phase(name, begin, time.monotonic(), used, time.process_time() - clients))

    def show(self, account: Account, delays: list[tuple[float, float]]) -> None:
        """Print what each phase cost, and see that all messages were delivered, and none twice at a time."""
        print(f"{'':20} {'s':>6} {'/s':>6} {'p50 ms':>7} {'p99 ms':>7} {'max ms':>7}  cores: nodes, clients")
        for name, begin, until, *cpu in self.done:
            p50, p99, most = (1000 * percentile(delays, begin, until, share) for share in (0.5, 0.99, 1.0))
            count, seconds = sum(begin <= at < until for at, _ in delays), until - begin
            nodes, clients = (used / seconds for used in cpu)
            print(
                f"{name:20} {seconds:6.1f} {count / seconds:6.0f} {p50:7.1f} {p99:7.1f} {most:7.1f}         "
                f"{nodes:5.2f} {clients:8.2f}"
            )
        print(f"{len(account.published)} published, {account.redelivered} delivered again")
        assert not account.lost(), account.lost()[:5]
        assert not account.delivered_after_ack(), account.delivered_after_ack()[:5]
        assert not account.overlapping(), account.overlapping()[:5]
        assert not account.strangers(), account.strangers()[:5]


async def grow(members: Members, folder: Path) -> tuple[Steady, Phases, list[int]]:
    """Grow to nine nodes and go to three others under load; return the load, its phases, and the backlog."""
    phases, load = Phases(members), Steady(members.cluster.addresses, folder, RATE)
    async with AsyncExitStack() as stack:
        client = await load.client(stack, "first")
        for topic, retention in TOPICS.items():
            await client.create_topic(topic, partitions=PARTITIONS, retention=retention)
        await client.create_topic("backlog", partitions=3)
        await publish(client, "backlog", range(BACKLOG))
        with members.joining(ADDED):
            async with load.running():
                await trio.sleep(STEADY_S / 2)
                with phases.phase("three nodes"):
                    await trio.sleep(STEADY_S)
                for name in ADDED:
                    with phases.phase(f"nodes add {name}"):
                        await members.add(name)
                with phases.phase("nine nodes"):
                    await trio.sleep(STEADY_S)
                with phases.phase("partitions balance"):
                    await members.run("partitions", "balance")
                rows = await members.listed()
                assert not any(row["leaving"] for row in rows), rows
                assert all(row["replicas"] for row in rows), rows
                for name in (*members.cluster.nodes, *ADDED[:3]):
                    with phases.phase(f"drain and remove {name}"):
                        await members.remove(name)
                with phases.phase("three other nodes"):
                    await trio.sleep(STEADY_S)
            rows = await members.listed()
            assert [(row["node"], row["voter"], row["up"]) for row in rows] == [
                (name, True, True) for name in ADDED[3:]
            ]
            # The first client had nothing to ask meanwhile, so it knows none of the nodes that are left.
            load.addresses = list(members.addresses.values())
            client = await load.client(stack, "last")
            with trio.fail_after(END_S):
                backlog = payloads(await drained(client, "backlog", "g"))
                await client.create_topic("after", partitions=2)
                await publish(client, "after", range(LATER))
                assert payloads(await drained(client, "after", "g")) == list(range(LATER))
    return load, phases, backlog


async def become_five(members: Members, folder: Path) -> tuple[Steady, Phases]:
    """Add two nodes under load, balance, and drain and remove the first one."""
    phases, load = Phases(members), Steady(members.cluster.addresses, folder, FAST)
    async with AsyncExitStack() as stack:
        client = await load.client(stack, "first")
        for topic, retention in TOPICS.items():
            await client.create_topic(topic, partitions=PARTITIONS, retention=retention)
        with members.joining(ADDED[:2]):
            async with load.running():
                await trio.sleep(STEADY_S / 2)
                with phases.phase("three nodes"):
                    await trio.sleep(STEADY_S)
                with phases.phase("add and balance"):
                    for name in ADDED[:2]:
                        await members.add(name)
                    await members.run("partitions", "balance")
                with phases.phase("five nodes"):
                    await trio.sleep(STEADY_S)
                with phases.phase("drain and remove"):
                    await members.remove("n1")
                with phases.phase("four nodes"):
                    await trio.sleep(STEADY_S)
            rows = await members.listed()
            assert {row["node"] for row in rows} == {"a", "b", "n2", "n3"}
            assert all(row["up"] and row["replicas"] for row in rows), rows
    return load, phases


def test_three_nodes_become_five_and_lose_one_at_a_high_rate(tmp_path: Path) -> None:
    histories = tmp_path / "clients"
    histories.mkdir()
    with LocalCluster(3, hold_time_max=30.0, history=True, keep=tmp_path / "cluster") as cluster:
        load, phases = trio.run(become_five, Members(cluster, tmp_path), histories)
    account, delays = load.account()
    phases.show(account, delays)
    assert len(account.published) == load.published


def test_three_nodes_become_nine_and_then_three_others_under_load(tmp_path: Path) -> None:
    histories = tmp_path / "clients"
    histories.mkdir()
    with LocalCluster(3, hold_time_max=30.0, history=True, keep=tmp_path / "cluster") as cluster:
        members = Members(cluster, tmp_path)
        load, phases, backlog = trio.run(grow, members, histories)
    account, delays = load.account()
    phases.show(account, delays)
    assert backlog == list(range(BACKLOG))
    assert len(account.published) == load.published + BACKLOG + LATER
    kept = {id: topic for name in ADDED[3:] for id, topic in exported(members.data[name]).items()}
    assert list(kept.values()).count("kept") == sum(key[0] == "kept" for key in account.published)
    audited = CliRunner().invoke(
        main, ["audit", "--drained", "--json", str(histories), str(tmp_path / "cluster" / "histories")]
    )
    assert audited.exit_code == 0, audited.stdout
