"""Base of approaches A, B and C of the design note: replicas with messages and tombstones, and rounds over them.

Of each message every replica has the payload, then a tombstone. PUBLISH and ACK succeed once a majority has written
to its disk. "Write tombstones with QUORUM write", as approach C says, is done alike for A and B, which do not say how
a message ends; a dead letter is a tombstone of another kind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, NamedTuple

from sortedcontainers import SortedDict

from sim.rivals.harness import Run
from sim.rivals.machine import Machine
from sim.rivals.workload import DEADLINE_SHARE, GROUP, Batch, Consumer, Key, Producer, Taken

Replies = dict[str, Any]
"""Answers of a round's members, by name; those that have not answered are not in it."""

WAIT_S = 0.5
"""Seconds that a node keeps a request without messages for it."""


class Take(NamedTuple):
    """A client wants messages."""

    most: int
    hold: float
    sent_at: float


class Took(NamedTuple):
    """The messages that it gets."""

    items: tuple[tuple[Key, bytes], ...]
    sent_at: float
    owner: str


class Ask(NamedTuple):
    """A part of a round: to another replica."""

    number: int
    request: Any


class Answer(NamedTuple):
    """And back."""

    number: int
    answer: Any
    kind: str  # kind of its request


class Store(NamedTuple):
    """Write these messages, as a client publishes; true once they are durable."""

    items: tuple[tuple[Key, bytes], ...]


class Tombs(NamedTuple):
    """Write tombstones, as a client is done with these or buries them; true once they are durable."""

    keys: tuple[Key, ...]
    dead: bool = False


class Free(NamedTuple):
    """Remove all holds of these, as a client could not handle them."""

    keys: tuple[Key, ...]


class Round:
    """A request to all replicas, and their answers."""

    def __init__(self, enough: Callable[[Replies], bool], then: Callable[[Replies], None], at: float) -> None:
        self.enough = enough
        self.then = then
        self.at = at
        self.replies: Replies = {}


class Replica:
    """One process, from its disk's records. A design adds the rest in a subclass: `find` and more `serve_` methods."""

    wait = WAIT_S

    def __init__(self, run: Run, machine: Machine, records: list[Any]) -> None:
        self.run = run
        self.options = run.options
        self.machine = machine
        self.name = machine.name
        self.members = run.options.node_names
        self.majority = len(self.members) // 2 + 1
        self.messages: SortedDict = SortedDict()  # Key -> bytes, without those that have a tombstone
        self.tombs: dict[Key, None] = {}
        self.rounds: dict[int, Round] = {}
        self.rounds_made = machine.life << 32  # an answer to an earlier life's round may still come
        self.parked: dict[int, Take] = {}
        for record in records:
            self.apply(record)

    def apply(self, record: Store | Tombs) -> None:
        """Take in written records."""
        if isinstance(record, Store):
            self.messages.update({key: value for key, value in record.items if key not in self.tombs})
        else:
            for key in record.keys:
                self.tombs[key] = None
                self.messages.pop(key, None)

    # ------------------------------------------------------------------- rounds

    def ask_all(
        self,
        request: Any,
        then: Callable[[Replies], None],
        enough: Callable[[Replies], bool] | None = None,
        timeout: float = 0.0,
    ) -> None:
        """Ask all replicas, this one first; ``then`` is called once: with enough, with all, or when it is late."""
        self.rounds_made += 1
        number = self.rounds_made
        self.rounds[number] = Round(enough or self.is_written, then, self.machine.mono)
        self.serve(request, lambda answer: self.heard(number, self.name, answer))
        for member in self.members:
            if member != self.name:
                self.machine.send(member, Ask(number, request))
        self.machine.after(timeout or self.options.request_timeout, self.give_up, number)

    def heard(self, number: int, who: str, answer: Any) -> None:
        """Take in a replica's answer."""
        round_ = self.rounds.get(number)
        if round_ is None:
            return
        round_.replies[who] = answer
        if round_.enough(round_.replies) or len(round_.replies) == len(self.members):
            self.give_up(number)

    def give_up(self, number: int) -> None:
        """End the round, with the answers it has."""
        round_ = self.rounds.pop(number, None)
        if round_ is not None:
            round_.then(round_.replies)

    def tell(self, who: str, message: Any) -> None:
        """Tell another replica, and wait for no answer."""
        self.machine.send(who, Ask(0, message))

    def on_message(self, sender: str, message: Any) -> None:
        if isinstance(message, Answer):
            self.heard(message.number, sender, message.answer)
            return
        number, kind = message.number, type(message.request).__name__
        self.serve(
            message.request,
            lambda answer: self.machine.send(sender, Answer(number, answer, kind)) if number else None,
        )

    def serve(self, request: Any, answer: Callable[[Any], None]) -> None:
        """Do one replica's part of a round."""
        getattr(self, "serve_" + type(request).__name__.lower())(request, answer)

    def serve_store(self, request: Store, answer: Callable[[Any], None]) -> None:
        new = tuple(
            item for item in request.items if item[0] not in self.messages and item[0] not in self.tombs
        )
        if not new:  # a retry: what was appended before is durable when what comes now is
            self.machine.persist((), lambda: answer(True))
            return
        record = Store(new)
        self.apply(record)

        def durable() -> None:
            self.machine.note("store", (key for key, _ in new))
            answer(True)

        self.machine.persist((record,), durable)
        self.wake()

    def serve_tombs(self, request: Tombs, answer: Callable[[Any], None]) -> None:
        new = tuple(key for key in request.keys if key not in self.tombs)
        record = Tombs(new, request.dead)
        self.apply(record)
        self.on_tombs(request.keys)
        self.machine.persist((record,) if new else (), lambda: answer(True))

    def serve_free(self, request: Free, answer: Callable[[Any], None]) -> None:
        self.on_free(request.keys)
        self.wake()
        answer(True)

    def on_tombs(self, keys: Sequence[Key]) -> None:
        """Note that these have tombstones here."""

    def on_free(self, keys: Sequence[Key]) -> None:
        """Note that a consumer gave these back."""

    # ------------------------------------------------------------------- clients

    def on_request(self, key: int, request: Any) -> None:
        reply = self.machine.reply
        if isinstance(request, Store | Tombs):  # once a majority has it; else its outcome is unknown
            self.ask_all(request, lambda replies: reply(key, self.is_written(replies) or "unknown"))
        elif isinstance(request, Free):  # no reply waits for it
            self.serve(request, lambda answer: None)
            for member in self.members:
                if member != self.name:
                    self.tell(member, request)
            reply(key, True)
        else:
            self.parked[key] = request
            self.machine.after(self.wait, self.unpark, key)
            self.wake()

    def is_written(self, replies: Replies) -> bool:
        """Return True if a majority has the write: it is done."""
        return sum(map(bool, replies.values())) >= self.majority

    def is_answered(self, replies: Replies) -> bool:
        """Return True if a majority has answered, with any answer."""
        return len(replies) >= self.majority

    def give_out(self, client: int, request: Take, items: tuple[tuple[Key, bytes], ...], owner: str) -> None:
        """Answer a client with the messages that were won for it."""
        won = (key for key, _ in items)
        self.machine.note("hold_won", won, group=GROUP, generation=0, n=0, owner=owner)
        self.machine.reply(client, Took(items, request.sent_at, owner))

    def on_gone(self, key: int) -> None:
        self.parked.pop(key, None)

    def unpark(self, key: int) -> None:
        """Answer a request for which no message came."""
        request = self.parked.pop(key, None)
        if request is not None:
            self.machine.reply(key, Took((), request.sent_at, ""))

    def wake(self) -> None:
        """Look again for messages for the requests that wait."""
        for key in list(self.parked):
            request = self.parked[key]
            if not self.find(key, request):
                return
            self.parked.pop(key, None)

    def find(self, key: int, request: Take) -> bool:
        """Begin to get messages for a client; False: there are none."""
        raise NotImplementedError


