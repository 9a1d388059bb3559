"""ACK, REJECT and EXTEND of many messages, through any node, until each has its verdict.

Receipts make this idempotent: the same receipts may be sent again, anywhere. A reply brings a verdict per span;
what is final is kept, and only what is unknown is asked again, at the next node. What a retry says of an ack is
the same as the first answer or weaker (docs/protocol.md, ACK), so the last word is the one to pass on.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, cast

import trio

from quorumq.client.message import Outcome, Ticket, again
from quorumq.client.nodes import Nodes, Watch, left_of
from quorumq.core import messages as m
from quorumq.core.errors import (
    AlreadyResolved,
    NotFound,
    NotStored,
    OutcomeUnknown,
    QuorumqError,
    StaleGeneration,
    TooFewReplicas,
    UsageError,
    error_from,
)
from quorumq.core.types import Span
from quorumq.wire.codec import sealed_items
from quorumq.wire.values import SealedNamed

SPANS_MAX: Final = 5_000
"""Spans in one request: well below the wire's limits, header bytes included."""

ACK_LINGER_S: Final = 0.005
ACKS_IN_FLIGHT_MAX: Final = 8
ACK_GRACE_S: Final = 0.1
"""How much longer than it was told an `ack` waits for its request, whose error says more: which nodes were tried."""

LATER: Final = frozenset({
    "outcome-unknown", "too-few-replicas", "not-stored", "wrong-epoch", "unknown-topic", "not-found", "storage-full",
})  # fmt: skip
"""Outcomes after which another node, or the same one later, may do better."""

Final_ = Callable[[Ticket, m.Verdict, m.Verdicts], QuorumqError | None]
Failures = dict[Ticket, QuorumqError]
"""Why tickets failed, of one operation: others may be under way for the same tickets."""


class Item:
    """One receipt of a request, with the tickets of it that are meant, by number."""

    __slots__ = ("sealed", "spans", "tickets")

    def __init__(self, sealed: bytes, tickets: list[Ticket]) -> None:
        self.sealed = sealed
        self.tickets = tickets
        self.spans = spans_of(tickets)


def items_of(tickets: Iterable[Ticket]) -> list[Item]:
    """The tickets by receipt, in order."""
    by_receipt: dict[bytes, list[Ticket]] = {}
    for ticket in tickets:
        by_receipt.setdefault(ticket.lot.sealed, []).append(ticket)
    for found in by_receipt.values():
        found.sort(key=_seq)
    return [Item(sealed, found) for sealed, found in by_receipt.items()]


def _seq(ticket: Ticket) -> int:
    return ticket.seq


def spans_of(tickets: Sequence[Ticket]) -> tuple[Span, ...]:
    """The spans that sorted tickets of one receipt cover; a message named twice is named once."""
    origin = tickets[0].lot.receipt.span.origin
    spans: list[Span] = []
    start = stop = tickets[0].seq
    for ticket in tickets:
        if ticket.seq > stop:
            spans.append(Span(origin, start, stop))
            start = ticket.seq
        stop = max(stop, ticket.seq + ticket.size)
    spans.append(Span(origin, start, stop))
    return tuple(spans)


def chunks(items: Iterable[Item]) -> list[list[Item]]:
    """The items in requests of at most `SPANS_MAX` spans."""
    found: list[list[Item]] = []
    room = 0
    for item in items:
        parts = [item]
        if len(item.spans) > SPANS_MAX:  # every span holds at least one ticket
            step = SPANS_MAX
            parts = [
                Item(item.sealed, item.tickets[at : at + step]) for at in range(0, len(item.tickets), step)
            ]
        for part in parts:
            if len(part.spans) > room:
                found.append([])
                room = SPANS_MAX
            found[-1].append(part)
            room -= len(part.spans)
    return found


def named(items: Iterable[Item]) -> tuple[m.Named, ...]:
    """The items as a request has them."""
    return sealed_items(SealedNamed(item.sealed, item.spans) for item in items)


