"""Groups on five real nodes, RF 3: their beginning, and rewinding under load, also through a node without replica."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import trio

from quorumq.client import Client, Group, Outcome
from quorumq.client.client import suspending_clock
from quorumq.history import HistoryWriter, Row, read_history
from quorumq.lab.demo_verdict import MessageKey, keys_of
from quorumq.lab.local import LocalCluster
from sim.real.judgement import judged
from tests.e2e.groups import HOLD_S, KEPT_S, drained, open_of, outsider, payloads, publish, through
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


@dataclass
class Load:
    """Producers and consumers that go on while their group g is rewound. sim/checkers check their histories.

    Group h reads the same topic, and must not notice.
    """

    cluster: LocalCluster
    folder: Path
    topic: str
    marks: list[Row] = field(default_factory=list)
    """Registers of group g, and the end."""
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
                self.mark("phase", phase="healed", seconds=PATIENCE_S)
                with trio.fail_after(PATIENCE_S):
                    while sum([await open_of(clients[0], self.topic, group) for group in "gh"]):
                        await trio.sleep(0.3)
                self.mark("phase", phase="drained")
                consuming.cancel_scope.cancel()

    def mark(self, kind: str, at: float | None = None, **fields: object) -> None:
        self.marks.append(
            {"kind": kind, "who": "sim", "at": suspending_clock() if at is None else at, **fields}
        )

    async def set(self, act: Awaitable[Group]) -> Group:
        """Create or rewind group g."""
        began = suspending_clock()
        made = await act
        # One source each: of two that began in the other order the later line is not the register that stands.
        who = f"sim:{made.generation}"
        register = {"group": "g", "generation": made.generation, "from_ms": made.from_ms}
        self.mark("register", began, topic=self.topic, who=who, **register)
        return made

    async def _produce(self, client: Client) -> None:
        async with client.producer(self.topic) as producer:
            while self._producing:
                await producer.publish(b"x")
                await trio.sleep(0.004)

    async def _consume(self, client: Client, group: str, work: float) -> None:
        async with client.consumer(
            self.topic, group, hold_time=HOLD_S, prefetch=40, auto_extend=False
        ) as consumer:
            async for messages in consumer.batches(20):
                if work > HOLD_S / 2:
                    self.taken_at = trio.current_time()
                await trio.sleep(work)
                self.outcomes.update(await consumer.ack(messages))

    def check(self) -> None:
        """Assert the promises of sim/checkers, and that g acked all that the rewind covers, and h all messages."""
        rows = [*read_history(sorted(self.folder.glob("*.jsonl"))), *self.marks]
        violations = judged(rows, 3)
        assert not violations, violations[:5]
        registers = [row for row in self.marks if row["kind"] == "register"]
        newest = max(registers, key=lambda row: row["generation"])
        acked: dict[tuple[str, int], set[MessageKey]] = defaultdict(set)
        published, covered = set(), set()
        for row in rows:
            if row["kind"] == "ack" and row["outcome"].startswith("acked"):
                acked[row["group"], row["generation"]].update(keys_of(row))
            elif row["kind"] == "publish" and row["outcome"] == "invoke":
                published.update(keys_of(row))
                covered.update(keys_of(row) if row["published_ms"] >= newest["from_ms"] else ())
        assert 0 < len(covered) < len(published), "the rewind was in the middle"
        assert covered <= acked["g", newest["generation"]], "delivered again"
        assert acked["h", 0] == published


def test_a_rewind_to_a_time_under_load_delivers_what_it_covers_again(
    five: LocalCluster, tmp_path: Path
) -> None:
    load = Load(five, tmp_path, "rewound")

    async def main() -> None:
        async with through(five, "n1") as client:
            topic = await client.create_topic("rewound", retention=KEPT_S)
            await load.set(client.create_group("rewound", "g"))
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
                        await load.set(operator.rewind("rewound", "g", middle))
                        await trio.sleep(1.0)

    trio.run(main)
    load.check()
    assert load.outcomes[Outcome.REWOUND] > 0, "somebody held something when it was rewound"


def test_the_later_of_two_simultaneous_rewinds_stays_everywhere(five: LocalCluster, tmp_path: Path) -> None:
    load = Load(five, tmp_path, "twice")

    async def main() -> None:
        async with through(five, "n1") as client:
            topic = await client.create_topic("twice", retention=KEPT_S)
            await load.set(client.create_group("twice", "g"))
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
                        made.append(await load.set(operator.rewind("twice", "g", to)))

                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(rewind, one, middle)
                        nursery.start_soon(rewind, two, later)
                    newest = max(made, key=lambda group: group.generation)
                    assert len({group.generation for group in made}) == 2
                with trio.fail_after(PATIENCE_S):
                    for node in five.nodes:
                        known: tuple[Group, ...] = ()
                        async with through(five, node) as asked:
                            while known != (newest,):
                                groups = (await asked.metadata("twice")).groups
                                known = tuple(group for group in groups if group.name == "g")
                                await trio.sleep(0.05)

    trio.run(main)
    load.check()
