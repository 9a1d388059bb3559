"""The clients of the comparison: the same producers and consumers for every design, which only adds how it is asked.

Producers publish what the seed planned, at the planned times, one batch at a time in each partition, each until it is
confirmed. Consumers ask for a few messages, work on them one after the other, settle all that they have done at once,
and ask again. A message not handled by its deadline is not handled at all, if the design has a deadline.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from crc32c import crc32c

from sim.clients.client import Client
from sim.rivals.plan import HANDLING_S, POISON_S, SLOW, SLOW_S, TRIES
from sim.world import EPOCH_MS, Refusal, World

TOPIC, GROUP = "jobs", "g0"
POISON = b"poison"

DEADLINE_SHARE = 0.98
"""A consumer counts on this share of a hold, from before it asked: clocks differ. As quorumq's client does."""


class Key(NamedTuple):
    """Key of a message; keys sort by age."""

    made: int  # the producer's time of day, in milliseconds
    producer_id: str
    seq: int
    partition: int


ReceiptPart = tuple[int, str, int]
"""A message as the history names it: partition, producer id, number."""


def named(key: Key) -> ReceiptPart:
    """Return the message's parts, without its time."""
    return key.partition, key.producer_id, key.seq


class Taken(NamedTuple):
    """A message in the hand of a consumer."""

    key: Key  # key of the message
    value: bytes  # its bytes
    until: float  # true time of its deadline
    owner: str  # owner of the hold, as the history writes it
    via: str  # the node that was asked
    receipt: Any = None  # the design's data for settling it
    token: str = ""  # the fencing token, if the design has one


class Batch(NamedTuple):
    """Messages of one producer to one partition, with numbers from ``first`` on."""

    partition: int
    first: int
    made: int
    values: tuple[bytes, ...]


@dataclass(eq=False, slots=True)
class Books:
    """The harness's knowledge of a run without its history."""

    confirmed: dict[ReceiptPart, float] = field(default_factory=dict)  # messages whose publish was, and when
    # Messages with a sent ACK, or known as dead letters to a client.
    settled: dict[ReceiptPart, None] = field(default_factory=dict)
    dead: dict[ReceiptPart, Key] = field(default_factory=dict)  # the dead letters
    fresh: dict[ReceiptPart, None] = field(default_factory=dict)  # confirmed, and in no client's hand so far
    taken: dict[ReceiptPart, None] = field(default_factory=dict)
    failures: dict[ReceiptPart, int] = field(default_factory=dict)  # vain handlings of each
    asked: int = 0  # messages asked for while at least as many were fresh
    received: int = 0  # messages that came in answer
    deliveries: int = 0  # messages handed to handlers
    tombstone_reads: int = 0  # number of reads of a message's tombstones
    lost_rounds: int = 0  # messages that a node tried to hold for a consumer in vain
    answers: int = 0

    def confirm(self, key: ReceiptPart, time: float) -> None:
        """Note that its publish was confirmed."""
        self.confirmed.setdefault(key, time)
        if key not in self.taken:
            self.fresh[key] = None

    def take(self, key: ReceiptPart) -> None:
        """Note that a message came into a client's hand."""
        self.taken[key] = None
        self.fresh.pop(key, None)

    def next_owner(self, node: str) -> str:
        """Return an owner that no other delivery has."""
        self.answers += 1
        return f"{node}.1.0#{self.answers:x}@{node}"


