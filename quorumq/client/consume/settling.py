"""The calls of a client that settle messages: ack, reject, dead-letter, extend."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Final

from quorumq.client.base.context import Calls, Context
from quorumq.client.base.dead_letters import make_death
from quorumq.client.base.message import (
    Delivery,
    Message,
    Outcome,
    Settleable,
    deadline_of,
    settleables_of,
)
from quorumq.client.base.names import is_dead
from quorumq.client.base.times import Duration, number_of, seconds_of
from quorumq.client.consume.acks import AckQueue
from quorumq.client.consume.settle import Failures, count_of, failures_of, most_retryable, settle
from quorumq.client.transport.nodes import left_of
from quorumq.core import messages as m
from quorumq.core.values.errors import (
    AlreadySettled,
    BadReceipt,
    Code,
    QuorumqError,
    StaleGeneration,
    UsageError,
    error_from,
)
from quorumq.core.values.limits import DEATHS_BYTES_MAX, DELAY_MAX_S, HOLD_TIME_DEFAULT_S, TOPIC_BACKOFF_S
from quorumq.core.values.types import Death
from quorumq.wire.receipts import read_receipt
from quorumq.wire.values import SignedNamed


class SettleCalls(Calls):
    """Calls that settle messages from any source: the `Settler` of all that a client delivers."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.clock = context.clock
        self._acks = AckQueue(context.nodes, lambda: context.watch("ack"))

    def ticket(self, receipt: SignedNamed) -> Settleable:
        """Return a receipt from elsewhere (`receipt_from_text`), for `ack`, `reject`, `dead_letter` and `extend`.

        Raises:
            BadReceipt: it does not name one message.
        """
        if not isinstance(receipt, SignedNamed):
            raise BadReceipt(
                f"{receipt!r} is no receipt: give Message.receipt, or receipt_from_text of its text"
            )
        parsed = read_receipt(receipt.signed)
        count = sum(span.size for span in receipt.spans)
        if count != 1:
            raise BadReceipt(f"the receipt names {count} messages: give that of one, Message.receipt")
        delivery = Delivery(
            topic="",
            signed=receipt.signed,
            receipt=parsed,
            attempt=0,
            published_ms=0,
            delivered_ms=0,
            hold_time=HOLD_TIME_DEFAULT_S,
            settler=self,
            holder=None,
        )
        return Settleable(delivery, receipt.spans[0].start)

    async def ack(
        self, messages: Iterable[Settleable] | Settleable, *, timeout: float | None = None
    ) -> list[Outcome]:
        """Ack many messages like `Message.ack`, of any deliveries, topics and groups: the verdict on each, in order.

        Raises:
            the errors of that method, if some failed: ``outcome`` and ``failure`` of each say which.
            BadReceipt: some were refused.
        """
        messages = settleables_of(messages)
        if not messages:
            return []
        try:
            await self._acks.ack(messages, self.context.time(timeout))
        finally:
            note_settled(messages)
        return list(map(attrgetter("outcome"), messages))

    async def reject(
        self,
        messages: Iterable[Settleable] | Settleable,
        *,
        delay: Duration | None = None,
        interrupted: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Reject many messages at once, like `Message.reject`.

        Raises:
            the errors of that method, if some failed: ``failure`` of each says which.
        """
        wait = TOPIC_BACKOFF_S if delay is None else seconds_of("delay", delay, DELAY_MAX_S)
        if interrupted:
            if delay is not None:
                raise UsageError(
                    f"delay is {delay!r}, and what is interrupted is available at once: give one of the two"
                )
            wait = 0.0
        given = settleables_of(messages)
        await self._reject(given, wait, None, Outcome.REQUEUED, timeout, interrupted=interrupted)

    async def dead_letter(
        self,
        messages: Iterable[Settleable] | Settleable,
        error: BaseException | None = None,
        *,
        reason: str = "",
        timeout: float | None = None,
    ) -> None:
        """Make many messages dead letters, like `Message.dead_letter`; ``error`` is their handler's exception.

        Raises:
            the errors of that method, if some failed: ``failure`` of each says which.
            UsageError: some are dead letters already; nothing was sent.
        """
        if not isinstance(error, BaseException | None) or not isinstance(reason, str):
            raise UsageError(f"error is {error!r}, reason {reason!r}: give an exception, or words as reason=")
        messages = settleables_of(messages)
        refuse_dead(messages)
        # One request has one death, and a death names its own delivery.
        by_death: dict[Death, list[Settleable]] = {}
        for message in messages:
            by_death.setdefault(self._death(message, error, reason), []).append(message)
        failures: list[QuorumqError] = []
        end = self.context.end(timeout)
        for death, same_death in by_death.items():
            try:
                await self._reject(same_death, 0.0, death, Outcome.DEAD_LETTERED, left_of(end))
            except QuorumqError as exc:
                failures.append(exc)
        failure = most_retryable(failures)
        if failure is not None:
            raise failure

    def _death(self, message: Settleable, error: BaseException | None, reason: str) -> Death:
        delivery = message.delivery
        holder = delivery.holder
        return make_death(
            error,
            reason=reason,
            attempt=delivery.attempt,
            interruptions=delivery.interruptions,
            published_ms=delivery.published_ms,
            delivered_ms=delivery.delivered_ms,
            consumer=holder.name if holder is not None else self.context.host,
            consumer_version=holder.version if holder is not None else "",
            host=self.context.host,
        )

    async def _reject(
        self,
        messages: Sequence[Settleable],
        delay: float,
        death: Death | None,
        outcome: Outcome,
        timeout: float | None,
        *,
        interrupted: bool = False,
    ) -> None:
        def on_final(tickets: Sequence[Settleable], verdict: m.Verdict, reply: m.SettleReply) -> Failures:
            if verdict.outcome in ("ok", StaleGeneration.code):
                for ticket in tickets:
                    ticket.outcome = outcome if verdict.outcome == "ok" else Outcome.REWOUND
                return {}
            # An outcome that a minority applied spreads, and so does an earlier attempt whose answer was lost.
            done = "it is not certain whether it was " + ("dead-lettered" if death else "rejected")
            return {ticket: refusal(ticket, verdict, done) for ticket in tickets}

        self.context.nodes.check_open()
        action = f"{'dead-letter' if death else 'reject'} of {count_of(messages)}"
        if death is not None:
            watch = self.context.watch("dead_letter", reason=death.reason)
        else:
            more: dict[str, object] = {} if delay == TOPIC_BACKOFF_S else {"delay": delay}
            watch = self.context.watch("reject", **more, **({"interrupted": True} if interrupted else {}))
        try:
            with failures_of(messages) as failures:
                await settle(
                    self.context.nodes,
                    messages,
                    lambda items: m.RejectRequest(items, delay, death, interrupted),
                    on_final,
                    failures,
                    action=action,
                    timeout=self.context.time(timeout),
                    watch=watch,
                    most=0 if death is None else DEATHS_BYTES_MAX // death.text_bytes,
                    waits_for_space=False,  # the end of the hold does as much, and only acks make space
                )
        finally:
            note_settled(messages)

    async def extend(
        self,
        messages: Iterable[Settleable] | Settleable,
        hold_time: Duration | None = None,
        *,
        timeout: float | None = None,
    ) -> None:
        """Extend the holds of many messages at once, like `Message.extend`: for as long as a week, as claims.

        Raises:
            HoldLost: some holds are over, and nothing revives them; ``failure`` of each says which.
            OutcomeUnknown, NotStored: some were not confirmed: their old deadlines stand.
        """
        messages = settleables_of(messages)
        seconds = None if hold_time is None else number_of("hold_time", hold_time)
        self.context.nodes.check_open()
        with failures_of(messages) as failures:
            await self.extend_quietly(messages, seconds, failures, timeout=timeout)

    def _kind_of(self, seconds: float) -> str:
        """Return the kind of a line in the history: an extension beyond any hold is a claim."""
        most = self.context.nodes.hold_time_max
        return "claim" if most is not None and seconds > most else "extend"

    async def extend_quietly(
        self,
        messages: Sequence[Settleable],
        hold_time: float | None,
        failures: Failures,
        *,
        timeout: float | None = None,
    ) -> None:
        """Extend holds for no caller: errors are in ``failures``, and neither raised nor left on the messages."""

        def on_final(tickets: Sequence[Settleable], verdict: m.Verdict, reply: m.SettleReply) -> Failures:
            if verdict.outcome != "ok":
                return {ticket: refusal(ticket, verdict, "it was not extended") for ticket in tickets}
            until = deadline_of(reply.sent_at, seconds)
            for ticket in tickets:
                if isinstance(ticket, Message):
                    ticket.deadline = max(ticket.deadline, until)
            return {}

        end = self.context.end(timeout)
        by_time: dict[float, list[Settleable]] = {}
        for message in messages:
            by_time.setdefault(message.delivery.hold_time if hold_time is None else hold_time, []).append(
                message
            )
        for seconds, same_hold_time in by_time.items():
            await settle(
                self.context.nodes,
                same_hold_time,
                lambda items, seconds=seconds: m.ExtendRequest(items, seconds, self.context.clock()),  # type: ignore[misc]
                on_final,
                failures,
                action=f"extend of {count_of(same_hold_time)}",
                timeout=left_of(end),
                watch=self.context.watch(self._kind_of(seconds), hold_time=seconds),
            )


ACKS: Final = (Outcome.ACKED, Outcome.ACKED_AFTER_EXPIRY, Outcome.ACKED_UNPROVEN)
ENDINGS: Final = {Outcome.REQUEUED: "rejected", Outcome.DEAD_LETTERED: "made a dead letter"}


def refuse_dead(messages: Iterable[Settleable]) -> None:
    """Raise UsageError if one of the messages is a dead letter."""
    for message in messages:
        receipt = message.delivery.receipt
        if is_dead(receipt.group):
            raise UsageError(
                f"{receipt.span.producer_id}[{message.seq}] of {receipt.group!r} is a dead letter already: "
                "ack it to purge it, or reject it to have it wait in the dead-letter queue"
            )


def refusal(ticket: Settleable, verdict: m.Verdict, done: str) -> QuorumqError:
    """Return the error of a reject or an extension; ``done`` is the certain state of a message whose hold is over."""
    detail = verdict.detail
    if verdict.outcome == Code.HOLD_LOST and not detail:
        receipt = ticket.delivery.receipt
        named = repr(ticket.delivery.topic) if ticket.delivery.topic else f"group {receipt.group!r}"
        where = f"{receipt.span.producer_id}[{ticket.seq}] of {named}"
        if ticket.outcome in ACKS:
            detail = f"{where} was acked before ({ticket.outcome.name}): that is final, and this did nothing"
        elif ticket.outcome in ENDINGS:
            detail = f"{where} was {ENDINGS[ticket.outcome]} before, which ended its hold: {done}"
        else:
            detail = f"the hold on {where} is over: {done}, and another delivery may have begun; stop working on it"
    return error_from(verdict.outcome, detail or verdict.outcome)


_holder: Final = attrgetter("delivery.holder")


def note_settled(messages: Sequence[Settleable]) -> None:
    """Have consumers note which of their messages have their verdicts."""
    for holder, same_holder in groupby(messages, key=_holder):
        if holder is not None:
            holder.settled(
                [
                    one
                    for one in same_holder
                    if one.outcome is not None or isinstance(one.failure, AlreadySettled)
                ]
            )
