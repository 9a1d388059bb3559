"""ACK, REJECT and EXTEND of many messages, through any node, until each has its verdict.

Receipts make this idempotent: the same receipts may be sent again, anywhere. A reply brings a verdict per span;
final verdicts are kept, and only unknown ones are asked for again, at the next node. The answer to a retried ack is
the same as the first answer or weaker (docs/protocol.md, ACK), so the last word is the one to pass on.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby, zip_longest
from operator import attrgetter
from typing import Final, cast

import trio

from quorumq.client.base.message import Settleable, again
from quorumq.client.transport.nodes import Nodes, Watch, left_of
from quorumq.core import messages as m
from quorumq.core.values.errors import (
    Code,
    NotFound,
    OutcomeUnknown,
    QuorumqError,
    StorageFull,
    Unanswered,
    error_from,
)
from quorumq.core.values.limits import SPANS_SETTLED_MAX
from quorumq.core.values.printable import plural
from quorumq.core.values.types import Span
from quorumq.wire.codec import signed_items
from quorumq.wire.values import SignedNamed

SPANS_MAX: Final = SPANS_SETTLED_MAX
"""Spans in one request."""

LATER: Final = frozenset({
    Code.OUTCOME_UNKNOWN, Code.TOO_FEW_REPLICAS, Code.NOT_STORED, Code.WRONG_EPOCH, Code.UNKNOWN_TOPIC,
    Code.NOT_FOUND, Code.STORAGE_FULL,
})  # fmt: skip
"""Outcomes after which another node, or the same one later, may do better."""

Failures = dict[Settleable, QuorumqError]
"""Errors of tickets in one operation: others may be under way for the same tickets."""
Final_ = Callable[[Sequence[Settleable], m.Verdict, m.SettleReply], Failures]
"""Called with each final verdict, its tickets and the reply it arrived in: returns the errors of those that failed."""

_delivery: Final = attrgetter("delivery")
_seq: Final = attrgetter("seq")
_topic: Final = attrgetter("delivery.topic")


class Item:
    """One receipt of a request, with the tickets of it that are meant, by number."""

    __slots__ = ("signed", "spans", "tickets")

    def __init__(self, signed: bytes, tickets: list[Settleable]) -> None:
        self.signed = signed
        self.tickets = tickets
        self.spans = spans_of(tickets)


def items_of(tickets: Iterable[Settleable]) -> list[Item]:
    """Return the tickets by receipt, in order."""
    by_receipt: dict[bytes, list[Settleable]] = {}
    for delivery, same_delivery in groupby(tickets, key=_delivery):
        by_receipt.setdefault(delivery.signed, []).extend(same_delivery)
    for of_receipt in by_receipt.values():
        of_receipt.sort(key=_seq)
    return [Item(signed, of_receipt) for signed, of_receipt in by_receipt.items()]


def spans_of(tickets: Sequence[Settleable]) -> tuple[Span, ...]:
    """Return the spans that sorted tickets of one receipt cover; a message named twice is named once."""
    producer_id = tickets[0].delivery.receipt.span.producer_id
    spans: list[Span] = []
    start = stop = tickets[0].seq
    if list(map(_seq, tickets)) == list(range(start, start + len(tickets))):
        return (Span(producer_id, start, start + len(tickets)),)
    for ticket in tickets:
        if ticket.seq > stop:
            spans.append(Span(producer_id, start, stop))
            start = ticket.seq
        stop = ticket.seq + 1
    spans.append(Span(producer_id, start, stop))
    return tuple(spans)


def chunks(items: Iterable[Item], most: int = 0) -> list[list[Item]]:
    """Return the items in requests of at most ``most`` spans, or else of `SPANS_MAX`."""
    most = min(most or SPANS_MAX, SPANS_MAX)
    packed: list[list[Item]] = []
    capacity = 0
    for item in items:
        parts = [item]
        if len(item.spans) > most:  # every span holds at least one ticket
            parts = [
                Item(item.signed, item.tickets[at : at + most]) for at in range(0, len(item.tickets), most)
            ]
        for part in parts:
            if len(part.spans) > capacity:
                packed.append([])
                capacity = most
            packed[-1].append(part)
            capacity -= len(part.spans)
    return packed


def named(items: Iterable[Item]) -> tuple[m.ReceiptPart, ...]:
    """Return the items as a request has them."""
    return signed_items(SignedNamed(item.signed, item.spans) for item in items)


@dataclass(eq=False)
class Settling:
    """One request's tickets on their way to a verdict each."""

    items: list[Item]
    on_final: Final_
    failures: Failures

    def take(self, reply: m.ClientReply) -> QuorumqError | None:
        """Pass on final verdicts; return an error if tickets are left to ask again, else None."""
        verdicts = cast("m.SettleReply", reply)
        parts: dict[int, list[m.Verdict]] = {}
        for verdict in verdicts.verdicts:
            parts.setdefault(verdict.item, []).append(verdict)
        unanswered: list[Settleable] = []
        error: QuorumqError | None = None
        for index, item in enumerate(self.items):
            ordered = sorted(parts.get(index, ()), key=lambda verdict: verdict.span.start)
            for tickets, judged in self._runs(item.tickets, ordered):
                if judged is not None and judged.outcome not in LATER:
                    self.failures.update(self.on_final(tickets, judged, verdicts))
                else:
                    unanswered += tickets
                    error = later(judged, error)
        self.items = items_of(unanswered)
        return error

    @staticmethod
    def _runs(
        tickets: list[Settleable], verdicts: list[m.Verdict]
    ) -> Iterator[tuple[list[Settleable], m.Verdict | None]]:
        """Yield the verdicts on sorted tickets, by runs that share one."""
        seqs = list(map(_seq, tickets))
        ends = [verdict.span.start for verdict in verdicts[1:]]
        at = 0
        for verdict, end in zip_longest(verdicts, ends):
            _, start, stop = verdict.span
            first = bisect_left(seqs, start, at)
            after = bisect_left(seqs, stop if end is None else min(stop, end), first)
            if at < first:
                yield tickets[at:first], None
            if first < after:
                yield tickets[first:after], verdict
            at = after
        if at < len(tickets):
            yield tickets[at:], None

    def fail(self, error: QuorumqError) -> None:
        """Set the error of every ticket that is left: the time is over, or it was refused for good."""
        for item in self.items:
            for ticket in item.tickets:
                self.failures[ticket] = error