class Producer(Client):
    """Publishes the messages that the seed planned."""

    def __init__(self, run: Any, name: str) -> None:
        super().__init__(run, name)
        self.world: World
        self.books: Books = run.books
        self.oracle: Any = run.oracle
        self.producer_id = f"{name}.1.0.1"
        self.queues: dict[int, deque[Batch]] = {i: deque() for i in range(self.options.partitions)}
        self.left = self.options.batches
        self.sequence: dict[int, int] = {}

    @property
    def finished(self) -> bool:
        """Return True if all is confirmed."""
        return not self.left and not any(self.queues.values())

    def begin(self, _: object = None, __: object = None) -> None:
        rng = self.world.stream(f"workload/{self.name}")
        options = self.options
        for number in range(self.left):
            at = rng.uniform(0.6, options.fault_time)
            count = rng.randint(1, options.batch_messages)
            poison = bool(options.poison) and self.name == "p0" and number == 0
            if poison:
                at = 1.0
            self.world.at(
                max(at, self.world.time), self.make, (rng.randrange(options.partitions), count, poison)
            )

    def make(self, what: tuple[int, int, bool], _: object = None) -> None:
        """Make the next batch."""
        partition, count, poison = what
        self.left -= 1
        first = self.sequence.get(partition, 0)
        self.sequence[partition] = first + count
        values = [b"%s/%d/%d" % (self.name.encode(), partition, first + i) for i in range(count)]
        if poison:
            values[0] = POISON + values[0]
        made = EPOCH_MS + int(self.world.time * 1000)
        self.queues[partition].append(Batch(partition, first, made, tuple(values)))
        if len(self.queues[partition]) == 1:
            self.publish(partition)

    def publish(self, partition: int, tried: str = "") -> None:
        """Send the oldest batch of a partition, until it is confirmed."""
        batch = self.queues[partition][0]

        def then(ok: bool, node: str) -> None:
            if not ok:
                self.later(0.02 + self.rng.random() * 0.1, self.publish, partition, node)
                return
            for i in range(len(batch.values)):
                self.books.confirm((partition, self.producer_id, batch.first + i), self.world.time)
            self.queues[partition].popleft()
            if self.queues[partition]:
                self.publish(partition)

        self.store(batch, tried, then)

    def store(self, batch: Batch, tried: str, then: Callable[[bool, str], None]) -> None:
        """Try once to publish, and write its lines."""
        node = self.choose(batch, tried)
        op = self.next_op()
        fields: dict[str, Any] = {
            "topic": TOPIC,
            "partition": batch.partition,
            "spans": [[self.producer_id, batch.first, batch.first + len(batch.values)]],
            "op": op,
            "via": node,
        }
        crcs = "".join(f"{crc32c(value):08x}" for value in batch.values)
        self.world.note(self.who, "publish", **fields, outcome="invoke", crcs=crcs, published_ms=batch.made)

        def heard(answer: Any, _: Any) -> None:
            ok = answer is True
            failed = isinstance(answer, Refusal) or answer is False
            outcome = "ok" if ok else "fail" if failed else "unknown"
            self.world.note(self.who, "publish", **fields, outcome=outcome)
            then(ok, node)

        keys = [
            Key(batch.made, self.producer_id, batch.first + i, batch.partition)
            for i in range(len(batch.values))
        ]
        self.ask(
            node, self.request(batch, tuple(zip(keys, batch.values, strict=True))), self.timeout, heard, op
        )

    def choose(self, batch: Batch, tried: str) -> str:
        """Return the node to ask."""
        return self.node(tried)

    def request(self, batch: Batch, items: tuple[tuple[Key, bytes], ...]) -> Any:
        """Return the request that stores the batch: answer True says that all is stored, False that nothing is."""
        raise NotImplementedError


