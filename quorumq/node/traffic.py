"""Requests, answers and their durations at a node since it started: counters that only rise.

Kinds of requests and codes of errors are few. If too many requests are under way, the oldest is dropped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from quorumq.core.messages import ClientReply, Failed, FetchReply, Publish, PublishReply, SettleReply, Slice
from quorumq.core.messages.effects import Event, Gone, Request
from quorumq.core.values.latency import Latency
from quorumq.node.readers import DONE

UNDER_WAY_MAX: Final = 65_536


@dataclass(slots=True, eq=False)
class Traffic:
    """Counts requests."""

    requests: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Counts by kind of request, and by the code of its error; "ok" if it has none."""
    messages: Counter[str] = field(default_factory=lambda: Counter(published=0, delivered=0, settled=0))
    """Counts by outcome."""
    bytes: Counter[str] = field(default_factory=lambda: Counter(published=0, delivered=0))
    """Bytes of records, published and delivered."""
    times: dict[str, Latency] = field(default_factory=dict)  # times of requests until their answer, by kind
    fsyncs: Latency = field(default_factory=Latency)  # times of the journal's fsyncs
    _under_way: dict[int, tuple[float, str, int, int]] = field(default_factory=dict)
    """Requests under way by key: begin, kind, messages and bytes."""

    def noticed(self, events: Iterable[Event], now: float) -> None:
        """Note events that the core is about to get, at ``now`` (monotonic seconds)."""
        for event in events:
            if isinstance(event, Request):
                messages = size = 0
                if isinstance(event.request, Publish):
                    header = event.request.batch.header
                    messages, size = header.size, header.end_of(header.size - 1)
                if len(self._under_way) >= UNDER_WAY_MAX:
                    del self._under_way[next(iter(self._under_way))]
                self._under_way[event.key] = (now, type(event.request).__name__, messages, size)
            elif isinstance(event, Gone):
                self._under_way.pop(event.key, None)

    def answered(self, key: int, reply: ClientReply, now: float) -> None:
        request = self._under_way.pop(key, None)
        if request is None:
            return
        since, kind, messages, size = request
        self.requests[kind, reply.code if isinstance(reply, Failed) else "ok"] += 1
        times = self.times.get(kind)
        if times is None:
            times = self.times[kind] = Latency()
        times.note(now - since)
        if isinstance(reply, PublishReply):
            self.messages["published"] += messages
            self.bytes["published"] += size
        elif isinstance(reply, FetchReply):
            for part in reply.slices:
                here = isinstance(part, Slice)
                header = part.header
                first, stop = (part.first, part.stop) if here else (0, header.size)
                self.messages["delivered"] += stop - first
                self.bytes["delivered"] += header.end_of(stop - 1) - header.end_of(first - 1)
        elif isinstance(reply, SettleReply) and kind in ("AckRequest", "RejectRequest"):
            done = (verdict.span.size for verdict in reply.verdicts if verdict.outcome in DONE)
            self.messages["settled"] += sum(done)
