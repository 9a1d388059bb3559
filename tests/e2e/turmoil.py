"""Everything at once on five real nodes: three groups, times, rejects, dead letters, redrives, a rewind, kills.

`Turmoil` runs the clients and the faults, and has sim/checkers read the histories.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import trio

from quorumq.client import Client, Message, Pending, QuorumqError, connect
from quorumq.client.client import suspending_clock
from quorumq.core.messages import Peeked, PeekReply, PeekRequest
from quorumq.core.values.errors import Unanswered
from quorumq.core.values.types import Group, Topic
from quorumq.history import HistoryWriter, Row, read_history, spans_value
from quorumq.lab.demo_verdict import MessageKey, keys_of
from quorumq.lab.local import LocalCluster
from sim.real.judgement import counted, judged
from tests.e2e.raw import Raw
from tests.patience import PATIENCE_S

TOPIC = "turmoil"
PARTITIONS = 6
RF = 3
HOLD_S = 2.0
MAX_DELIVERIES = 3
RETENTION_S = 600.0
"""Longer than a run: a message reclaimed before a rewind would not come again, and that would look like a loss."""

RATE = 40.0
"""Messages a second of each producer."""

DRAIN_S = PATIENCE_S
"""Seconds that a healed cluster may take to settle everything here. docs/protocol.md, G4, bounds it for nodes that
compute in no time (sim/options.py, `drain_bound`): the simulator holds that."""

EARLY, LATE, BACK = "early", "late", "back"
GROUPS = (EARLY, LATE, BACK)
READER = EARLY + "!dead"
SETTLED = ("acked", "dead", "purged", "skipped")


@dataclass
class Turmoil:
    """See the module.

    Args:
        cluster: five running nodes that write histories.
        folder: for the histories of the clients.
        seconds: for how long nodes are hurt.
        seed: random seed of faults and clients. Timing of processes is not in it.
    """

    cluster: LocalCluster
    folder: Path
    seconds: float
    seed: int
    marks: list[Row] = field(default_factory=list)
    """When groups were created and rewound."""
    reasons: dict[str, dict[tuple[str, MessageKey, int, int], None]] = field(default_factory=dict)
    """By reason, the dead letters that were ever listed."""
    counts: Counter[str] = field(default_factory=Counter)
    phases: list[Row] = field(default_factory=list)
    lists: list[Row] = field(default_factory=list)
    """Each replica's dead letters at the end."""
    _calm: bool = False

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)

    # --------------------------------------------------------------------------- the run

    async def run(self) -> None:
        """Hurt nodes while clients work, heal, and wait until everything is settled."""
        async with AsyncExitStack() as stack:
            names = ("o0", "o1", "p0", "p1", "e0", "e1", "b0", "b1", "l0", "r0")
            of = {name: await stack.enter_async_context(self._client(name)) for name in names}
            operators = [of["o0"], of["o1"]]
            topic = await operators[0].create_topic(
                TOPIC, rf=RF, partitions=PARTITIONS, max_deliveries=MAX_DELIVERIES, retention=RETENTION_S
            )
            for group in (EARLY, BACK):
                await self._set(group, lambda group=group: operators[0].create_group(TOPIC, group))
            async with trio.open_nursery() as working:
                for number in range(2):
                    working.start_soon(self._consume, of[f"e{number}"], EARLY)
                    working.start_soon(self._consume, of[f"b{number}"], BACK)
                working.start_soon(self._read_dead_letters, of["r0"])
                async with trio.open_nursery() as producing:
                    for number in range(2):
                        producing.start_soon(self._produce, of[f"p{number}"], f"p{number}")
                    async with trio.open_nursery() as hurting:
                        hurting.start_soon(self._hurt)
                        hurting.start_soon(self._operate, operators)
                        await trio.sleep(self.seconds / 3)
                        middle = datetime.now(UTC)
                        await self._set(LATE, lambda: operators[0].create_group(TOPIC, LATE, start="latest"))
                        working.start_soon(self._consume, of["l0"], LATE)
                        await trio.sleep(self.seconds / 3)
                        await self._set(BACK, lambda: operators[1].rewind(TOPIC, BACK, middle))
                    self._calm = True
                await self._drain(operators[0])
                await self._list(topic)
                working.cancel_scope.cancel()

    @asynccontextmanager
    async def _client(self, name: str) -> AsyncIterator[Client]:
        addresses = self.rng.sample(self.cluster.addresses, len(self.cluster.addresses))
        with HistoryWriter(self.folder / f"{name}.jsonl", run=TOPIC, who=f"client:{name}") as writer:
            async with connect(addresses, history=writer, rng=random.Random(self.rng.random())) as client:
                yield client

    async def _set(self, group: str, act: Callable[[], Awaitable[Group]]) -> None:
        """Create or rewind, again until it is certain: a majority of a replica set may be down at the moment."""
        began = suspending_clock()
        with trio.fail_after(DRAIN_S):
            while True:
                with suppress(Unanswered):
                    made = await act()
                    break
        mark = {
            "who": "sim",
            "topic": TOPIC,
            "group": group,
            "generation": made.generation,
            "from_ms": made.from_ms,
        }
        if made.latest:
            mark["latest"] = made.latest.name.lower()
        self.marks.append({"kind": "register", "at": began, **mark})

    # ------------------------------------------------------------------------- its faults

    async def _hurt(self) -> None:
        """Kill one node, or two at once, or have one stand still; the next when all vote again."""
        end = suspending_clock() + self.seconds
        turns = 0
        while suspending_clock() < end:
            fault = (
                ("kill", "pause", "both")[turns] if turns < 3 else self.rng.choice(("kill", "pause", "both"))
            )
            turns += 1
            if fault == "pause":
                name = self.rng.choice(self.cluster.nodes)
                self.cluster.pause(name)
                self.counts["pauses"] += 1
                try:
                    await trio.sleep(self.rng.uniform(0.5, 3.0))
                finally:
                    self.cluster.resume(name)
            else:
                names = self.rng.sample(self.cluster.nodes, 2 if fault == "both" else 1)
                for name in names:
                    self.cluster.kill(name)
                self.counts["kills"] += len(names)
                await trio.sleep(self.rng.uniform(0.1, 0.7))
                for name in names:
                    self.cluster.spawn(name)
            await self.cluster.wait_ready_async(quarantine=True)
            await trio.sleep(self.rng.uniform(0.0, 0.5))

    # ------------------------------------------------------------------------- its clients

    async def _produce(self, client: Client, name: str) -> None:
        async def confirm(pending: Pending) -> None:
            try:
                await pending.wait()
            except Unanswered:
                self.counts["unknown publishes"] += 1

        async with client.producer(TOPIC) as producer, trio.open_nursery() as nursery:
            number = 0
            while not self._calm:
                number += 1
                delay, ttl = None, None
                if number % 25 == 5:
                    delay = 1.0
                elif number % 50 == 7:
                    delay, ttl = 0.69, 0.7  # expires nearly as soon as it is due
                elif number % 50 == 9:
                    ttl = 600.0
                pending = await producer.send(b"%s %d" % (name.encode(), number), delay=delay, ttl=ttl)
                nursery.start_soon(confirm, pending)
                await trio.sleep(1 / RATE)

    async def _consume(self, client: Client, group: str) -> None:
        """Through one node after the other, or through whichever has the partitions."""
        while True:
            node = self.rng.choice([None, *self.cluster.nodes])
            with suppress(Unanswered), trio.move_on_after(self.rng.uniform(2.0, 8.0)):
                async with client.consumer(
                    TOPIC, group, hold_time=HOLD_S, prefetch=40, auto_extend=False, node=node, timeout=3.0
                ) as consumer:
                    async for messages in consumer.batches(20):
                        await self._handle(client, messages)

    async def _handle(self, client: Client, messages: list[Message]) -> None:
        good: list[Message] = []
        for message in messages:
            number = int(message.payload.split()[1])
            kind = "" if self._calm else {0: "die", 1: "limit", 2: "again", 3: "late"}.get(number % 40, "")
            if kind == "die":
                await self._do(message, lambda message=message: message.dead_letter(ValueError("no")))
            elif kind == "limit" and message.delivery.receipt.n == 0:
                await self._do(message, lambda message=message: message.reject(delay=0.1))
            elif kind == "again" and message.attempt == 1:
                await self._do(message, lambda message=message: message.reject(delay=0.5))
            elif kind != "late" or message.attempt > 1:  # late messages are left to their hold
                good.append(message)
        while good:
            with suppress(Unanswered):
                await client.ack(good)
            good = [message for message in good if message.outcome is None]

    async def _do(self, message: Message, act: Callable[[], object]) -> None:
        """Settle a message otherwise than by ack; again while that is unknown and the hold lasts."""
        while message.is_live:
            try:
                await act()  # type: ignore[misc]
                return
            except Unanswered:
                continue
            except QuorumqError:
                return  # its hold was lost, or it was rewound: it comes again

    async def _read_dead_letters(self, client: Client) -> None:
        """Acks some of one group's dead letters, rejects others, and leaves the rest to their holds."""
        while not self._calm:
            with suppress(QuorumqError):
                for message in await client.fetch(
                    TOPIC, READER, max_messages=10, max_wait=0.5, hold_time=HOLD_S
                ):
                    choice = self.rng.random()
                    if choice < 0.3:
                        await message.ack()
                    elif choice < 0.7:
                        await message.reject(delay=0.3)
            await trio.sleep(0.1)

    async def _operate(self, operators: list[Client]) -> None:
        """List dead letters and redrive some, two operators the same ones at once."""
        end = suspending_clock() + self.seconds

        async def redrive(operator: Client, group: str, items: list[object]) -> None:
            with suppress(QuorumqError):
                self.counts["redriven"] += (await operator.redrive(TOPIC, group, items)).messages  # type: ignore[arg-type]

        while suspending_clock() < end:
            for group in (EARLY, BACK):
                peeks = []
                with suppress(QuorumqError):
                    async for item in operators[0].peek(
                        TOPIC, group, "dead", node=self.rng.choice(self.cluster.nodes)
                    ):
                        peeks.append(item)
                        self._note_death(group, item.partition, item.peeked)
                chosen = [item for item in peeks if self.rng.random() < 0.5]
                async with trio.open_nursery() as nursery:
                    for operator in operators:
                        nursery.start_soon(redrive, operator, group, chosen)
            await trio.sleep(self.rng.uniform(0.3, 1.0))

    def _note_death(self, group: str, partition: int, item: Peeked) -> None:
        death = item.record.letter
        assert death is not None, item
        for key in keys_of({"topic": TOPIC, "partition": partition, "spans": spans_value([item.span])}):
            name = (group, key, item.record.generation, item.record.n)
            self.reasons.setdefault(death.reason, {})[name] = None

    # ------------------------------------------------------------------------------- the end

    async def _drain(self, client: Client) -> None:
        self._phase("healed", seconds=DRAIN_S)
        with trio.move_on_after(DRAIN_S):
            while True:
                states = {group: await self._states(client, group) for group in GROUPS}
                if all(state in SETTLED for counts in states.values() for state in counts):
                    self._phase("drained")
                    break
                await trio.sleep(0.3)
        self._phase("end")
        for group in GROUPS:
            with suppress(Unanswered):
                async for item in client.peek(TOPIC, group, "purged", complete=True):
                    self._listed("sim", group, item.partition, item.peeked)
        self.counts.update({f"{group} {state}": n for group in states for state, n in states[group].items()})

    async def _states(self, client: Client, group: str) -> Counter[str]:
        """Return the state of every message by majority."""
        counts: Counter[str] = Counter()
        with suppress(Unanswered):
            async for item in client.peek(TOPIC, group, "all", complete=True):
                counts[item.peeked.state] += item.peeked.span.size
            return counts
        return Counter(ready=1)

    def _phase(self, phase: str, **more: object) -> None:
        self.phases.append({"kind": "phase", "who": "sim", "at": suspending_clock(), "phase": phase, **more})

    async def _list(self, topic: Topic) -> None:
        """Each replica's dead letters, once all replicas of a partition list the same."""
        for group in GROUPS:
            for partition, members in enumerate(topic.replicas):
                end = time.monotonic() + DRAIN_S
                while True:
                    pages = [
                        await trio.to_thread.run_sync(self._dead_at, node, group, partition)
                        for node in members
                    ]
                    ours = [
                        {(item.span, item.record.generation, item.record.n) for item in page}
                        for page in pages
                    ]
                    if all(listing == ours[0] for listing in ours) or time.monotonic() > end:
                        break
                    await trio.sleep(0.3)
                assert all(listing == ours[0] for listing in ours), (
                    f"{members} list different dead letters: {ours}"
                )
                for node, page in zip(members, pages, strict=True):
                    for item in page:
                        self._note_death(group, partition, item)
                        self._listed(f"node:{node}", group, partition, item)

    def _listed(self, who: str, group: str, partition: int, item: Peeked) -> None:
        where = {"topic": TOPIC, "partition": partition, "group": group, "spans": spans_value([item.span])}
        life = {"state": item.state, "generation": item.record.generation, "n": item.record.n}
        self.lists.append({"kind": "list", "who": who, "at": suspending_clock(), **where, **life})

    def _dead_at(self, node: str, group: str, partition: int) -> list[Peeked]:
        items: list[Peeked] = []
        cursor: tuple[int, int] | None = (0, 0)
        with Raw(self.cluster.address(node)) as raw:
            while cursor is not None:
                page = raw.ask(PeekRequest(TOPIC, partition, group, "dead", cursor, 1000))
                assert isinstance(page, PeekReply), page
                items += page.items
                cursor = page.cursor
        return items

    # --------------------------------------------------------------------------- its judgement

    def rows(self) -> list[Row]:
        """Every line of every client and node, in order of time, on the clients' clock."""
        rows = list(read_history(sorted(self.folder.glob("*.jsonl"))))
        for name in self.cluster.nodes:
            rows += read_history([self.cluster.history_path(name)])
        rows = [row for row in rows if row["kind"] != "list"]  # looked at on the way
        return sorted([*rows, *self.marks, *self.phases, *self.lists], key=lambda row: row["at"])

    def check(self) -> Counter[str]:
        """Assert that every promise was kept; return the counts of events."""
        rows = self.rows()
        counts = self.counts + counted(rows)
        counts.update({reason: len(times) for reason, times in self.reasons.items()})
        report = ", ".join(f"{name} {number}" for name, number in sorted(counts.items()))
        violations = judged(rows, RF)
        assert not violations, "\n".join([report, *map(str, violations[:20])])
        print(f"turmoil of {self.seconds:g} s: {report}")
        return counts
