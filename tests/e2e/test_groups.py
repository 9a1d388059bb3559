"""Groups on five real nodes, RF 3: their beginning, and rewinding under load, also through a node without replica."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import trio

from quorumq.client import Client, Group, MessageId, Outcome
from quorumq.client.client import suspending_clock
from quorumq.history import HistoryWriter, Row, producer_id_text, read_history
from quorumq.lab.demo_verdict import MessageKey, keys_of
from quorumq.lab.local import LocalCluster
from tests.e2e.groups import HOLD_S, KEPT_S, drained, outsider, payloads, publish, through
from tests.patience import PATIENCE_S


def test_groups_begin_where_they_were_told_to_through_any_node(five: LocalCluster) -> None:
    async def main() -> None:
        async with through(five, "n1") as client:
            topic = await client.create_topic("begin", retention=KEPT_S)
            out = outsider(five, topic)
            await publish(client, "begin", range(50))
            await trio.sleep(0.05)
            middle = datetime.now(UTC)
            async with through(five, out) as other:
                await other.create_group("begin", "late", start="latest")
                await other.create_group("begin", "early")
                await other.create_group("begin", "timed", start=middle)
                assert await other.fetch("begin", "fetched", start="latest", hold_time=HOLD_S, node=out) == []
                await trio.sleep(0.05)
                await publish(client, "begin", range(50, 80))
                for group, first in (("late", 50), ("early", 0), ("timed", 50), ("fetched", 50), ("new", 0)):
                    messages = await drained(other, "begin", group, out)
                    assert payloads(messages) == list(range(first, 80)), group
                    assert all(message.outcome is Outcome.ACKED for message in messages)
                    assert await client.fetch("begin", group, hold_time=HOLD_S) == []

    trio.run(main)


# ------------------------------------------------------------------------------- rewinding under load


def key_of(message: MessageId, topic: str) -> MessageKey:
    """A message id as histories name it."""
    return topic, message.partition.number, producer_id_text(message.producer_id), message.seq


@dataclass
class Load:
    """Producers and consumers that go on while their group g is rewound, and their histories.

    Group h reads the same topic, and must not notice.
    """

    cluster: LocalCluster
    folder: Path
    topic: str
    newest: Group = field(default_factory=lambda: Group(b"", "g", 0, 0))
    published: dict[MessageKey, int] = field(default_factory=dict)  # -> published_ms, once it was delivered
    # By group and message: the generation.
    done: dict[str, dict[MessageKey, int]] = field(default_factory=lambda: {"g": {}, "h": {}})
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    taken_at: float = 0.0  # when the slow consumer got its last messages
    _producing: bool = True

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Load]:
        async with AsyncExitStack() as stack:
            clients = []
            for number, name in enumerate(("p0", "p1", "c0", "c1", "c2", "h0")):
                writer = stack.enter_context(
                    HistoryWriter(self.folder / f"{name}.jsonl", run=self.topic, who=f"client:{name}")
                )
                node = self.cluster.nodes[number % len(self.cluster.nodes)]
                clients.append(await stack.enter_async_context(through(self.cluster, node, history=writer)))
            async with trio.open_nursery() as consuming:
                for number, client in enumerate(clients[2:]):
                    group = "h" if number == 3 else "g"
                    work = 0.9 * HOLD_S if number == 2 else 0.01  # one is always inside a hold
                    consuming.start_soon(self._consume, client, group, work)
                async with trio.open_nursery() as producing:
                    for client in clients[:2]:
                        producing.start_soon(self._produce, client)
                    yield self
                    self._producing = False
                with trio.move_on_after(PATIENCE_S):
                    while not self.complete():
                        await trio.sleep(0.3)
                consuming.cancel_scope.cancel()

    async def _produce(self, client: Client) -> None:
        async with client.producer(self.topic) as producer:
            while self._producing:
                pending = await producer.send(b"x")
                self.published.setdefault(key_of(await pending.wait(), self.topic), 0)
                await trio.sleep(0.004)

    async def _consume(self, client: Client, group: str, work: float) -> None:
        async with client.consumer(
            self.topic, group, hold_time=HOLD_S, prefetch=40, auto_extend=False
        ) as consumer:
            async for messages in consumer.batches(20):
                for message in messages:
                    self.published[key_of(message.id, self.topic)] = message.published_ms
                if work > HOLD_S / 2:
                    self.taken_at = trio.current_time()
                await trio.sleep(work)
                for message, outcome in zip(messages, await consumer.ack(messages), strict=True):
                    self.outcomes[outcome] += 1
                    if outcome is not Outcome.REWOUND:
                        key, done = key_of(message.id, self.topic), self.done[group]
                        done[key] = max(message.delivery.receipt.generation, done.get(key, 0))

    def rows(self, kind: str, group: str) -> list[Row]:
        paths = sorted(self.folder.glob("*.jsonl"))
        return [row for row in read_history(paths) if row["kind"] == kind and row["group"] == group]

    def covered(self) -> list[MessageKey]:
        # One that was never delivered has no time here: it must be covered, as it was published last.
        return [key for key, ms in self.published.items() if not ms or ms >= self.newest.from_ms]

    def complete(self) -> bool:
        """Return True if h has acked everything, and g in its newest generation all that it covers."""
        newest = self.newest.generation
        return len(self.done["h"]) == len(self.published) and all(
            self.done["g"].get(key, -1) >= newest for key in self.covered()
        )

    def check(self, rewound_at: float) -> None:
        """Assert the promises of the newest generation, which was there at ``rewound_at``."""
        assert self.complete(), "something that is covered was not delivered again and acked"
        newest = self.newest.generation
        covered = dict.fromkeys(self.covered())
        assert 0 < len(covered) < len(self.published), "the rewind was in the middle"
        for row in self.rows("deliver", "g"):
            if row["generation"] == newest:
                assert all(key in covered for key in keys_of(row)), f"before the beginning: {row}"
            else:
                assert row["asked"] < rewound_at, f"an older generation, won after the rewind: {row}"
        for group in ("g", "h"):
            assert not self.overlapping(group)
            twice = self.acked_twice(group)
            assert not twice, twice[:5]
        assert {row["generation"] for row in self.rows("deliver", "h")} == {0}

    def overlapping(self, group: str) -> list[tuple[MessageKey, Row, Row]]:
        """Deliveries while an earlier one was inside its hold, and its ack not even asked for.

        An ack ends a delivery: one that a rewind makes void may have ended the hold at a node that did not know it.
        """
        ended: dict[tuple[MessageKey, str], float] = {}
        for row in self.rows("ack", group):
            if row["outcome"] == "invoke":
                for key in keys_of(row):
                    ended.setdefault((key, row["owner"]), row["at"])
        entries: dict[MessageKey, list[Row]] = {}
        for row in self.rows("deliver", group):
            for key in keys_of(row):
                entries.setdefault(key, []).append(row)
        pairs = []
        for key, rows in entries.items():
            rows.sort(key=lambda row: row["token"])
            for before, after in pairwise(rows):
                until = min(before["until"], ended.get((key, before["owner"]), before["until"]))
                if after["at"] < until:
                    pairs.append((key, before, after))
        return pairs

    def acked_twice(self, group: str) -> list[tuple[MessageKey, int]]:
        """Messages with two acks of one generation that both heard that they were alone."""
        seen: dict[tuple[MessageKey, int], None] = {}
        repeated = []
        for row in self.rows("ack", group):
            if row["outcome"] == "acked":
                for key in keys_of(row):
                    if (key, row["generation"]) in seen:
                        repeated.append((key, row["generation"]))
                    seen[(key, row["generation"])] = None
        return repeated


def test_a_rewind_to_a_time_under_load_delivers_what_it_covers_again(
    five: LocalCluster, tmp_path: Path
) -> None:
    load = Load(five, tmp_path, "rewound")
    at = [0.0]

    async def main() -> None:
        async with through(five, "n1") as client:
            topic = await client.create_topic("rewound", retention=KEPT_S)
            await client.create_group("rewound", "g")
            async with through(five, outsider(five, topic)) as operator, load.running():
                await trio.sleep(1.0)
                middle = datetime.now(UTC)
                await trio.sleep(1.5)
                with trio.fail_after(
                    PATIENCE_S
                ):  # on a busy machine the slow consumer may have acked by then
                    while not load.outcomes[Outcome.REWOUND]:
                        while trio.current_time() > load.taken_at + 0.1:
                            await trio.sleep(0.01)
                        load.newest = await operator.rewind("rewound", "g", middle)
                        at[0] = suspending_clock()
                        await trio.sleep(1.0)

    trio.run(main)
    load.check(at[0])
    assert load.outcomes[Outcome.REWOUND] > 0, "somebody held something when it was rewound"


def test_the_later_of_two_simultaneous_rewinds_stays_everywhere(five: LocalCluster, tmp_path: Path) -> None:
    load = Load(five, tmp_path, "twice")
    at = [0.0]

    async def main() -> None:
        async with through(five, "n1") as client:
            topic = await client.create_topic("twice", retention=KEPT_S)
            await client.create_group("twice", "g")
            out = outsider(five, topic)
            inside = topic.replicas[0][0]
            async with (
                through(five, out) as one,
                through(five, inside) as two,
                load.running(),
            ):
                await trio.sleep(0.7)
                middle = datetime.now(UTC)
                await trio.sleep(0.7)
                later = datetime.now(UTC)
                await trio.sleep(0.3)
                for _ in range(5):
                    made: list[Group] = []

                    async def rewind(operator: Client, to: datetime, made: list[Group] = made) -> None:
                        made.append(await operator.rewind("twice", "g", to))

                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(rewind, one, middle)
                        nursery.start_soon(rewind, two, later)
                    at[0] = suspending_clock()
                    load.newest = max(made, key=lambda group: group.generation)
                    assert len({group.generation for group in made}) == 2
                with trio.fail_after(PATIENCE_S):
                    for node in five.nodes:
                        known: tuple[Group, ...] = ()
                        async with through(five, node) as asked:
                            while known != (load.newest,):
                                groups = (await asked.metadata("twice")).groups
                                known = tuple(group for group in groups if group.name == "g")
                                await trio.sleep(0.05)

    trio.run(main)
    load.check(at[0])
