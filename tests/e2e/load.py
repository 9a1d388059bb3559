"""Producers and consumers during faults of a cluster, and an account of their histories.

Everything goes through the client library, whose histories (docs/history.md) are read back and judged by sets of
message ids, as the demo's are.
"""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import trio

from quorumq.client import Client, HoldLost, Message, MessageId, Pending, connect
from quorumq.client.client import suspending_clock
from quorumq.core.messages import PeekReply, PeekRequest
from quorumq.core.values.errors import Unanswered
from quorumq.history import HistoryWriter, Row, producer_id_text, read_history
from quorumq.lab.demo_verdict import Account, MessageKey
from quorumq.lab.local import LocalCluster
from tests.e2e.raw import Raw
from tests.patience import PATIENCE_S

PARTITIONS = 3
GROUP = "workers"
T = TypeVar("T")
DEAD_EVERY = 40
"""Every fortieth message is given up."""


class First(random.Random):
    """Prefers the first item, so that it is known which client begins at which node."""

    def choice(self, seq: Any) -> Any:
        return seq[0]


@dataclass
class Load:
    """See the module.

    Args:
        cluster: running.
        folder: for histories; one load each.
        rate: messages a second, of each producer.
        hold_time: hold of the consumers, seconds.
        outside: the topic has one partition, and clients begin at nodes that are replica of none.
    """

    cluster: LocalCluster
    folder: Path
    topic: str
    producers: int = 2
    consumers: int = 4
    rate: float = 60.0
    hold_time: float = 3.0
    outside: bool = False
    published: dict[MessageId, None] = field(default_factory=dict)
    settled: dict[MessageId, None] = field(default_factory=dict)
    acked: list[float] = field(default_factory=list)
    """When each message was acked, for waiting; the judgement is from the histories."""
    confirmed: list[float] = field(default_factory=list)
    """When each publish was confirmed."""
    replica: str = ""
    """One of the nodes that keep the first partition, once it is there."""
    _producing: bool = True

    @property
    def partitions(self) -> int:
        """Partitions of the topic."""
        return 1 if self.outside else PARTITIONS

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Load]:
        """Publish and consume during the body; afterwards publish no more, and go on until all is settled."""
        nodes = await self._entries()
        async with AsyncExitStack() as stack:
            clients = [
                await stack.enter_async_context(self._client(name, nodes))
                for name in (
                    *(f"p{number}" for number in range(self.producers)),
                    *(f"c{number}" for number in range(self.consumers)),
                )
            ]
            async with trio.open_nursery() as consuming:
                async with trio.open_nursery() as producing:
                    for client in clients[: self.producers]:
                        producing.start_soon(self._produce, client)
                    for client in clients[self.producers : -1]:
                        consuming.start_soon(self._consume, client, 0.01)
                    # One takes most of its hold, so that a hold is live at each fault.
                    consuming.start_soon(self._consume, clients[-1], 0.8 * self.hold_time)
                    yield self
                    self._producing = False
                with trio.move_on_after(PATIENCE_S):
                    while self.published.keys() - self.settled.keys():
                        await trio.sleep(0.05)
                consuming.cancel_scope.cancel()

    async def served(self, messages: int) -> None:
        """Wait until ``messages`` more are acked, and as many more published."""
        acked, confirmed = len(self.acked) + messages, len(self.confirmed) + messages
        with trio.fail_after(PATIENCE_S):
            while len(self.acked) < acked or len(self.confirmed) < confirmed:
                await trio.sleep(0.05)

    async def _entries(self) -> list[str]:
        """The topic is made; at which nodes clients begin."""
        nodes = list(self.cluster.nodes)
        async with connect(self.cluster.addresses) as client:
            made = await client.create_topic(self.topic, partitions=self.partitions)
        self.replica = made.replicas[0][-1]
        if self.outside:
            nodes = [node for node in nodes if node not in made.replicas[0]]
            assert nodes, "every node is a replica: give it more nodes than the topic has replicas"
        return nodes

    @asynccontextmanager
    async def _client(self, name: str, nodes: list[str]) -> AsyncIterator[Client]:
        begins_at = nodes[int(name[1:]) % len(nodes)]  # p0 and c0 at the first, p1 and c1 at the second, …
        first = self.cluster.nodes.index(begins_at)
        addresses = self.cluster.addresses[first:] + self.cluster.addresses[:first]
        with HistoryWriter(self.folder / f"{name}.jsonl", run=self.topic, who=f"client:{name}") as writer:
            async with connect(addresses, history=writer, rng=First(), timeout=PATIENCE_S) as client:
                yield client

    async def _produce(self, client: Client) -> None:
        async def confirm(pending: Pending) -> None:
            self.published[await pending.wait()] = None
            self.confirmed.append(suspending_clock())

        async with client.producer(self.topic) as producer, trio.open_nursery() as nursery:
            number = 0
            while self._producing:
                number += 1
                pending = await producer.send(b"%d" % number)
                nursery.start_soon(confirm, pending)
                await trio.sleep(1 / self.rate)

    async def _consume(self, client: Client, work: float) -> None:
        while True:
            try:
                async with client.consumer(
                    self.topic, GROUP, hold_time=self.hold_time, prefetch=60, auto_extend=False
                ) as consumer:
                    async for messages in consumer.batches(20):
                        await trio.sleep(work)
                        await self._settle(client, messages)
            except Unanswered:
                continue  # no node served it for half a minute

    async def _settle(self, client: Client, messages: list[Message]) -> None:
        good = [message for message in messages if int(message.payload) % DEAD_EVERY]
        unsettled = good
        while unsettled:
            with suppress(Unanswered):
                await client.ack(unsettled)
            unsettled = [message for message in unsettled if message.outcome is None]
        now = suspending_clock()
        self.acked += [now] * len(good)
        self.settled.update((message.id, None) for message in good)
        for message in messages:
            if int(message.payload) % DEAD_EVERY == 0:
                await self._give_up(message)

    async def _give_up(self, message: Message) -> None:
        while message.outcome is None:
            try:
                await message.dead_letter(ValueError("every fortieth"))
                self.settled[message.id] = None
            except HoldLost:
                return  # it comes again
            except Unanswered:
                continue

    # ---------------------------------------------------------------------------- judging

    def rows(self) -> list[Row]:
        """Every line of every client."""
        return list(read_history(sorted(self.folder.glob("*.jsonl"))))

    def account(self) -> Account:
        """Return the account of the histories, and of the dead letters as all nodes list them."""
        account = Account()
        for row in self.rows():
            account.feed(row)
        for name in self.cluster.nodes:
            for key in deaths(self.cluster.address(name), self.topic, self.partitions):
                account.dead_letters[key] = "ValueError"
        return account

    def check(self) -> Account:
        """Assert the promises that hold under all faults, once everything is settled."""
        account = self.account()
        assert account.published, "nothing was published"
        assert not account.lost(), (
            f"{len(account.lost())} of {len(account.published)} lost: {account.lost()[:5]}"
        )
        assert not account.delivered_after_ack(), account.delivered_after_ack()[:5]
        assert not account.overlapping(), account.overlapping()[:5]
        assert not account.strangers(), account.strangers()[:5]
        # Each dead letter once at every node, and the same at all, as soon as they have told each other.
        expected = sorted(key for key in account.dead_letters if key not in account.acks)
        gone = [
            key for key in account.rejected if key not in account.dead_letters and key not in account.acks
        ]
        assert not gone, f"rejected with OK, and neither a dead letter nor acked: {gone[:5]}"
        for name in self.cluster.nodes:
            listed = eventually(
                lambda name=name: deaths(self.cluster.address(name), self.topic, self.partitions), expected
            )
            assert listed == expected, f"{name} lists {len(listed)} dead letters, {len(expected)} exist"
        return account

    def longest(self, kind: str) -> float:
        """The longest that one node took to answer, or to be given up, in requests of a kind."""
        began: dict[tuple[str, int], float] = {}
        longest = 0.0
        for row in self.rows():
            if row["kind"] == kind:
                key = (row["who"], row["op"])
                if row["outcome"] == "invoke":
                    began.setdefault(key, row["at"])
                elif key in began:
                    longest = max(longest, row["at"] - began[key])
        return longest