class Settling:
    """One request's tickets on their way to a verdict each.

    Args:
        items: what to settle.
        on_final: told each final verdict, with the reply it came in; returns why the ticket failed, or None.
        failures: where failures are put.
    """

    __slots__ = ("failures", "items", "on_final")

    def __init__(self, items: list[Item], on_final: Final_, failures: Failures) -> None:
        self.items = items
        self.on_final = on_final
        self.failures = failures

    def take(self, reply: m.ClientReply) -> QuorumqError | None:
        """Pass on what is final; what is left to ask again, as an error, or None."""
        verdicts = cast("m.Verdicts", reply)
        parts: dict[int, list[m.Verdict]] = {}
        for verdict in verdicts.verdicts:
            parts.setdefault(verdict.item, []).append(verdict)
        left: list[Ticket] = []
        error: QuorumqError | None = None
        for index, item in enumerate(self.items):
            found = sorted(parts.get(index, ()), key=lambda verdict: verdict.span.start)
            starts = [verdict.span.start for verdict in found]
            for ticket in item.tickets:
                mine = found
                if len(found) > 1:
                    first = max(bisect_right(starts, ticket.seq) - 1, 0)
                    mine = found[first : bisect_right(starts, ticket.seq + ticket.size - 1)]
                judged = self._verdict(ticket, mine)
                if judged is not None and judged.outcome not in LATER:
                    failure = self.on_final(ticket, judged, verdicts)
                    if failure is not None:
                        self.failures[ticket] = failure
                    continue
                left.append(ticket)
                error = later(judged, error)
        self.items = items_of(left)
        return error

    @staticmethod
    def _verdict(ticket: Ticket, parts: list[m.Verdict]) -> m.Verdict | None:
        """The verdict on a ticket: of several parts, the one to ask again if any, else the weakest."""
        at = ticket.seq
        worst: m.Verdict | None = None
        for verdict in parts:
            if verdict.span.start > at or verdict.span.stop <= at:
                return None
            if worst is None or weakness(verdict.outcome) > weakness(worst.outcome):
                worst = verdict
            at = verdict.span.stop
            if at >= ticket.seq + ticket.size:
                return worst
        return None

    def fail(self, error: QuorumqError) -> None:
        """The time is over, or it was refused for good: say so on every ticket that is left."""
        for item in self.items:
            for ticket in item.tickets:
                self.failures[ticket] = error


def later(verdict: m.Verdict | None, before: QuorumqError | None) -> QuorumqError:
    """The error that has the next node asked; what may have happened outweighs what is merely not known there."""
    if verdict is None:
        return before or OutcomeUnknown("the node gave no verdict on some of it")
    if verdict.outcome == NotFound.code:
        return before or NotFound(verdict.detail)
    error = error_from(verdict.outcome, verdict.detail)
    return error if isinstance(error, TooFewReplicas) else OutcomeUnknown(str(error))


_WEAKNESS: Final = {"acked": 0, "ok": 0, "acked_unproven": 1, "acked_after_expiry": 2}


def weakness(outcome: str) -> int:
    """How little an outcome promises: a part of which nothing is known outweighs one that failed."""
    return 4 if outcome in LATER else _WEAKNESS.get(outcome, 3)


async def settle(
    nodes: Nodes,
    tickets: Iterable[Ticket],
    make: Callable[[tuple[m.Named, ...]], m.ClientRequest],
    on_final: Final_,
    failures: Failures,
    *,
    what: str,
    timeout: float,
    watch: Watch | None = None,
) -> None:
    """Have each ticket settled, in as few requests as the limits allow.

    Errors are not raised but put into ``failures``: each who waits raises what is theirs.

    Args:
        nodes: to ask.
        tickets: what to settle.
        make: the request for some items; called anew for each attempt.
        on_final: told the verdict on each ticket; sets ``outcome``, or returns why there is none.
        failures: of those that failed, why.
        what: it is, for errors.
        timeout: seconds for all requests together, all attempts included.
        watch: told of each attempt.
    """
    end = trio.current_time() + timeout
    for chunk in chunks(items_of(tickets)):
        settling = Settling(chunk, on_final, failures)

        def request(this: Settling = settling) -> m.ClientRequest:
            return make(named(this.items))

        try:
            await nodes.ask(
                request, what=what, timeout=left_of(end), writes=True, judge=settling.take, watch=watch
            )
        except QuorumqError as exc:
            settling.fail(exc)


def note_failures(tickets: Iterable[Ticket], failures: Failures) -> None:
    """What an operation that somebody waits for failed with is on its tickets until the next one."""
    for ticket in tickets:
        ticket.failure = failures.get(ticket)


def raise_failure(tickets: Iterable[Ticket], failures: Failures) -> None:
    """Raise the `foremost` failure among ``tickets``, if there is one."""
    found = foremost(failures[ticket] for ticket in tickets if ticket in failures)
    if found is not None:
        raise again(found)


def foremost(failures: Iterable[QuorumqError]) -> QuorumqError | None:
    """The failure to raise where there are several: what may succeed when it is repeated before what never will.

    Else who treats one as the end of the matter, as HoldLost often is, would not hear of the others.
    """
    found = list(failures)
    return next((one for one in found if isinstance(one, TooFewReplicas)), found[0] if found else None)


