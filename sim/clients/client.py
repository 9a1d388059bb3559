"""Behaviour of every client: it asks nodes, waits, retries, and is away for a while.

Clients do as the client library does at its best and its worst: they retry the same batch or receipts
through other nodes when an outcome is unknown, never hand over a message whose deadline has passed, and
also pause, overrun their holds, vanish, and try old receipts again. Every request and its outcome goes
into the history. Once the cluster is healed they all behave.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

from quorumq.core import messages as m
from quorumq.core.values.errors import Code
from quorumq.core.values.types import Batch
from quorumq.history import spans_value
from sim.clients.surroundings import Surroundings
from sim.world import EPOCH_MS, Clock, Refusal

Answer = m.ClientReply | Refusal | None
NOTHING_DONE = (
    Code.NOT_STORED,
    Code.USAGE,
    Code.NOT_FOUND,
    Code.CONFLICT,
    Code.SESSION_CLOSED,
    Code.STALE_GENERATION,
    Code.STORAGE_FULL,
    Code.TOO_FEW_REPLICAS,
    Code.TOO_LARGE,
)
"""Errors that say that nothing was done."""


def nothing_done(answer: Answer) -> bool:
    """Return True if an answer says that nothing was done, so that the request is over.

    One whose topic was deleted meanwhile may have been carried out before (protocol.md, section 6).
    """
    if isinstance(answer, m.Failed):
        return answer.code in NOTHING_DONE and not refused_as_deleted(answer)
    return isinstance(answer, Refusal)


def refuses(answer: Answer) -> bool:
    """Return True if an answer says of something that was asked for that it was not done."""
    if isinstance(answer, m.SettleReply):
        return any(told_by(verdict)[0] == "fail" for verdict in answer.verdicts)
    return nothing_done(answer)


def outcome_of(answer: Answer, done: type) -> str:
    """Return ``ok`` if the answer is of that type, ``fail`` if nothing was done, else ``unknown``."""
    return "ok" if isinstance(answer, done) else "fail" if nothing_done(answer) else "unknown"


def refused_as_deleted(answer: Answer) -> bool:
    """Return True if an answer says that the topic was deleted."""
    if not isinstance(answer, m.Failed) or answer.code != Code.NOT_FOUND:
        return False
    packed = "was its topic deleted long ago?" in answer.detail  # the node finds it by its name alone
    return packed or (answer.detail.startswith("topic ") and "was deleted" in answer.detail)


OUTCOMES = (
    "ok",
    "acked",
    "acked_after_expiry",
    "acked_unproven",
    Code.HOLD_LOST,
    Code.ALREADY_SETTLED,
    Code.STALE_GENERATION,
)


def told_by(verdict: m.Verdict) -> tuple[str, dict[str, Any]]:
    """Return the outcome that a verdict gives a line of the history, and its other fields."""
    # One that is not found may have been deleted meanwhile.
    if verdict.outcome in (Code.OUTCOME_UNKNOWN, Code.NOT_FOUND):
        return "unknown", {}
    return (verdict.outcome, {}) if verdict.outcome in OUTCOMES else ("fail", {"detail": verdict.outcome})


class Client:
    """Something outside the cluster that asks nodes; it does not run until ``paused_until``, a true time."""

    def __init__(self, around: Surroundings, name: str) -> None:
        self.around = around
        self.topics = around.topics
        self.world = around.world
        self.options = around.options
        self.name = name
        self.who = f"client:{name}"
        self.rng: random.Random = self.world.stream(f"client/{name}")
        self.clock = Clock(self.rng, self.options.clock_rate, 0.0)
        off = self.options.wall_offset
        self.wall_offset_ms = int(self.world.stream(f"wall/{name}").uniform(-off, off) * 1000)
        self.paused_until = 0.0
        self.ops = 0
        self.pending: dict[int, tuple[Callable[[Answer, Any], None], str]] = {}
        self.copies: dict[int, int] = {}  # number of arrived copies of each request that waits

    def begin(self, _: object = None, __: object = None) -> None:
        """Start the client."""
        raise NotImplementedError

    @property
    def wall_ms(self) -> int:
        """Return the time of day by this client's clock, in milliseconds since 1970."""
        return EPOCH_MS + int(self.world.time * 1000) + self.wall_offset_ms

    def node(self, *not_these: str) -> str:
        """Return a node to ask, another than ``not_these`` if there is one."""
        others = (*not_these, self.options.silent)
        names = [name for name in self.options.node_names if name not in others]
        return self.rng.choice(names or not_these)

    def ask(
        self,
        node: str,
        request: m.ClientRequest,
        timeout: float,
        then: Callable[[Answer, Any], None],
        op: int = 0,
    ) -> int:
        """Ask ``node``; ``then(answer, bodies)`` is called once: with None when the outcome is unknown."""
        if not op:
            self.ops += 1
            op = self.ops
        self.pending[op] = (then, node)
        self.copies[op] = 0
        self.world.transmit(self.name, node, partial(self.arrives, node), (self, op), request)
        self.world.after(timeout, self.on_timeout, op)
        return op

    def arrives(self, node: str, caller: tuple[Client, int], request: m.ClientRequest) -> None:
        """Deliver a copy of a request to its node. After an answer that refuses something, no copy arrives."""
        op = caller[1]
        if op not in self.copies:
            return
        self.copies[op] += 1
        self.around.machines[node].on_request(caller, request)

    def is_over(self, op: int) -> bool:
        """Return True if an answered request arrived once; no other copy of it arrives from now on.

        A copy that arrived before may be carried out after the answer. It matters if others may have read what it
        undoes before that is confirmed.
        """
        return self.copies.pop(op, 0) <= 1

    def next_op(self) -> int:
        """Return a number for a request, so that its history line can be written before it is sent."""
        self.ops += 1
        return self.ops

    def on_timeout(self, op: int, _: object = None) -> None:
        """Hang up when there is no answer in time; the node may learn of it."""
        if op not in self.pending:
            return
        if self.paused_until > self.world.time:
            self.world.at(self.paused_until, self.on_timeout, op)
            return
        self.give_up(op)(None, None)

    def give_up(self, op: int) -> Callable[[Answer, Any], None]:
        """Wait no longer for the answer to a request, which the node may hear; returns its callback."""
        then, node = self.pending.pop(op)
        self.world.transmit(self.name, node, self.around.machines[node].on_gone, self.name, op)
        return then

    def on_reply(self, op: int, answer: tuple[Answer, Any]) -> None:
        """Take in an answer."""
        if op not in self.pending:
            return
        if self.paused_until > self.world.time:
            self.world.at(self.paused_until, self.on_reply, op, answer)
            return
        self.world.messages += 1
        then, _ = self.pending.pop(op)
        reply = answer[0]
        if refuses(reply) and self.copies.pop(op) > 1:  # the answer speaks of one of them
            then(None, None)
            return
        if isinstance(reply, m.TopicReply):
            self.topics.registers.seen(self.who, reply.topic)
        elif isinstance(reply, m.MetadataReply):
            for topic in reply.topics:
                self.topics.registers.seen(self.who, topic)
        then(*answer)

    def later(self, seconds: float, action: Callable[..., None], *args: Any) -> None:
        """Do something in ``seconds``, or when the client runs again."""
        self.world.after(seconds, self._later, action, args)

    def _later(self, action: Callable[..., None], args: tuple[Any, ...]) -> None:
        if self.paused_until > self.world.time:
            self.world.at(self.paused_until, self._later, action, args)
            return
        action(*args)

    def send_batch(
        self, batch: Batch, node: str, age_ms: int, then: Callable[[Answer, Any], None], **more: float
    ) -> None:
        """Try once to publish, and write its lines; ``more`` are fields of its ``invoke``."""
        header = batch.header
        op = self.next_op()
        fields: dict[str, Any] = {
            **self.topics.location(header.partition),
            "spans": spans_value(header.spans),
            "op": op,
            "via": node,
        }
        for section in header.spans:
            self.topics.published_to[section.producer_id] = fields["topic"]
        crcs = "".join([f"{header.crc_of(i):08x}" for i in range(header.size)])
        times = {"delay": header.delay_ms / 1000, "ttl": header.ttl_ms / 1000}
        times = {name: seconds for name, seconds in times.items() if seconds}
        made = header.published_ms
        self.world.note(
            self.who, "publish", **fields, **times, **more, outcome="invoke", crcs=crcs, published_ms=made
        )

        def on_answer(answer: Answer, bodies: Any) -> None:
            outcome, why = outcome_of(answer, m.PublishReply), {}
            if outcome == "fail":
                why = {"detail": answer.code if isinstance(answer, m.Failed) else "refused"}
            self.world.note(self.who, "publish", **fields, outcome=outcome, **why)
            then(answer, bodies)

        self.ask(node, m.Publish(batch, age_ms), self.timeout, on_answer, op)

    @property
    def timeout(self) -> float:
        """Return the seconds to wait for a quorum round's answer."""
        return self.options.request_timeout + 0.5
