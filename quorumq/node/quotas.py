"""Quotas of one client at a node: requests and bytes a second, unsettled messages, topics and groups.

A quota is for a name in the clients file, over all its connections; each node counts for itself. If a client is over
its rates, it gets an error with the seconds to wait, and nothing is done: no other client waits for it, and its next
try has its turn. If a request settles or gives back messages, it is not refused, because it makes room, unless the last
one had a forged receipt. It counts all the same, and so does a request that is refused for another reason.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Annotated, Any, Final

import msgspec

from quorumq.core import messages as m
from quorumq.core.cluster.catalogue import Catalogue
from quorumq.core.values.deadnames import dead_letter_names, source_of
from quorumq.core.values.errors import Busy, Code, TooLarge
from quorumq.core.values.limits import DELAY_MAX_S
from quorumq.core.values.patterns import is_pattern
from quorumq.core.values.spans import SpanSet
from quorumq.core.values.types import Owner, PartitionId
from quorumq.wire.rights import Client

BURST_S: Final = 1.0
"""Seconds whose unused part of a rate a client may use at once."""

DELAY_MAX_DEFAULT_S: Final = 15 * 86_400.0
"""Seconds for which a client of the clients file may put messages off, if that does not say. A backoff has entries of
7 days at most. A longer delay of a whole backlog mostly takes it away from all others of the group."""

DEBT_S: Final = 10.0
"""Seconds within which requests that are never refused are made up for."""

BUSY_MAX_S: Final = 20.0
"""Most seconds that a client has to wait, by an error, before it asks again."""

MAKING_S: Final = 10.0
"""Seconds for which a topic or group that was asked for counts as being made, unless it is there sooner."""

UNSETTLED_DELAY_S: Final = 0.25
"""Seconds after which a client asks again if it has its most unsettled messages: one may be settled by then."""

Delivered = tuple[PartitionId, str, Owner]
"""Key of a delivery: its partition, group, and hold."""

UNREFUSED: Final = (*m.SETTLING, m.CloseSession)
"""Requests that no rate refuses, if the last one of them had no forged receipt."""

Begun = Callable[[m.Publish], int]
"""Function that returns the number of producer ids that begin with a publish (core/requests/publish.py)."""

Rate = Annotated[float, msgspec.Meta(gt=0, le=1e12)]
Delay = Annotated[float, msgspec.Meta(gt=0, le=DELAY_MAX_S)]
Count = Annotated[int, msgspec.Meta(ge=1, le=1 << 40)]


class Quotas(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one client; None for no limit.

    Attributes:
        requests_per_s: requests to one node.
        bytes_per_s: bytes of its requests to one node, and of all answers.
        unsettled: messages that one node handed over, and that were neither settled there nor ran out.
        delay_max: seconds for which it may put a message off by a PUBLISH or a REJECT, or claim it by an EXTEND; None
            for `DELAY_MAX_DEFAULT_S`.
        topics: most topics to which it has a right, those under way included, if it makes more.
        groups: most groups to which it has a right, counted in the same way.
        producer_ids_per_s: sessions, derived producer ids and names that begin in a partition by its publishes to one
            node.
    """

    requests_per_s: Rate | None = None
    bytes_per_s: Rate | None = None
    unsettled: Count | None = None
    delay_max: Delay | None = None
    topics: Count | None = None
    groups: Count | None = None
    producer_ids_per_s: Rate | None = None


class Bucket:
    """Token bucket of a rate, with the tokens of `BURST_S` at most.

    Args:
        rate: tokens a second.
        now: monotonic seconds.

    Attributes:
        level: tokens that are there; below 0 if more was spent.
        promised: time until which they are promised to clients that have to wait.
    """

    __slots__ = ("at", "level", "promised", "rate")

    def __init__(self, rate: float, now: float) -> None:
        self.rate = rate
        self.level = rate * BURST_S
        self.at = now
        self.promised = now

    def _refill(self, now: float) -> None:
        self.level = min(self.rate * BURST_S, self.level + (now - self.at) * self.rate)
        self.at = now

    def lacks(self, cost: float, now: float) -> float:
        """Return the seconds until ``cost`` can be spent. If it is beyond the most tokens, it waits for the most."""
        self._refill(now)
        return max(0.0, (min(cost, self.rate * BURST_S) - self.level) / self.rate)

    def spend(self, cost: float, now: float) -> None:
        self._refill(now)
        self.level -= cost

    def charge(self, cost: float, now: float) -> None:
        """Spend ``cost``, even if there are too few tokens. The debt is cut to the tokens of `DEBT_S`."""
        self._refill(now)
        self.level = max(self.level - cost, min(self.level, -self.rate * DEBT_S))

    def promise(self, cost: float, now: float) -> float:
        """Return the seconds after which to ask again for ``cost``, when earlier clients have had their turn."""
        at = min(max(now + self.lacks(cost, now), self.promised), now + BUSY_MAX_S)
        self.promised = min(at + cost / self.rate, now + BUSY_MAX_S)
        return at - now


