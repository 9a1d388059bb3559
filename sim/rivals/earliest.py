"""Approach A of the design note: holds that prefer the earliest request. The text:

    Request id R is generated. Timestamp T is saved. P1 finds key K available to read. P1 requests a HOLD on K for R,T
    from P1,P2,P3. For each replica: If no HOLD on K exists: grant HOLD R,T, reply OK. If HOLD Rh,Th exists and (R,T)
    < (Rh,Th): replace HOLD Rh,Th with HOLD R,T, reply OK. If HOLD Rh,Th exists and (R,T) < (Rh,Th): reply NOK. When
    P1 has received 2 replies: If OK,OK: return K to C. If any NOK: return nothing. Consumer C then requests the
    payload for K in a separate request.

The second condition stands there twice: the last means "later". Compared is T, the time of day at P1, then R. With
more than three replicas "2 replies" are a majority. That holds end after their time, and what ends a message, the
note says for approach C alone; it is done alike here. A key is available if it has neither a tombstone nor a hold
that is not over: else all consumers would ask for the one oldest key until it is acked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from sim.rivals.harness import Run
from sim.rivals.replica import HoldingReplica, QueueConsumer, QueueProducer, Replies, Take, Took
from sim.rivals.workload import Key, Taken

Stamp = tuple[int, str]
"""T and R: the earlier one is preferred."""


class Hold(NamedTuple):
    """HOLD these keys for a request."""

    keys: tuple[Key, ...]
    stamp: Stamp
    seconds: float


class Payload(NamedTuple):
    """A consumer wants the payload of its keys."""

    keys: tuple[Key, ...]


class EarliestReplica(HoldingReplica):
    """Keys are held for a request: `Stamp`."""

    def ask_holds(self, key: int, request: Take, chosen: tuple[Key, ...]) -> None:
        owner = self.run.books.next_owner(self.name)
        self.ask_all(
            Hold(chosen, (self.machine.wall_ms, owner), request.hold),
            lambda replies: self.decide(key, request, chosen, owner, replies),
            self.is_answered,
        )

    def decide(self, client: int, request: Take, keys: tuple[Key, ...], owner: str, replies: Replies) -> None:
        """Decide once the first replies of a majority are in."""
        won = [
            key
            for index, key in enumerate(keys)
            if self.is_answered(replies) and all(verdicts[index] for verdicts in replies.values())
        ]
        self.run.books.lost_rounds += len(keys) - len(won)
        self.give_out(client, request, tuple((key, b"") for key in won), owner)

    def serve_hold(self, request: Hold, answer: Callable[[Any], None]) -> None:
        verdicts: list[bool] = []
        for key in request.keys:
            holder = self.holder(key)
            granted = key not in self.tombs and (holder is None or request.stamp < holder)
            if granted:
                self.hold(key, request.stamp, request.seconds)
            verdicts.append(granted)
        answer(tuple(verdicts))

    def on_request(self, key: int, request: Any) -> None:
        if isinstance(request, Payload):
            self.machine.reply(key, tuple((one, self.messages.get(one)) for one in request.keys))
        else:
            super().on_request(key, request)


class EarliestConsumer(QueueConsumer):
    """Asks for the payload of the keys that it got, at the same node."""

    def on_took(self, node: str, answer: Took, then: Callable[[Sequence[Taken]], None]) -> None:
        if not answer.items:
            then(())
            return

        def heard(found: Any, _: Any) -> None:
            items = found if isinstance(found, tuple) else ()
            super(EarliestConsumer, self).on_took(
                node,
                answer._replace(items=tuple((key, value) for key, value in items if value is not None)),
                then,
            )

        request: Any = Payload(tuple(key for key, _ in answer.items))
        self.ask(node, request, self.timeout, heard)


def build(run: Run) -> None:
    """Fill a run."""
    run.add_machines(lambda machine, records: EarliestReplica(run, machine, records))
    run.add_clients(QueueProducer, EarliestConsumer)
