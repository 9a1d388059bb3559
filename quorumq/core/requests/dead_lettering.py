"""Dead-lettering of messages that were won but may not be delivered any more."""

from __future__ import annotations

from quorumq.core.cluster.rounds import Round
from quorumq.core.messages import Fetch, Owned, PeerMessage, Reject
from quorumq.core.messages.effects import Effect
from quorumq.core.partition.attempts import Attempts
from quorumq.core.partition.replica import Replica
from quorumq.core.requests.context import Context
from quorumq.core.requests.coordinator import Coordinator
from quorumq.core.requests.holdround import HoldRound
from quorumq.core.values.printable import plural
from quorumq.core.values.types import Death, NodeId, Now, Span


class DeadLettering(Coordinator):
    """Rejects won messages without deliveries or time left to the dead letters, as their owner. No client waits.

    Messages without time left are dropped instead if the topic says so.

    If no majority applies it, the hold runs out and the next coordinator that wins the message tries again.
    """

    __slots__ = ("attempts", "reason", "request", "span", "won")

    def __init__(self, won: HoldRound, span: Span, attempts: Attempts, reason: str, request: Fetch) -> None:
        super().__init__(0)
        self.won = won
        self.span = span
        self.attempts = attempts
        self.reason = reason
        self.request = request

    def start(self, context: Context, now: Now) -> list[Effect]:
        replica = self.won.replica
        drops = self.reason == "expired" and replica.topic.on_expiry == "drop"
        effects: list[Effect] = []
        for part, n in self.won.redrives.within(self.span):
            if drops:
                effects += self._reject(context, replica, part, n, None, now)
                continue
            for chunk, slot in replica.batches.index.within(part):
                published_ms = replica.batches.stored[slot.number].header.published_ms
                effects += self._reject(
                    context, replica, chunk, n, self._death(context, n, published_ms, now), now
                )
        return effects

    def _death(self, context: Context, n: int, published_ms: int, now: Now) -> Death:
        ended = plural(self.attempts.ended, "delivery", "deliveries")
        message = f"{ended} ended without an ack"
        if self.reason == "expired":
            message = f"its time to live was over, after {ended}"
        return Death(
            ballot=self.won.owner.ballot,
            reason=self.reason,
            message=message,
            fingerprint=self.reason,
            attempts=self.attempts.ended,
            published_ms=published_ms,
            died_ms=now.wall_ms,
            node=context.state.me,
            redrives=n,
            interruptions=self.attempts.interruptions,
        )

    def _reject(
        self, context: Context, replica: Replica, span: Span, n: int, death: Death | None, now: Now
    ) -> list[Effect]:
        """Have every replica make a dead letter of the messages, or drop them if there is no death."""
        round_ = self.open_round(context, replica.members, now)
        reject = Reject(
            round_.number,
            self.won.partition,
            replica.epoch,
            self.request.group,
            self.won.generation,
            (Owned(span, self.won.owner, n),),
            0.0,
            death,
            drop=death is None,
        )
        return self.ask(context, round_, self.won.partition, reject, now)

    def on_answer(
        self, context: Context, round_: Round, sender: NodeId, bit: int, message: PeerMessage, now: Now
    ) -> list[Effect]:
        if round_.everyone:
            self.close_round(context, round_.number)
        return []

    def on_timeout(self, context: Context, number: int, now: Now) -> list[Effect]:
        self.close_round(context, number)
        return []