class Unsettled:
    """Messages that were handed over to one client, by the delivery. Each is settled here, or runs out.

    By message, not by number: if one is settled twice, it makes room once.
    """

    __slots__ = ("_handed", "count", "most")

    def __init__(self, most: int) -> None:
        self.most = most
        self.count = 0
        self._handed: dict[Delivered, tuple[SpanSet, float]] = {}

    def hand_over(self, reply: m.FetchReply, now: float) -> None:
        """Count the messages of a FETCH's answer."""
        for part in reply.slices:
            for delivery in part.deliveries:
                receipt = delivery.receipt
                key = (receipt.partition, receipt.group, receipt.owner)
                spans, _ = self._handed.get(key) or (SpanSet(), 0.0)
                self.count += sum(span.size for span in spans.add(receipt.span))
                self._handed[key] = (spans, now + reply.hold_time)

    def settle(self, items: Iterable[m.ReceiptPart]) -> None:
        """Take out messages that are settled, or given back."""
        for receipt, named in items:
            key = (receipt.partition, receipt.group, receipt.owner)
            spans, _ = self._handed.get(key) or (SpanSet(), 0.0)
            for span in named:
                self.count -= sum(part.size for part in spans.remove(span))
            if not spans.runs:
                self._handed.pop(key, None)

    def extend(self, items: Iterable[m.ReceiptPart], until: float) -> None:
        """Note that deliveries run out later."""
        for receipt, _ in items:
            key = (receipt.partition, receipt.group, receipt.owner)
            if key in self._handed:
                self._handed[key] = (self._handed[key][0], until)

    def capacity(self, now: float) -> int:
        """Return the number of further messages that may be unsettled."""
        if self.count >= self.most:
            for key, (spans, until) in list(self._handed.items()):
                if until <= now:
                    self.count -= sum(span.size for span in spans.items())
                    del self._handed[key]
        return max(0, self.most - self.count)


class Usage:
    """Use of one client's quotas. Times are monotonic seconds.

    Args:
        hold_time_max: seconds of the longest hold: a longer one is a claim.

    Attributes:
        held_back: True if its last request was refused.
        forged: True if its last settling request was: then the next one is refused beyond a rate as all others are.
    """

    def __init__(self, quotas: Quotas, now: float, hold_time_max: float) -> None:
        self.quotas = quotas
        self._hold_time_max = hold_time_max
        self.held_back = False
        self.forged = False
        requests, size = quotas.requests_per_s, quotas.bytes_per_s
        self._requests = Bucket(requests, now) if requests is not None else None
        self._bytes = Bucket(size, now) if size is not None else None
        producer_ids = quotas.producer_ids_per_s
        self._producer_ids = Bucket(producer_ids, now) if producer_ids is not None else None
        self._unsettled = Unsettled(quotas.unsettled) if quotas.unsettled is not None else None
        self._topics = Making()
        self._groups = Making()

    def begin(self, client: Client, request: Any, size: int, now: float) -> None:
        """Charge a request of ``size`` bytes. If it is beyond a rate, raise Busy and charge nothing."""
        asked = [(self._requests, 1.0, "requests_per_s"), (self._bytes, float(size), "bytes_per_s")]
        settles = isinstance(request, UNREFUSED) and not self.forged
        if not settles:
            for bucket, cost, name in asked:
                if bucket is not None and bucket.lacks(cost, now):
                    delay = bucket.promise(cost, now)
                    raise self._busy(client, f"{name} is {bucket.rate:g}", delay)
        for bucket, cost, _ in asked:
            if bucket is not None:
                (bucket.charge if settles else bucket.spend)(cost, now)

    def note_broken(self, size: int, now: float) -> None:
        """Charge a frame that is no request."""
        for bucket, cost in ((self._requests, 1.0), (self._bytes, float(size))):
            if bucket is not None:
                bucket.charge(cost, now)

    def take(
        self,
        client: Client,
        request: Any,
        catalogue: Catalogue,
        now: float,
        new_producer_ids: Begun | None = None,
    ) -> Any:
        """Count the messages and registers that a request takes and makes, or refuse it.

        Args:
            request: a request of clients, its receipts opened, to which it has the right.
            new_producer_ids: function that returns the number of producer ids that begin with a publish.

        Returns:
            the request as it is to be carried out: if it is a FETCH, it asks for no more than may be unsettled.

        Raises:
            Busy: it has too much unsettled, or begins too many producer ids. Names the time to ask again.
            TooLarge: there would be more topics or groups than it may have, or it puts messages off for too long.
        """
        self._check_delay(client, request)
        if self._producer_ids is not None and new_producer_ids is not None and isinstance(request, m.Publish):
            count = new_producer_ids(request)
            if count and self._producer_ids.lacks(count, now):
                delay = self._producer_ids.promise(count, now)
                raise self._busy(client, f"producer_ids_per_s is {self._producer_ids.rate:g}", delay)
            self._producer_ids.spend(count, now)
        if isinstance(request, m.Fetch) and self._unsettled is not None:
            capacity = self._unsettled.capacity(now)
            if not capacity:
                most = self._unsettled.most
                raise self._busy(client, f"unsettled is {most}, and so many are", UNSETTLED_DELAY_S)
            few = min(request.max_messages, capacity)
            request = request._replace(max_messages=few, min_messages=min(request.min_messages, few))
        self._count_made(client, request, catalogue, now)
        if self._unsettled is not None:
            if isinstance(request, m.ExtendRequest):
                self._unsettled.extend(request.items, now + request.hold_time)
            elif isinstance(request, m.SETTLING):
                self._unsettled.settle(request.items)
        self.held_back = False
        if isinstance(request, UNREFUSED):
            self.forged = False
        return request

    def _check_delay(self, client: Client, request: Any) -> None:
        delay = 0.0
        if isinstance(request, m.RejectRequest):
            delay = request.delay
        elif isinstance(request, m.ExtendRequest) and request.hold_time > self._hold_time_max:
            delay = request.hold_time
        elif isinstance(request, m.Publish):
            delay = request.batch.header.delay_ms / 1000
        most = DELAY_MAX_DEFAULT_S if self.quotas.delay_max is None else self.quotas.delay_max
        if delay > most:
            raise TooLarge(
                f"client {client.name!r}: a delay or claim is {delay:g} s, at most {most:g} s may be (its quota): give "
                "a smaller one, or raise `delay_max` in the nodes' clients file"
            )

    def _busy(self, client: Client, reason: str, delay: float) -> Busy:
        return Busy(f"client {client.name!r}: {reason} (its quota): ask again in {delay:.2g} s", delay=delay)

    def answered(self, reply: m.ClientReply, size: int, now: float) -> None:
        """Charge an answer of ``size`` bytes. If it says to wait, it is free, because it is the node's own."""
        if self._bytes is not None and not (isinstance(reply, m.Failed) and reply.code == Code.BUSY):
            self._bytes.spend(size, now)  # all of it, as many may be under way at once
        if self._unsettled is not None and isinstance(reply, m.FetchReply):
            self._unsettled.hand_over(reply, now)

    def _count_made(self, client: Client, request: Any, catalogue: Catalogue, now: float) -> None:
        """Refuse a request if it would make topics or groups beyond the quota. If they exist, it is not refused."""
        if self.quotas.topics is not None and (new := new_topics(request, catalogue)):
            there = sum(client.sees(topic.name) for topic in catalogue.live())
            self._topics.ask(client, "topic", self.quotas.topics, there, new, catalogue.names, now)
        if self.quotas.groups is not None and (new := new_groups(request, catalogue)):
            there = sum(
                not group.deleted and client.may("consume", topic.name, group.name)
                for topic in catalogue.live()
                if client.may("consume", topic.name, None)
                for group in catalogue.group_registers(topic.id)
            )
            self._groups.ask(client, "group", self.quotas.groups, there, new, catalogue.groups, now)