class Call:
    """One `ack` that waits; why it failed, once its event is set or its time is over."""

    __slots__ = ("end", "error", "event", "over", "tickets", "timeout")

    def __init__(self, tickets: Sequence[Ticket], timeout: float) -> None:
        self.tickets = tickets
        self.timeout = timeout
        self.end = trio.current_time() + timeout
        self.error: QuorumqError | None = None
        self.over = False  # nobody waits for it any more, as its time is over
        self.event = trio.Event()

    def give_up(self, *, sent: bool) -> None:
        """Its time is over before that of others that it shares a request with, or waits behind."""
        what = f"ack of {count_of(self.tickets)} was not answered within {self.timeout:.3g} s"
        if sent:
            self.error = OutcomeUnknown(
                f"{what}; others in the same request wait for longer. It may have happened: repeat it"
            )
        else:
            self.error = NotStored(f"{what}: it waited for other acks, and nothing was sent")
        self.over = True
        note_failures(self.tickets, dict.fromkeys(self.tickets, self.error))

    def finish(self, failures: Failures) -> None:
        """Its tickets have their verdicts, or the client was closed while it asked for them."""
        for ticket in self.tickets:
            if ticket.outcome is None and ticket not in failures:
                failures[ticket] = OutcomeUnknown(
                    "the client was closed before the answer came: it may be acked"
                )
        if not self.over:
            self.error = foremost(failures[ticket] for ticket in self.tickets if ticket in failures)
            note_failures(self.tickets, failures)
        self.event.set()


class AckQueue:
    """Makes one ACK request of many acks, without making the first one wait.

    What comes while nothing is under way goes at once; what comes while a request is under way goes together when
    that is answered, or after a few milliseconds.

    Args:
        nodes: to ask.
        watch: makes one that is told of the attempts of one request, for the history.
    """

    def __init__(self, nodes: Nodes, watch: Callable[[], Watch | None] = lambda: None) -> None:
        self._nodes = nodes
        self._watch = watch
        self._queue: deque[Call] = deque()
        self._flying = 0
        self._scheduled = False
        self._lingering = False
        self.requests = 0
        """How many requests were made, for tests and statistics."""

    async def ack(self, tickets: Sequence[Ticket], timeout: float) -> None:
        """Ack ``tickets``; their ``outcome`` is set, or the first failure raised.

        Cancelled while it waits, what was queued is still sent.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        self._nodes.check_open()
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
            self._nodes.spawn(self._send)
        elif not self._lingering and self._flying < ACKS_IN_FLIGHT_MAX:
            self._lingering = True
            self._nodes.spawn(self._linger)

    async def _linger(self) -> None:
        try:
            await trio.sleep(ACK_LINGER_S)
        finally:  # also where the client is closed: what was queued has to hear of it
            self._lingering = False
            if self._queue and not self._scheduled:
                self._scheduled = True
                self._nodes.spawn(self._send)

    async def _send(self) -> None:
        """Everything that is queued, as one request (more only where the limits demand it)."""
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
        tickets = [ticket for call in calls for ticket in call.tickets]
        await self._ask(tickets, left_of(max(call.end for call in calls)), failures)
        # A receipt that is refused refuses the request: nobody's mistake may become another's.
        if len(calls) > 1:
            refused = [call for call in calls if any(was_refused(failures.get(one)) for one in call.tickets)]
            for call in refused:
                for ticket in call.tickets:
                    failures.pop(ticket, None)
                await self._ask(call.tickets, left_of(call.end), failures)

    async def _ask(self, tickets: Sequence[Ticket], timeout: float, failures: Failures) -> None:
        self.requests += 1
        await settle(
            self._nodes,
            tickets,
            m.AckRequest,
            on_acked,
            failures,
            what=f"ack of {count_of(tickets)}",
            timeout=timeout,
            watch=self._watch(),
        )


def was_refused(failure: QuorumqError | None) -> bool:
    """Whether this says that a request was refused as a whole."""
    return isinstance(failure, UsageError) and not isinstance(failure, AlreadyResolved)


_OUTCOMES: Final = {
    outcome.value: outcome for outcome in (Outcome.ACKED, Outcome.ACKED_AFTER_EXPIRY, Outcome.ACKED_UNPROVEN)
} | {StaleGeneration.code: Outcome.REWOUND}


def on_acked(ticket: Ticket, verdict: m.Verdict, reply: m.Verdicts) -> QuorumqError | None:
    """The verdict on an ack."""
    outcome = _OUTCOMES.get(verdict.outcome)
    if outcome is not None:
        ticket.outcome = outcome
        return None
    if verdict.outcome == AlreadyResolved.code:
        where = f"{ticket.lot.receipt.span.origin}[{ticket.seq}] of {ticket.lot.receipt.group!r}"
        return AlreadyResolved(
            f"{where} is no dead letter any more: {verdict.detail or 'it was redriven or purged'}"
        )
    return error_from(verdict.outcome, verdict.detail or f"the ack was refused: {verdict.outcome}")


def count_of(tickets: Sequence[Ticket]) -> str:
    """ "3 messages of jobs", for errors."""
    count = sum(ticket.size for ticket in tickets)
    topics = ", ".join(dict.fromkeys(ticket.lot.topic for ticket in tickets if ticket.lot.topic))
    return f"{count} message{'s' if count != 1 else ''}" + (f" of {topics}" if topics else "")
