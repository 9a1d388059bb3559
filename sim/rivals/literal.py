"""Approach C of the design note, to the letter. The text:

    Oldest key K on P1 with no holds or tombstones is chosen. HOLD K on P1. P1 sends HOLD request on K to P2, P3. For
    each replica: If tombstone for K exists: return TOMB, K. If no HOLD on K exists: HOLD K for P1, return OK, K. If
    HOLD on K for P1 exists: update HOLD timeout, return OK, K. If HOLD on K for Pn where n != 1 exists: return NOK,
    K. When P1 has received replies or encountered 99p timeout: If any TOMB, K received: write tombstone for K
    locally, return nothing. If quorum of OK, K achieved: read value V for K, return K, V. Else: remove HOLD for K on
    P1; (optional step:) send requests to remove HOLD K for P1 to all nodes which replied OK; return nothing. ACK:
    write tombstones with QUORUM write. REJECT: requeue: remove all holds for K; or deadletter: write K to deadletter
    queue, then write tombstones. HOLDs kept in memory.

Each key is decided by itself; the keys that one client asked for share their messages. "Deadletter queue, then
tombstones" is one write here: a crash in between is none of the claims.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from sim.rivals.harness import Run
from sim.rivals.machine import Machine
from sim.rivals.replica import HoldingReplica, QueueConsumer, QueueProducer, Replies, Take, Tombs
from sim.rivals.workload import Key

REPLIES_KEPT = 200
"""Number of reply times that the 99th percentile is taken from."""

REPLIES_LEAST = 20
"""With fewer known, a round waits for the request timeout."""


class Hold(NamedTuple):
    """HOLD these keys for a node."""

    keys: tuple[Key, ...]
    node: str
    seconds: float


class Drop(NamedTuple):
    """The optional step: remove a node's HOLDs."""

    keys: tuple[Key, ...]
    node: str


class LiteralReplica(HoldingReplica):
    """Keys are held for a node."""

    def __init__(self, run: Run, machine: Machine, records: list[Any]) -> None:
        self.times: list[float] = []
        super().__init__(run, machine, records)

    # ------------------------------------------------------------------ the coordinator

    def ask_holds(self, key: int, request: Take, chosen: tuple[Key, ...]) -> None:
        self.ask_all(
            Hold(chosen, self.name, request.hold),
            lambda replies: self.decide(key, request, chosen, replies),
            enough=lambda replies: False,  # all of them, or the timeout
            timeout=self.percentile(),
        )

    def heard(self, number: int, who: str, answer: Any) -> None:
        round_ = self.rounds.get(number)
        if round_ is not None and who != self.name and isinstance(answer, tuple):
            self.times = [*self.times[1 - REPLIES_KEPT :], self.machine.mono - round_.at]
        super().heard(number, who, answer)

    def percentile(self) -> float:
        """Return the 99th percentile of the times that replies took."""
        if len(self.times) < REPLIES_LEAST:
            return self.options.request_timeout
        return sorted(self.times)[int(0.99 * (len(self.times) - 1))]

    def decide(self, client: int, request: Take, keys: tuple[Key, ...], replies: Replies) -> None:
        """Decide once all have answered, or it is too late."""
        won: list[tuple[Key, bytes]] = []
        buried: list[Key] = []
        lost: dict[str, list[Key]] = {}
        for index, key in enumerate(keys):
            said = {who: verdicts[index] for who, verdicts in replies.items()}
            if "TOMB" in said.values():
                buried.append(key)
            elif sum(verdict == "OK" for verdict in said.values()) >= self.majority and key in self.messages:
                won.append((key, self.messages[key]))
            else:
                self.run.books.lost_rounds += 1
                self.holds.pop(key, None)
                for who, verdict in said.items():
                    if verdict == "OK" and who != self.name:
                        lost.setdefault(who, []).append(key)
        if buried:
            self.serve(Tombs(tuple(buried)), lambda answer: None)
        if self.run.knobs.release:
            for who, released in lost.items():
                self.tell(who, Drop(tuple(released), self.name))
        self.give_out(client, request, tuple(won), self.run.books.next_owner(self.name))
        if lost:
            self.wake()

    # ------------------------------------------------------------------ the replica

    def serve_hold(self, request: Hold, answer: Callable[[Any], None]) -> None:
        verdicts: list[str] = []
        for key in request.keys:
            holder = self.holder(key)
            if key in self.tombs:
                verdicts.append("TOMB")
            elif holder in (None, request.node):
                self.hold(key, request.node, request.seconds)
                verdicts.append("OK")
            else:
                verdicts.append("NOK")
        answer(tuple(verdicts))

    def serve_drop(self, request: Drop, answer: Callable[[Any], None]) -> None:
        for key in request.keys:
            if self.holder(key) == request.node:
                del self.holds[key]
        self.wake()


def build(run: Run) -> None:
    """Fill a run."""
    run.add_machines(lambda machine, records: LiteralReplica(run, machine, records))
    run.add_clients(QueueProducer, QueueConsumer)