class Consumer(Client):
    """Takes, works, settles."""

    obeys_deadline = True

    def __init__(self, run: Any, name: str) -> None:
        super().__init__(run, name)
        self.world: World
        self.books: Books = run.books
        self.oracle: Any = run.oracle
        self.life = 0
        self.hand: list[Taken] = []
        self.done: list[Taken] = []
        self.failed: list[Taken] = []
        self.asked_at = 0.0
        self.handling = self.world.stream(f"handler/{name}")

    def begin(self, _: object = None, __: object = None) -> None:
        self.fetch()

    def later(self, seconds: float, action: Callable[..., None], *args: Any) -> None:
        super().later(seconds, self._if_alive, self.life, action, *args)

    def _if_alive(self, life: int, action: Callable[..., None], *args: Any) -> None:
        if life == self.life:
            action(*args)

    def die(self, seconds: float) -> None:
        """End the process, its connections with it; another one is started in ``seconds``."""
        for op in list(self.pending):
            self.give_up(op)
        self.hand, self.done, self.failed = [], [], []
        self.life += 1
        self.later(seconds, self.begin)

    def fetch(self) -> None:
        """Ask for messages."""
        most = self.options.fetch_messages
        plenty = len(self.books.fresh) >= most
        self.asked_at = asked = self.world.time

        def then(taken: Sequence[Taken]) -> None:
            if plenty:
                self.books.asked += most
                self.books.received += len(taken)
            for item in taken:
                self.books.take(named(item.key))
            self.asked_at = asked
            self.hand = list(taken)
            if taken:
                self.handle()
            else:
                self.later(0.02 + self.rng.random() * 0.06, self.fetch)

        self.take(most, then)

    def handle(self) -> None:
        """Work on the next message in hand."""
        while self.hand and self.obeys_deadline and self.world.time >= self.hand[0].until:
            self.drop(self.hand.pop(0))
        if not self.hand:
            self.settle_all()
            return
        item = self.hand.pop(0)
        key = item.key
        self.books.deliveries += 1
        self.world.note(
            self.who,
            "deliver",
            **self.described(item),
            token=item.token or f"{self.books.deliveries:020d}@{item.via}",
            attempt=1 + self.books.failures.get(named(key), 0),
            until=item.until,
            asked=self.asked_at,
            crcs=f"{crc32c(item.value):08x}",
            via=item.via,
        )
        poison = POISON in item.value
        seconds = min(self.handling.expovariate(1 / HANDLING_S), 0.2)
        if poison:
            seconds = POISON_S
        elif self.handling.random() < SLOW:
            seconds = self.handling.uniform(*SLOW_S)
        self.later(seconds, self.handled, item, not poison)

    def drop(self, item: Taken) -> None:
        """Drop a message that came too late, and may be in other hands by now: it is never handled."""

    def handled(self, item: Taken, ok: bool) -> None:
        """End the handling of a message, done or failed."""
        if ok:
            self.done.append(item)
        else:
            self.fail(item)
        self.handle()

    def fail(self, item: Taken) -> None:
        """Note that the handler failed."""
        key = named(item.key)
        self.books.failures[key] = self.books.failures.get(key, 0) + 1
        self.failed.append(item)

    def settle_all(self) -> None:
        """Settle the messages in hand, and ask for more."""
        done, failed, self.done, self.failed = self.done, self.failed, [], []
        if done:
            self.settle("ack", done, 6)
        for item in failed:
            out = self.books.failures[named(item.key)] >= TRIES
            self.settle("dead_letter" if out else "reject", [item], 6)
        self.later(0.001, self.fetch)

    def settle(self, kind: str, items: Sequence[Taken], tries: int, tried: str = "") -> None:
        """Send one request to ACK, REJECT or dead-letter, and write its lines; others are asked if it is unknown."""
        node = self.node(tried)
        op = self.next_op()
        for item in items:
            self.world.note(self.who, kind, **self.described(item), op=op, outcome="invoke", via=node)
            if kind == "ack":
                self.books.settled[named(item.key)] = None

        def heard(outcomes: Sequence[str]) -> None:
            again = []
            for item, outcome in zip(items, outcomes, strict=True):
                self.world.note(self.who, kind, **self.described(item), op=op, outcome=outcome)
                if outcome in ("unknown", "fail"):
                    again.append(item)
                elif kind == "dead_letter" and outcome == "ok":
                    self.books.dead[named(item.key)] = item.key
                    self.books.settled[named(item.key)] = None
            if again and (tries > 1 or self.world.healed):
                self.later(0.02 + self.rng.random() * 0.1, self.settle, kind, again, tries - 1, node)

        self.conclude(kind, items, node, op, heard)

    def described(self, item: Taken) -> dict[str, Any]:
        """Return the fields of a history line that a message in hand gives."""
        key = item.key
        return {
            "topic": TOPIC,
            "partition": key.partition,
            "group": GROUP,
            "generation": 0,
            "n": 0,
            "spans": [[key.producer_id, key.seq, key.seq + 1]],
            "owner": item.owner,
        }

    def take(self, most: int, then: Callable[[Sequence[Taken]], None]) -> None:
        """Ask for up to ``most`` messages; ``then`` is called once, with an empty sequence if none came."""
        raise NotImplementedError

    def conclude(
        self, kind: str, items: Sequence[Taken], node: str, op: int, then: Callable[[Sequence[str]], None]
    ) -> None:
        """Send one request of `settle`; ``then`` gets an outcome for each message."""
        raise NotImplementedError