def deaths(address: str, topic: str, partitions: int) -> list[MessageKey]:
    """The dead letters that one node lists, sorted; one that is listed twice is in it twice."""
    keys: list[MessageKey] = []
    with Raw(address) as raw:
        for partition in range(partitions):
            cursor: tuple[int, int] | None = (0, 0)
            while cursor is not None:
                page = raw.ask(PeekRequest(topic, partition, GROUP, "dead", cursor, 1000))
                assert isinstance(page, PeekReply), page
                for item in page.items:
                    assert item.record.letter is not None
                    assert item.record.letter.error_class == "ValueError"
                    producer_id, start, stop = item.span
                    keys += [
                        (topic, partition, producer_id_text(producer_id), seq) for seq in range(start, stop)
                    ]
                cursor = page.cursor
    return sorted(keys)


def eventually(look: Callable[[], T], expected: T) -> T:
    """Return the result of ``look`` once it is the expected one, or when patience is over."""
    end = time.monotonic() + PATIENCE_S
    while (value := look()) != expected and time.monotonic() < end:
        time.sleep(0.1)
    return value


async def until_voting(cluster: LocalCluster, name: str) -> None:
    """Wait until a node that was started again is out of quarantine and connected."""
    await cluster.wait_ready_async(quarantine=True)
    assert cluster.running(name)
