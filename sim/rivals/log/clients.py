"""Producers and consumers of the log: these know the leaders, and consumers are members of a group.

A consumer asks for its partitions from where it stands, works on what came, commits, and asks again; its heartbeats
go on meanwhile. That a rebalance is under way it hears from those, and joins again before it polls the next time:
eagerly, with nothing in hand and nothing owned, or cooperatively, reading on what it keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from sim.rivals.harness import Run
from sim.rivals.log.assignors import ASSIGNORS, cooperative
from sim.rivals.log.broker import Broker
from sim.rivals.log.group import REBALANCE_S, SESSION_S
from sim.rivals.log.wire import (
    ILLEGAL_GENERATION,
    NOT_COORDINATOR,
    REBALANCE,
    UNKNOWN_MEMBER,
    Assigned,
    Beat,
    Commit,
    Entry,
    FindCoordinator,
    Join,
    Joined,
    NotLeader,
    OffsetFetch,
    Offsets,
    Poll,
    Polled,
    Produce,
    Sync,
)
from sim.rivals.oracle import Oracle
from sim.rivals.plan import TRIES
from sim.rivals.workload import Batch, Consumer, Key, Producer, Taken, named

BEAT_S = 0.5
POLL_S = 0.5


class LogProducer(Producer):
    """Asks the leader of the partition, as far as it knows it."""

    def choose(self, batch: Batch, tried: str) -> str:
        leader: str = self.oracle.leader(batch.partition)
        return leader

    def request(self, batch: Batch, items: tuple[tuple[Key, bytes], ...]) -> Any:
        return Produce(batch.partition, self.producer_id, batch.first, items)


class LogConsumer(Consumer):
    """A member of the group; arguments as there."""

    obeys_deadline = False  # a poll's messages are handled, even if another client owns the partition by then

    def __init__(self, run: Run, name: str) -> None:
        super().__init__(run, name)
        self.knobs = run.knobs
        self.reset()

    def reset(self) -> None:
        """Begin a process: it is no member yet."""
        self.coordinator = ""
        self.member = ""
        self.generation = 0
        self.positions: dict[int, int] = {}
        self.rejoin = True
        self.joining = False
        self.valid_until = 0.0
        self.buffer: list[tuple[int, int, Entry]] = []
        self.waiting: Callable[[Sequence[Taken]], None] | None = None
        self.polling: dict[str, int] = {}
        self.retries: dict[tuple[int, int], int] = {}

    def begin(self, _: object = None, __: object = None) -> None:
        self.reset()
        self.beat()
        self.fetch()

    # ------------------------------------------------------------------ membership

    def coordinate(self, request: Any, then: Callable[[Any], None], timeout: float) -> None:
        """Ask the coordinator; None if it is unknown, or no answer comes."""
        if self.coordinator:

            def heard(answer: Any, _: Any) -> None:
                if answer == NOT_COORDINATOR or not isinstance(answer, bool | str | tuple):
                    self.coordinator = ""
                    answer = None
                then(answer)

            self.ask(self.coordinator, request, timeout, heard)
            return

        def found(answer: Any, _: Any) -> None:
            if isinstance(answer, NotLeader):
                self.coordinator = answer.leader
                self.coordinate(request, then, timeout)
            else:
                then(None)

        look_up: Any = FindCoordinator()
        self.ask(self.node(), look_up, 0.5, found)

    def beat(self) -> None:
        """Send a heartbeat, now and again."""
        self.later(BEAT_S, self.beat)
        if not self.member or self.joining:
            return
        sent = self.world.time
        generation = self.generation

        def then(answer: Any) -> None:
            if generation != self.generation or self.joining:
                return
            if answer in (True, REBALANCE):
                self.valid_until = max(self.valid_until, sent + SESSION_S)
            if answer == REBALANCE:
                self.rejoin = True
                self.rejoin_while_idle()
            elif answer in (UNKNOWN_MEMBER, ILLEGAL_GENERATION):
                self.lose_all(answer)

        self.coordinate(Beat(self.member, generation), then, BEAT_S)

    def lose_all(self, why: str) -> None:
        """Lose all partitions: others may have them by now."""
        if why == UNKNOWN_MEMBER:
            self.member = ""
        self.positions.clear()
        self.buffer.clear()
        self.rejoin = True
        self.rejoin_while_idle()

    def rejoin_while_idle(self) -> None:
        """Join at once if nothing is in hand."""
        if self.waiting is not None and self.rejoin and not self.joining:
            self.join()

    def join(self) -> None:
        """Join the group, and read on when the partitions are known; cooperatively, read meanwhile, too."""
        self.joining, self.rejoin = True, False
        if not self.knobs.cooperative:
            self.positions.clear()
            self.buffer.clear()
        instance = self.name if self.knobs.static else ""
        request = Join(self.member, instance, tuple(sorted(self.positions)))

        def then(answer: Any) -> None:
            if isinstance(answer, Joined):
                self.member, self.generation = answer.member, answer.generation
                self.valid_until = max(self.valid_until, self.world.time)
                self.sync(answer)
            else:
                self.fail_to_join()

        self.coordinate(request, then, REBALANCE_S + 1.0)

    def fail_to_join(self) -> None:
        """Try again soon."""
        self.joining, self.rejoin = False, True
        self.later(0.1 + self.rng.random() * 0.1, self.rejoin_while_idle)

    def sync(self, joined: Joined) -> None:
        """Divide the partitions if we are the group's leader, and hear which are ours."""
        assignment = {}
        if joined.members:
            partitions = list(range(self.options.partitions))
            assignment = ASSIGNORS[self.knobs.assignor](joined.members, partitions)
            if self.knobs.cooperative:
                assignment = cooperative(joined.members, assignment)
            missing = set(partitions) - {p for given in assignment.values() for p in given}
            self.rejoin = self.rejoin or bool(missing)
        sent = self.world.time

        def then(answer: Any) -> None:
            if isinstance(answer, Assigned):
                self.valid_until = max(self.valid_until, sent + SESSION_S)
                self.on_assigned(answer.partitions)
            else:
                self.fail_to_join()

        self.coordinate(Sync(self.member, self.generation, assignment), then, REBALANCE_S)

    def on_assigned(self, partitions: tuple[int, ...]) -> None:
        """Give up partitions that are not ours any more, and find out the offsets to begin at in the others."""
        revoked = [p for p in self.positions if p not in partitions]
        for partition in revoked:
            del self.positions[partition]
        self.buffer = [item for item in self.buffer if item[0] in partitions]
        self.rejoin = self.rejoin or (bool(revoked) and self.knobs.cooperative)
        new = tuple(p for p in partitions if p not in self.positions)

        def then(answer: Any) -> None:
            self.joining = False
            if isinstance(answer, Offsets):
                self.positions.update(answer.offsets)
            else:
                self.rejoin = True
            if self.rejoin:
                self.later(0.01, self.rejoin_while_idle)
            self.poll()

        if new:
            self.coordinate(OffsetFetch(new), then, 1.0)
        else:
            then(Offsets({}))

    # ---------------------------------------------------------------------- reading

    def take(self, most: int, then: Callable[[Sequence[Taken]], None]) -> None:
        self.waiting = then
        if self.buffer:
            self.hand_out()
            return
        if self.rejoin and not self.joining:
            self.join()
        self.poll()

    def poll(self) -> None:
        """Ask the leaders of our partitions that are not asked yet."""
        if self.waiting is None or self.buffer or (self.joining and not self.knobs.cooperative):
            return
        for leader in dict.fromkeys(self.oracle.leader(p) for p in self.positions):
            if leader in self.polling:
                continue
            offsets = {p: at for p, at in self.positions.items() if self.oracle.leader(p) == leader}
            request: Any = Poll(offsets, self.options.fetch_messages, POLL_S)
            then = partial(self.on_polled, leader, offsets)
            self.polling[leader] = self.ask(leader, request, POLL_S + 0.5, then)

    def on_polled(self, leader: str, asked: dict[int, int], answer: Any, _: Any) -> None:
        """Take in entries, or none."""
        self.polling.pop(leader, None)
        if isinstance(answer, Polled):
            for partition, entries in answer.entries.items():
                if self.positions.get(partition) == asked[partition]:
                    self.buffer += [(partition, asked[partition] + i, e) for i, e in enumerate(entries)]
                    self.positions[partition] += len(entries)
            if self.buffer and self.waiting is not None:
                self.hand_out()
                return
            self.poll()
        else:
            self.later(0.05, self.poll)

    def hand_out(self) -> None:
        """Give the application the buffered messages, up to its request."""
        then, self.waiting = self.waiting, None
        assert then is not None
        most = self.options.fetch_messages
        part, self.buffer = self.buffer[:most], self.buffer[most:]
        owner = self.books.next_owner(self.name)
        taken = [
            Taken(
                entry.key,
                entry.value,
                self.valid_until,
                owner,
                self.oracle.leader(partition),
                (partition, offset),
            )
            for partition, offset, entry in part
        ]
        if self.knobs.commit == "before":
            self.commit([item.receipt for item in taken], lambda ok: then(taken))
        else:
            then(taken)

    # --------------------------------------------------------------------- settling

    def fail(self, item: Taken) -> None:
        """Note that the handler failed: the partition waits for another try; after the last it is a dead letter."""
        super().fail(item)
        if self.books.failures[named(item.key)] < TRIES:
            self.hand.insert(0, self.failed.pop())

    def settle_all(self) -> None:
        done, failed, self.done, self.failed = self.done, self.failed, [], []
        for item in failed:  # a record in another topic, which is not written here
            fields = self.described(item)
            for outcome in ("invoke", "ok"):
                self.world.note(
                    self.who, "dead_letter", **fields, op=self.next_op(), outcome=outcome, via=item.via
                )
            self.books.dead[named(item.key)] = item.key
            self.books.settled[named(item.key)] = None
        if done:
            self.settle("ack", done, 3)
        elif failed and self.knobs.commit == "after":
            self.commit([item.receipt for item in failed], lambda outcome: None)
        self.later(0.001, self.fetch)

    def conclude(
        self, kind: str, items: Sequence[Taken], node: str, op: int, then: Callable[[Sequence[str]], None]
    ) -> None:
        done = ["acked_unproven"] * len(items)
        if self.knobs.commit == "before":
            then(done)
            return

        def heard(outcome: Any) -> None:
            if outcome is True:
                then(done)
            else:
                then(["unknown" if outcome is None else "stale-generation"] * len(items))

        self.commit([item.receipt for item in items], heard)

    def commit(self, receipts: Sequence[tuple[int, int]], then: Callable[[Any], None]) -> None:
        """Commit the offsets behind these; a member of an older generation may not."""
        offsets: dict[int, int] = {}
        for partition, offset in receipts:
            offsets[partition] = max(offset + 1, offsets.get(partition, 0))
        generation = self.generation

        def heard(answer: Any) -> None:
            current = generation == self.generation and not self.joining
            if current and answer in (UNKNOWN_MEMBER, ILLEGAL_GENERATION):
                self.lose_all(answer)
            then(answer)

        self.coordinate(Commit(self.member, generation, offsets), heard, 1.0)


def build(run: Run) -> None:
    """Fill a run."""
    run.oracle = Oracle(run, run.options.partitions + 1)
    run.add_machines(lambda machine, records: Broker(run, machine, records))
    run.add_clients(LogProducer, LogConsumer)