class HoldingReplica(Replica):
    """A replica that holds keys for a holder and a time, in memory; that begins empty at every start."""

    def __init__(self, run: Run, machine: Machine, records: list[Any]) -> None:
        self.holds: dict[Key, tuple[Any, float]] = {}
        super().__init__(run, machine, records)

    def holder(self, key: Key) -> Any:
        """Return the holder of the key here; None without one."""
        who, until = self.holds.get(key, (None, 0.0))
        return who if until > self.machine.mono else None

    def hold(self, key: Key, who: Any, seconds: float) -> None:
        """Hold a key, or hold it longer."""
        self.holds[key] = (who, self.machine.mono + seconds)
        self.machine.after(seconds, self.wake)

    def find(self, key: int, request: Take) -> bool:
        chosen = tuple(islice((one for one in self.messages if self.holder(one) is None), request.most))
        if chosen:
            self.ask_holds(key, request, chosen)
        return bool(chosen)

    def ask_holds(self, key: int, request: Take, chosen: tuple[Key, ...]) -> None:
        """Ask all replicas to hold these, the oldest that are not held here."""
        raise NotImplementedError

    def on_tombs(self, keys: Sequence[Key]) -> None:
        for key in keys:
            self.holds.pop(key, None)

    on_free = on_tombs


class QueueProducer(Producer):
    """Publishes through any node."""

    def request(self, batch: Batch, items: tuple[tuple[Key, bytes], ...]) -> Any:
        return Store(items)


class QueueConsumer(Consumer):
    """Takes from any node, and settles through any."""

    def take(self, most: int, then: Callable[[Sequence[Taken]], None]) -> None:
        node = self.choose()
        sent_at = self.clock.mono(self.world.time)

        def heard(answer: Any, _: Any) -> None:
            if isinstance(answer, Took):
                self.on_took(node, answer, then)
            else:
                then(())

        request: Any = Take(most, self.options.hold_times[0], sent_at)
        self.ask(node, request, WAIT_S + 2.0, heard)

    def choose(self) -> str:
        """Return the node to ask for messages."""
        return self.node()

    def on_took(self, node: str, answer: Took, then: Callable[[Sequence[Taken]], None]) -> None:
        """Pass on the messages of an answer, with their deadline by our own clock."""
        until = self.clock.true_time(answer.sent_at + DEADLINE_SHARE * self.options.hold_times[0])
        then([Taken(key, value, until, answer.owner, node) for key, value in answer.items])

    def conclude(
        self, kind: str, items: Sequence[Taken], node: str, op: int, then: Callable[[Sequence[str]], None]
    ) -> None:
        keys = tuple(item.key for item in items)
        request: Any = Free(keys) if kind == "reject" else Tombs(keys, kind == "dead_letter")
        done = "acked_unproven" if kind == "ack" else "ok"

        def heard(answer: Any, _: Any) -> None:
            then([done if answer is True else "unknown"] * len(items))

        self.ask(node, request, self.timeout, heard, op)
