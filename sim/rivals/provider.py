"""Approach B of the design note: a message provider on the leader of each partition. The text:

    P nodes elect a leader Pl using Paxos / Raft. Pl spawns a message provider process MPP. Consumer C requests for
    messages are routed to MPP on Pl: C requests one message. MPP pops message key K from top of buffer. MPP fetches
    payload V for K from Pl or other P node. MPP responds with one message K,V. If MPP message buffer length is
    shorter than watermark: Request N keys from P1,P2,P3. For each key K received: Query tombstones (QUORUM read). If
    no tombstones, enqueue. Also needs to: Fetch tombstones for K before returning it. QUORUM fetch. Prune buffer as
    tombstones are written to the node, refill if buffer length shrinks below watermark. Keep a list of outstanding
    messages.

An oracle elects (sim/rivals/oracle.py). A client knows the leaders, and asks one of them for a few messages at once;
what it has then is outstanding until its hold time is over. Messages end as in approach C.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from sortedcontainers import SortedDict

from sim.rivals.harness import Run
from sim.rivals.machine import Machine
from sim.rivals.oracle import Oracle, Term
from sim.rivals.replica import QueueConsumer, QueueProducer, Replica, Replies, Store, Take
from sim.rivals.workload import Key

LOOK_S = 0.5
"""Seconds between two looks of a provider with an empty buffer for keys that its own replica did not get."""

PARK_S = 0.25
"""Seconds that it keeps a client's request: other leaders may have something."""


class Keys(NamedTuple):
    """The oldest keys of a partition."""

    partition: int
    most: int


class Buried(NamedTuple):
    """Request for those keys that have a tombstone."""

    keys: tuple[Key, ...]


class Values(NamedTuple):
    """The payload of these."""

    keys: tuple[Key, ...]


@dataclass(eq=False, slots=True)
class Provider:
    """The state of one partition's provider; gone when the leader is."""

    buffer: SortedDict = field(default_factory=SortedDict)  # keys to be given out
    outstanding: dict[Key, float] = field(default_factory=dict)  # keys that a client has, and until when
    refilling: bool = False  # True while a refill is under way
    dry: bool = False  # True if the last refill brought nothing, and nothing was stored here since