class Making:
    """Topics or groups that one client asked for and that are not there yet: they count for `MAKING_S` at most."""

    __slots__ = ("_asked",)

    def __init__(self) -> None:
        self._asked: dict[Hashable, tuple[float, object]] = {}  # until when, and the register that was known

    def ask(
        self,
        client: Client,
        noun: str,
        most: int,
        there: int,
        new: Iterable[Hashable],
        registers: Mapping[Any, object],
        now: float,
    ) -> None:
        """Count the registers that a request would make, or refuse it.

        Args:
            there: number of those there that count.
            new: keys of the registers that it would make.
            registers: those that are known now.

        Raises:
            TooLarge: there would be more than ``most``.
        """
        asked = self._asked
        for key in [key for key, (until, of) in asked.items() if until <= now or registers.get(key) != of]:
            del asked[key]
        more = [key for key in new if key not in asked]
        if there + len(asked) + len(more) > most:
            raise TooLarge(
                f"client {client.name!r}: there are {there} {noun}s to which it has a right, {len(asked)} more are "
                f"being made, and {len(more)} would come, where its quota is {most}: delete some, or raise `{noun}s` "
                "in the nodes' clients file"
            )
        asked.update((key, (now + MAKING_S, registers.get(key))) for key in more)


def new_topics(request: Any, catalogue: Catalogue) -> list[Hashable]:
    """Return the topic that a request would make, as a key of `Catalogue.names`."""
    makes = isinstance(request, m.CreateTopic) and catalogue.topic_named(request.name) is None
    return [request.name] if makes else []


def new_groups(request: Any, catalogue: Catalogue) -> list[Hashable]:
    """Return the groups that a request would make, as keys of `Catalogue.groups`."""
    fetches = isinstance(request, m.Fetch)
    if not fetches and not (isinstance(request, m.SetGroup) and not request.rewind):
        return []
    topics = request.topics if isinstance(request, m.Fetch) else (request.topic,)
    names, group = dead_letter_names(topics, request.group)
    if source_of(group) != group:
        return []
    groups: dict[Hashable, None] = {}
    for name in names:
        matching = catalogue.topics_matching(name)
        for topic in matching:
            if not catalogue.reads(topic.id, group) and (not fetches or catalogue.makes_group(topic, group)):
                groups[(topic.id, group)] = None
        if not matching and not is_pattern(name):  # another node may know it
            groups[(name.encode(), group)] = None
    return list(groups)