def later(verdict: m.Verdict | None, before: QuorumqError | None) -> QuorumqError:
    """Return the error that has the next node asked; an attempt that may have happened outweighs a NotFound."""
    if verdict is None:
        return before or OutcomeUnknown("the node gave no verdict on some of it")
    if verdict.outcome == NotFound.code:
        return before or NotFound(verdict.detail)
    error = error_from(verdict.outcome, verdict.detail)
    return error if isinstance(error, Unanswered | StorageFull) else OutcomeUnknown(str(error))


async def settle(
    nodes: Nodes,
    tickets: Iterable[Settleable],
    make: Callable[[tuple[m.ReceiptPart, ...]], m.ClientRequest],
    on_final: Final_,
    failures: Failures,
    *,
    action: str,
    timeout: float,
    watch: Watch | None = None,
    most: int = 0,
    waits_for_space: bool = True,
) -> None:
    """Have each ticket settled, in as few requests as the limits allow.

    Errors are not raised but put into ``failures``: each waiter raises its own.

    Args:
        make: the request for some items; called anew for each attempt.
        on_final: called with each verdict and its tickets; sets their ``outcome``, or returns why there is none.
        timeout: seconds for all requests together, all attempts included.
        most: spans in one request, if they are to be fewer than others have.
        waits_for_space: see `Nodes.ask`.
    """
    end = trio.current_time() + timeout
    for chunk in chunks(items_of(tickets), most):
        settling = Settling(chunk, on_final, failures)

        def request(bound: Settling = settling) -> m.ClientRequest:
            return make(named(bound.items))

        try:
            await nodes.ask(
                request,
                action=action,
                timeout=left_of(end),
                writes=True,
                check=settling.take,
                watch=watch,
                waits_for_space=waits_for_space,
            )
        except QuorumqError as exc:
            settling.fail(exc)


def note_failures(tickets: Iterable[Settleable], failures: Failures) -> None:
    """Note an awaited operation's failures on its tickets, until the next operation."""
    for ticket in tickets:
        ticket.failure = failures.get(ticket) if failures else None


@contextmanager
def failures_of(tickets: Sequence[Settleable]) -> Iterator[Failures]:
    """Collect an awaited operation's failures: noted on its tickets, and at the end of the ``with`` the
    `most_retryable` is raised."""
    failures: Failures = {}
    note_failures(tickets, failures)
    try:
        yield failures
    finally:
        note_failures(tickets, failures)
    worst = most_retryable(failures[ticket] for ticket in tickets if ticket in failures)
    if worst is not None:
        raise again(worst)


def most_retryable(failures: Iterable[QuorumqError]) -> QuorumqError | None:
    """Return the failure to raise among several: one that a repetition may mend before one that never will succeed.

    Else a caller that treats one as the end of the matter, as HoldLost often is, would not hear of the others.
    """
    errors = list(failures)
    return next((one for one in errors if isinstance(one, Unanswered)), errors[0] if errors else None)


def count_of(tickets: Sequence[Settleable]) -> str:
    """Return text such as "3 messages of jobs", for errors."""
    topics = ", ".join(filter(None, dict.fromkeys(map(_topic, tickets))))
    return plural(len(tickets), "message") + (f" of {topics}" if topics else "")
