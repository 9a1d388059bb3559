"""Queue that makes few ACK requests of many acks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

import trio

from quorumq.client.base.message import Outcome, Settleable, again
from quorumq.client.consume.settle import Failures, count_of, most_retryable, note_failures, settle
from quorumq.client.transport.nodes import Nodes, Watch, left_of
from quorumq.core import messages as m
from quorumq.core.values.errors import (
    AlreadySettled,
    NotStored,
    OutcomeUnknown,
    QuorumqError,
    StaleGeneration,
    UsageError,
    error_from,
)

ACK_LINGER_S: Final = 0.005
ACKS_IN_FLIGHT_MAX: Final = 8
ACK_GRACE_S: Final = 0.1
"""Seconds that an `ack` waits beyond its timeout, because its request's error says more: the nodes that were tried."""


class Call:
    """One `ack` that waits; why it failed, once its event is set or its time is over."""

    __slots__ = ("end", "error", "event", "over", "tickets", "timeout")

    def __init__(self, tickets: Sequence[Settleable], timeout: float) -> None:
        self.tickets = tickets
        self.timeout = timeout
        self.end = trio.current_time() + timeout
        self.error: QuorumqError | None = None
        self.over = False  # its time is over and its caller is gone
        self.event = trio.Event()

    def give_up(self, *, sent: bool) -> None:
        """Fail because its time is over before that of others that it shares a request with, or waits behind."""
        description = f"ack of {count_of(self.tickets)} was not answered within {self.timeout:.3g} s"
        if sent:
            self.error = OutcomeUnknown(
                f"{description}; others in the same request wait for longer. It may have happened: repeat it"
            )
        else:
            self.error = NotStored(f"{description}: it waited for other acks, and nothing was sent")
        self.over = True
        note_failures(self.tickets, dict.fromkeys(self.tickets, self.error))

    def finish(self, failures: Failures) -> None:
        """End the call: its tickets have their verdicts, or the client was closed while it asked for them."""
        for ticket in self.tickets:
            if ticket.outcome is None and ticket not in failures:
                failures[ticket] = OutcomeUnknown(
                    "the client was closed before the answer came: it may be acked"
                )
        if not self.over:
            if failures:
                self.error = most_retryable(failures[ticket] for ticket in self.tickets if ticket in failures)
            note_failures(self.tickets, failures)
        self.event.set()


@dataclass(eq=False)
class AckQueue:
    """Queue that makes one ACK request of many acks, without making the first one wait.

    If nothing is under way, an ack is sent at once. Acks made while a request is under way are sent together when that
    is answered, or after a few milliseconds.
    """

    nodes: Nodes
    watch: Callable[[], Watch | None] = lambda: None  # makes an observer of one request's attempts
    _queue: deque[Call] = field(default_factory=deque)
    _flying: int = 0
    _scheduled: bool = False
    _lingering: bool = False

    async def ack(self, tickets: Sequence[Settleable], timeout: float) -> None:
        """Ack ``tickets``; their ``outcome`` is set, or the first failure raised.

        Cancelled while it waits, queued acks are still sent.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        self.nodes.check_open()
        for ticket in tickets:
            ticket.failure = None
        call = Call(tickets, timeout)
        self._queue.append(call)
        self._kick()
        with trio.move_on_at(call.end + ACK_GRACE_S):
            await call.event.wait()
        if not call.event.is_set():
            sent = call not in self._queue
            if not sent:
                self._queue.remove(call)
            call.give_up(sent=sent)
        if call.error is not None:
            raise again(call.error)

    def _kick(self) -> None:
        if not self._queue or self._scheduled:
            return
        if self._flying == 0:
            self._scheduled = True
            self.nodes.spawn(self._send)
        elif not self._lingering and self._flying < ACKS_IN_FLIGHT_MAX:
            self._lingering = True
            self.nodes.spawn(self._linger)

    async def _linger(self) -> None:
        try:
            await trio.sleep(ACK_LINGER_S)
        finally:  # also if the client is closed: queued acks have to hear of it
            self._lingering = False
            if self._queue and not self._scheduled:
                self._scheduled = True
                self.nodes.spawn(self._send)

    async def _send(self) -> None:
        """Send everything that is queued as one request (more only if the limits demand it)."""
        self._scheduled = False
        calls = list(self._queue)
        self._queue.clear()
        if not calls:
            return
        self._flying += 1
        failures: Failures = {}
        try:
            await self._settle(calls, failures)
        finally:
            self._flying -= 1
            for call in calls:
                call.finish(failures)
            self._kick()

    async def _settle(self, calls: list[Call], failures: Failures) -> None:
        tickets = list(chain.from_iterable(call.tickets for call in calls))
        await self._ask(tickets, left_of(max(call.end for call in calls)), failures)
        # A receipt that is refused refuses the request: one caller's mistake must not become another's.
        if len(calls) > 1 and failures:
            refused = [call for call in calls if any(was_refused(failures.get(one)) for one in call.tickets)]
            for call in refused:
                for ticket in call.tickets:
                    failures.pop(ticket, None)
                await self._ask(call.tickets, left_of(call.end), failures)

    async def _ask(self, tickets: Sequence[Settleable], timeout: float, failures: Failures) -> None:
        await settle(
            self.nodes,
            tickets,
            m.AckRequest,
            on_acked,
            failures,
            action=f"ack of {count_of(tickets)}",
            timeout=timeout,
            watch=self.watch(),
        )


def was_refused(failure: QuorumqError | None) -> bool:
    """Return True if the failure says that a request was refused as a whole."""
    return isinstance(failure, UsageError) and not isinstance(failure, AlreadySettled)


_OUTCOMES: Final = {
    outcome.value: outcome for outcome in (Outcome.ACKED, Outcome.ACKED_AFTER_EXPIRY, Outcome.ACKED_UNPROVEN)
} | {StaleGeneration.code: Outcome.REWOUND}


def on_acked(tickets: Sequence[Settleable], verdict: m.Verdict, reply: m.SettleReply) -> Failures:
    outcome = _OUTCOMES.get(verdict.outcome)
    if outcome is None:
        return {ticket: ack_refused(ticket, verdict) for ticket in tickets}
    for ticket in tickets:
        ticket.outcome = outcome
    return {}


def ack_refused(ticket: Settleable, verdict: m.Verdict) -> QuorumqError:
    if verdict.outcome == AlreadySettled.code:
        where = (
            f"{ticket.delivery.receipt.span.producer_id}[{ticket.seq}] of {ticket.delivery.receipt.group!r}"
        )
        return AlreadySettled(
            f"{where} is no dead letter any more: {verdict.detail or 'it was redriven or purged'}"
        )
    return error_from(verdict.outcome, verdict.detail or f"the ack was refused: {verdict.outcome}")
