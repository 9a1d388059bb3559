"""A calm client of the wire beside a hostile one: `python -m tests.measure.attacks [WORD …]`.

Three nodes with a clients file run in this process, with disks and sockets in memory. The calm client publishes,
fetches and acks one small message after another, alone and beside each attack of another client at the same node, in
turns. As in tests/measure/neighbours.py, which attacks through a gateway, the processor time of the process in each
cycle is counted, and time goes on only while that is spent. The bar: three times that alone at most.
"""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import trio

from quorumq.core import messages as m
from quorumq.core.values import limits
from quorumq.core.values.types import DERIVED, PartitionId, ProducerId, Span, Topic
from quorumq.node.clients import Entry, new_token, write_clients
from quorumq.wire.batch import SPANS_MAX, Message, encode_record, pack_spans
from quorumq.wire.codec import signed_items
from sim.shell.memory import WALL_MS
from tests.measure.neighbours import Attack, compare, parse, processor_clock
from tests.node.memory import Client, World, publish, receipts, world

NAMES: Final = tuple(f"hostile-{number}" for number in range(1000))
FETCH: Final = m.Fetch(("hostile-jobs",), "g", 1, limits.FETCH_BYTES_MAX, 1, 0.0, 5.0, 0.0)
PAYLOAD: Final = os.urandom(limits.PAYLOAD_BYTES_MAX - 1000)
RECORD: Final = encode_record(Message(b"x"))


class User:
    """A client of the wire; each task of it has its own connection."""

    topic: Topic
    producer_id: ProducerId
    bent: Any  # signed item whose signature is wrong by a bit

    def __init__(self, world: World, name: str, token: str) -> None:
        self.world, self.name, self.token = world, name, token
        self.clients: dict[trio.lowlevel.Task, Client] = {}
        self.published: Iterator[int] = itertools.count()
        self.numbers: Iterator[int] = itertools.count()

    async def client(self) -> Client:
        """Return the connection of the current task."""
        task = trio.lowlevel.current_task()
        if task not in self.clients:
            self.clients[task] = await self.world.client("a", token=self.token)
        return self.clients[task]

    async def ask(self, request: object) -> Any:
        """Return the answer to a request, which may be refused."""
        return await (await self.client()).ask(request)

    async def begin(self) -> None:
        """Make its topic and session, and settle a first message."""
        client = await self.client()
        self.topic, self.producer_id = await client.topic(f"{self.name}-jobs"), await client.session()
        await self.cycle()

    async def cycle(self) -> None:
        """Publish, fetch and ack one message."""
        sent = await self.ask(publish(self.topic, self.producer_id, next(self.published), b"hello"))
        assert isinstance(sent, m.PublishReply), sent
        (item,) = receipts(await self.ask(FETCH._replace(topics=(self.topic.name,), max_wait=1.0)))
        assert isinstance(await self.ask(m.AckRequest(signed_items((item,)))), m.SettleReply)
        self.bent = item._replace(signed=item.signed[:-1] + bytes([item.signed[-1] ^ 1]))


def asking(make: Callable[[User, int], object]) -> Attack:
    """Return an attack by requests that are made by their number."""
    return lambda user: user.ask(make(user, next(user.numbers)))


async def waiting(user: User) -> None:
    """Send 60 small FETCHes that wait, over 50 groups, and again after half a second."""
    client = await user.client()
    for at in range(60):
        await client.send(FETCH._replace(group=f"w{at % 50}", max_wait=10.0))
    await trio.sleep(0.5)
    client.transport._taken()


def big_batch(user: User, at: int) -> object:
    return publish(user.topic, user.producer_id, 1000 + 4 * at, *[PAYLOAD] * 4)


def making_groups(user: User, at: int) -> object:
    """Return a FETCH that makes its group: 1,000 in each of some topics."""
    return FETCH._replace(topics=(f"hostile-{at // 1000}",), group=f"g{at}")


def deriving(user: User, at: int) -> object:
    """Return a batch of new producer ids."""
    numbers = range(SPANS_MAX * at, SPANS_MAX * (at + 1))
    spans = tuple(sorted(Span(ProducerId(DERIVED, n, 7 * n, n), 0, 1) for n in numbers))
    return m.Publish(pack_spans(PartitionId(user.topic.id, 0), spans, WALL_MS, [RECORD] * SPANS_MAX))


async def churning(user: User) -> None:
    """Make a topic of 64 partitions, and delete it."""
    topic = await (await user.client()).topic(f"hostile-churn-{next(user.numbers)}", partitions=64)
    await user.ask(m.DeleteTopic(topic.name, topic.id))


ATTACKS: Final[dict[str, tuple[int, Attack]]] = {
    "1,200 small FETCHes that wait": (20, waiting),
    "16 FETCHes of 1,000 names": (16, asking(lambda user, at: FETCH._replace(topics=NAMES))),
    "16 FETCHes that make groups": (16, asking(making_groups)),
    "4 ACKs of 800 forged receipts": (4, asking(lambda user, at: m.AckRequest((user.bent,) * 800))),
    "topics of 64 partitions, made and deleted": (1, churning),
    "4 PEEKs complete": (
        4,
        asking(lambda user, at: m.PeekRequest(user.topic.name, 0, "g", "all", (0, 0), 256, complete=True)),
    ),
    "2 batches of 4 MB": (2, asking(big_batch)),
    "4 batches of 1,024 producer ids": (4, asking(deriving)),
}
"""Requests under way, and each of them."""


async def main(*words: str) -> None:
    tokens, entries = {}, {}
    for name in ("calm", "hostile"):
        tokens[name], kept = new_token(name)
        topics = (f"{name}-*",)
        entries[name] = Entry(kept, publish=topics, consume=((topics[0], "*"),), admin=topics)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "clients.toml"
        write_clients(path, entries)
        async with world(clients_file=str(path)) as cluster:
            calm, hostile = (User(cluster, name, token) for name, token in tokens.items())
            for user in (calm, hostile):
                await user.begin()
            for name in NAMES[:8]:
                await (await hostile.client()).topic(name)
            for name, (count, attack) in ATTACKS.items():
                if not words or any(word in name for word in words):
                    await compare(name, count, attack, calm, hostile)


if __name__ == "__main__":
    trio.run(main, *parse(__doc__), clock=processor_clock())