class ProviderReplica(Replica):
    """A replica, and the providers of the partitions that it leads."""

    wait = PARK_S

    def __init__(self, run: Run, machine: Machine, records: list[Any]) -> None:
        self.epochs: dict[int, int] = {}
        self.providers: dict[int, Provider] = {}
        self.looking = False
        super().__init__(run, machine, records)

    def on_terms(self, terms: dict[int, Term]) -> None:
        """Take in an election: a new leader's provider begins with nothing."""
        for number, term in terms.items():
            if self.epochs.get(number) != term.epoch:
                self.epochs[number] = term.epoch
                self.providers.pop(number, None)
                if term.leader == self.name:
                    self.providers[number] = Provider()
                    self.refill(number)

    # ------------------------------------------------------------------ the buffer

    def refill(self, number: int) -> None:
        """Ask all replicas for keys if the buffer is short, and a majority for their tombstones."""
        provider = self.providers.get(number)
        if provider is None or provider.refilling or provider.dry:
            return
        if len(provider.buffer) >= self.run.knobs.watermark:
            return
        provider.refilling = True
        most = self.run.knobs.refill + len(provider.buffer) + len(provider.outstanding)
        self.ask_all(Keys(number, most), partial(self.on_keys, provider), self.is_answered)

    def on_keys(self, provider: Provider, replies: Replies) -> None:
        """Take in keys, and ask for the tombstones of the new ones."""
        known = {key: None for keys in replies.values() for key in keys}
        new = tuple(key for key in known if key not in provider.buffer and key not in provider.outstanding)
        provider.dry = not new
        if not new:
            provider.refilling = False
            return

        def alive(keys: tuple[Key, ...]) -> None:
            provider.refilling = False
            for key in keys:
                if key not in provider.outstanding:
                    provider.buffer[key] = None
            if keys:
                self.wake()

        self.read_tombstones(new, alive)

    def read_tombstones(self, keys: tuple[Key, ...], then: Callable[[tuple[Key, ...]], None]) -> None:
        """Read with a quorum; ``then`` gets the keys without a tombstone, or none at all if no majority answers."""
        self.run.books.tombstone_reads += len(keys)

        def heard(replies: Replies) -> None:
            if not self.is_answered(replies):
                then(())
                return
            buried = {key for said in replies.values() for key, dead in zip(keys, said, strict=True) if dead}
            then(tuple(key for key in keys if key not in buried and key not in self.tombs))

        self.ask_all(Buried(keys), heard, self.is_answered)

    # ------------------------------------------------------------------ for clients

    def find(self, key: int, request: Take) -> bool:
        now = self.machine.mono
        chosen: list[Key] = []
        for number, provider in self.providers.items():
            for one in [one for one, until in provider.outstanding.items() if until <= now]:
                del provider.outstanding[one]
                provider.buffer[one] = None
            while provider.buffer and len(chosen) < request.most:
                one, _ = provider.buffer.popitem(0)
                provider.outstanding[one] = now + request.hold
                chosen.append(one)
            self.refill(number)
        if not chosen:
            if not self.looking:
                self.looking = True
                self.machine.after(LOOK_S, self.look)
            return False
        self.read_tombstones(tuple(chosen), lambda keys: self.give(key, request, tuple(chosen), keys))
        return True

    def look(self) -> None:
        """Try again for those that wait."""
        self.looking = False
        for number, provider in self.providers.items():
            provider.dry = False
            self.refill(number)
        self.wake()

    def give(self, client: int, request: Take, chosen: tuple[Key, ...], keys: tuple[Key, ...]) -> None:
        """Get the payload of these, which are not done, and answer. The others are pruned, or go back."""
        for key in chosen:
            provider = self.providers.get(key.partition)
            if key not in keys and provider is not None:
                provider.outstanding.pop(key, None)
        owner = self.run.books.next_owner(self.name)
        here = tuple((key, self.messages[key]) for key in keys if key in self.messages)
        missing = tuple(key for key in keys if key not in self.messages)
        if not missing:
            self.give_out(client, request, here, owner)
            return

        def heard(replies: Replies) -> None:
            found = {key: value for said in replies.values() for key, value in said}
            self.give_out(client, request, (*here, *found.items()), owner)

        self.ask_all(
            Values(missing),
            heard,
            enough=lambda replies: any(len(said) == len(missing) for said in replies.values()),
        )

    # ------------------------------------------------------------------ the replica

    def serve_keys(self, request: Keys, answer: Callable[[Any], None]) -> None:
        mine = [key for key in self.messages if key.partition == request.partition]
        answer(tuple(mine[: request.most]))

    def serve_buried(self, request: Buried, answer: Callable[[Any], None]) -> None:
        answer(tuple(key in self.tombs for key in request.keys))

    def serve_values(self, request: Values, answer: Callable[[Any], None]) -> None:
        answer(tuple((key, self.messages[key]) for key in request.keys if key in self.messages))

    def serve_store(self, request: Store, answer: Callable[[Any], None]) -> None:
        super().serve_store(request, answer)
        for number in dict.fromkeys(key.partition for key, _ in request.items):
            if number in self.providers:
                self.providers[number].dry = False
                self.refill(number)

    def on_tombs(self, keys: Sequence[Key]) -> None:
        for key in keys:
            provider = self.providers.get(key.partition)
            if provider is not None:
                provider.buffer.pop(key, None)
                provider.outstanding.pop(key, None)
        for number in dict.fromkeys(key.partition for key in keys):
            self.refill(number)

    def on_free(self, keys: Sequence[Key]) -> None:
        for key in keys:
            provider = self.providers.get(key.partition)
            if provider is not None and provider.outstanding.pop(key, None) is not None:
                provider.buffer[key] = None


class ProviderConsumer(QueueConsumer):
    """Asks the leaders in turn."""

    turn = 0

    def choose(self) -> str:
        self.turn += 1
        leaders: list[str] = list(dict.fromkeys(term.leader for term in self.oracle.terms.values()))
        return leaders[(self.turn + int(self.name[1:])) % len(leaders)]


def build(run: Run) -> None:
    """Fill a run."""
    run.oracle = Oracle(run, run.options.partitions)
    run.add_machines(lambda machine, records: ProviderReplica(run, machine, records))
    run.add_clients(QueueProducer, ProviderConsumer)
