"""A confirmed group stands until a request for a rewind or a deletion (section 1, "group, generation").

A creation is a SETGROUP that was OK, or a FETCH that brought messages, or that was answered when a majority of the
nodes had the group. From then on, until a rewind or a deletion of the group is *sent*:

- all deliveries to FETCHes that are sent later are of one generation, and every creation that is sent later hears that
  one, and no receipt of these is called stale (a message redriven before a rewind is of the generation it died in);
- an acked message is not delivered again;
- a message published later with OK is delivered (or dies, or is purged), at any time of day on any clock;
- if all requests that may have made the group asked for ``earliest``, so is one published before (unless
  payload goes, `kept: false`);
- if all asked for ``latest``, nothing is delivered that was confirmed before the first of them was sent;
- if some asked for the one and some for the other, either all of that is delivered or nothing.

A rewind that was OK stands too: it is the only request that may have made its generation. A request that failed for
certain has made nothing; a FETCH that too few replicas answered may have made the group.
A FETCH never makes a group again that was deleted. One that names a partition is judged there alone.
For a group that begins at a time, only messages that its producers published from that time on, by their clocks, are
judged. A rewind to latest leaves that time as it is, and its answer names it.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from quorumq.history import Row
from sim.checkers.base import (
    DEAD,
    DrainedChecker,
    GroupKey,
    Key,
    PublishChecker,
    Purges,
    TopicChecker,
    dead_of,
    group_messages,
    messages,
    name,
)


@dataclass(slots=True)
class Request:
    """A request that makes, rewinds or deletes a group."""

    kind: str  # "create", "fetch", "rewind" or "delete"
    start: str
    from_ms: int
    partition: int | None  # that a FETCH names
    sent: float
    ended: float = math.inf  # if it was OK
    generation: int | None = None  # that the answer names
    failed: bool = False
    shows: bool = True  # that it was OK shows that the group is there


class Delivered(NamedTuple):
    """A message was handed to a client."""

    at: float
    asked: float
    generation: int
    n: int
    owner: str


class Standing(NamedTuple):
    """A group with its beginning confirmed at ``since``, and without a request to change it before ``until``."""

    since: float
    until: float
    first: float  # when the first request was sent that may have made it
    again: bool  # True if there was another generation before
    starts: frozenset[str]
    from_ms: int  # the latest of the times at which it may begin
    partition: int | None
    generation: int | None  # that the answer named


@dataclass(slots=True)
class Told:
    """A history's statements about one message and group."""

    delivered: list[Delivered] = field(default_factory=list)
    # ACK of each delivery: time first sent, time of success, and its verdict.
    acks: dict[str, float] = field(default_factory=dict)
    acked: list[tuple[float, str, str]] = field(default_factory=list)
    stale: list[tuple[float, str]] = field(default_factory=list)


class CreationsStand(TopicChecker, DrainedChecker, PublishChecker):
    promise = "creations stand"

    def __init__(self) -> None:
        super().__init__()
        self.nodes: dict[str, None] = {}
        self.requests: dict[str, dict[tuple[str, int], Request]] = {}
        self.having: dict[str, dict[str, None]] = {}  # nodes that have had a group
        self.observed: dict[str, dict[Key, Told]] = {}
        self.dead: dict[GroupKey, None] = {}  # in the end
        self.dead_at: dict[GroupKey, float] = {}  # time of its last delivery as a dead letter
        self.purges = Purges()
        self.redriven: dict[GroupKey, None] = {}
        self.proposed: dict[int, float] = {}  # time since which a request may have added a partition
        self.born = 0  # least number of partitions in any case

    # -------------------------------------------------------------------- what is said

    def on_start(self, row: Row) -> None:
        self.nodes[row["who"]] = None

    def on_set_topic(self, row: Row) -> None:
        super().on_set_topic(row)
        asked = row.get("defaults", {}) | row.get("settings", {})
        count = asked.get("partitions", 1)
        if row["outcome"] == "invoke" and "rf" in asked:
            self.born = min(self.born or count, count)
        for number in range(count):
            self.proposed.setdefault(number, row["at"])

    def on_register(self, row: Row) -> None:
        self.having.setdefault(row["group"], {})[row["who"]] = None

    def on_set_group(self, row: Row) -> None:
        kind = "rewind" if row.get("rewind", True) else "create"
        self.request(row, {"set_group": kind, "delete_group": "delete", "fetch": "fetch"}[row["kind"]])

    on_delete_group = on_fetch = on_set_group

    def request(self, row: Row, kind: str) -> None:
        """Note a line of a request."""
        mine = self.requests.setdefault(row["group"], {})
        which = (row["who"], row["op"])
        if row["outcome"] == "invoke":
            start, from_ms = row.get("start", ""), row.get("from_ms", 0)
            mine[which] = Request(kind, start, from_ms, row.get("partition"), row["at"])
        elif which in mine and row["outcome"] == "ok":
            mine[which].ended = row["at"]
            mine[which].generation = row.get("generation")
            if mine[which].start == "latest":
                mine[which].from_ms = row.get("from_ms", 0)
            if kind == "fetch" and not row.get("messages"):
                having = self.having.get(row["group"], {})
                mine[which].shows = 2 * len(having) > max(len(self.nodes), self.rf)
        elif which in mine and row["outcome"] == "fail":
            mine[which].failed = True

    def on_deliver(self, row: Row) -> None:
        if row["group"].endswith(DEAD):
            source = {**row, "group": row["group"].removesuffix(DEAD)}
            self.dead_at.update((key, row["at"]) for key in group_messages(source))
            return
        of_group = self.observed.setdefault(row["group"], {})
        delivered = Delivered(row["at"], row["asked"], row["generation"], row["n"], row["owner"])
        for key in messages(row):
            of_group.setdefault(key, Told()).delivered.append(delivered)

    def on_ack(self, row: Row) -> None:
        group, outcome, owner = row["group"], row["outcome"], row["owner"]
        if group.endswith(DEAD):
            return
        of_group = self.observed.setdefault(group, {})
        for key in messages(row):
            seen = of_group.setdefault(key, Told())
            if outcome == "invoke":
                seen.acks.setdefault(owner, row["at"])
            elif outcome.startswith("acked"):
                seen.acked.append((row["at"], outcome, owner))
            elif outcome == "stale-generation":
                seen.stale.append((row["at"], owner))

    def on_purge(self, row: Row) -> None:
        self.purges.see(row)

    def on_redrive(self, row: Row) -> None:
        self.redriven.update(dict.fromkeys(group_messages(row)))

    def on_list(self, row: Row) -> None:
        if row["state"] == "dead":
            self.dead.update(dict.fromkeys(group_messages(row)))

    # -------------------------------------------------------------------- the end

    def end(self) -> None:
        for group, requests in self.requests.items():
            for standing in standings([it for it in requests.values() if not it.failed]):
                self.is_one(group, standing)
                self.is_latest(group, standing)
        super().end()

    def drained(self) -> None:
        for group, requests in self.requests.items():
            for standing in standings([it for it in requests.values() if not it.failed]):
                if standing.until == math.inf:
                    self.is_whole(group, standing)

    def covered(self, standing: Standing) -> Iterator[Key]:
        """Yield the confirmed messages of its partitions."""
        for key in self.confirmed:
            if standing.partition in (None, key[0]):
                yield key

    def is_one(self, group: str, standing: Standing) -> None:
        """Check that all deliveries are of one generation, and that acked messages are not delivered again."""
        since, until = standing.since, standing.until
        seen: dict[int, tuple[float, str]] = {}
        for call in self.requests[group].values():
            if (
                call.kind == "create"
                and call.generation is not None
                and since < call.sent
                and call.ended < until
            ):
                seen.setdefault(call.generation, (call.ended, f"group {group} is said to be"))
        if standing.generation is not None:
            seen[standing.generation] = since, ""
        for key, observed in self.observed.get(group, {}).items():
            if standing.partition not in (None, key[0]):
                continue
            mine = {it.owner: it for it in observed.delivered if since < it.asked and it.at < until}
            for it in mine.values():
                if not it.n and it.at < seen.get(it.generation, (math.inf, ""))[0]:
                    seen[it.generation] = it.at, f"{name((group, *key))} is delivered"
            for at, owner in observed.stale:
                if owner in mine and at < until:
                    self.broken(
                        f"{name((group, *key))}, delivered at {mine[owner].at:.4f} s, is called stale: its group "
                        f"stands since {since:.4f} s, and nobody asked to rewind it",
                        at,
                    )
            for at, outcome, owner in observed.acked:
                if owner not in mine:
                    continue
                for it in mine.values():
                    if it.generation != mine[owner].generation and (
                        it.at > at if outcome == "acked" else it.asked > at
                    ):
                        self.broken(
                            f"{name((group, *key))} heard {outcome} at {at:.4f} s and is delivered again: nobody "
                            f"asked to rewind its group, which stands since {since:.4f} s",
                            it.at,
                        )
        ordered = sorted((at, generation, text) for generation, (at, text) in seen.items())
        for at, generation, text in ordered[1:2]:
            self.broken(
                f"{text} in generation {generation}, after {ordered[0][1]} at {ordered[0][0]:.4f} s: the group stands "
                f"since {since:.4f} s, and nobody asked to rewind it",
                at,
            )

    def is_latest(self, group: str, standing: Standing) -> None:
        """Check that nothing published before is delivered, if all requests asked for ``latest``."""
        if standing.starts != {"latest"}:
            return
        after = standing.since if standing.again else -1.0
        for key, observed in self.observed.get(group, {}).items():
            if self.confirmed.get(key, math.inf) > standing.first or (group, *key) in self.redriven:
                continue
            for it in observed.delivered:
                if it.asked > after and it.at < standing.until and it.n == 0:
                    self.broken(
                        f"{name((group, *key))}, confirmed at {self.confirmed[key]:.4f} s, is delivered, and its "
                        f"group was asked for from latest, at {standing.first:.4f} s and later",
                        it.at,
                    )
                    break

    def got(self, group: str, key: Key, after: float) -> bool:
        """Return True if the group got a message after that time, or if it died or may have been purged."""
        mine = (group, *key)
        observed = self.observed.get(group, {}).get(key)
        if observed is not None and any(it.at > after for it in observed.delivered):
            return True
        if mine in self.dead or self.dead_at.get(mine, -1.0) > after:
            return True
        end = max(self.purges.until(mine), self.purges.until(dead_of(mine)))
        return end > after and end >= self.sent[key]

    def is_whole(self, group: str, standing: Standing) -> None:
        """Check that every covered message was delivered."""
        since, first = standing.since, standing.first if standing.again else -1.0
        before = [key for key in self.covered(standing) if self.sent[key] <= since]
        missed = [
            key
            for key in self.covered(standing)
            if self.sent[key] > since
            and self.published_ms[key] >= standing.from_ms
            and (key[0] < self.born or self.proposed.get(key[0], math.inf) > since)
            and not self.got(group, key, since)
        ]
        for key in missed[:1]:
            self.broken(
                f"{name((group, *key))}, sent at {self.sent[key]:.4f} s and confirmed, never came: its group stands "
                f"since {since:.4f} s ({len(missed)} messages)"
            )
        if not self.kept:
            return
        if standing.starts == {"earliest"}:
            missed = [key for key in before if not self.got(group, key, first)]
            for key in missed[:1]:
                self.broken(
                    f"{name((group, *key))}, confirmed at {self.confirmed[key]:.4f} s, never came: its group was asked "
                    f"for from earliest at {standing.first:.4f} s ({len(missed)} messages)"
                )
        elif standing.starts == {"earliest", "latest"}:
            old = [key for key in before if self.confirmed[key] <= standing.first]
            after = since if standing.again else -1.0
            came = [
                it.at
                for key in old
                if (group, *key) not in self.redriven
                for it in self.observed.get(group, {}).get(key, Told()).delivered
                if it.asked > after and it.n == 0
            ]
            missed = [key for key in old if not self.got(group, key, first)]
            if came and missed:
                self.broken(
                    f"{name((group, *missed[0]))} never came, and others of before its group was made did, at "
                    f"{min(came):.4f} s ({len(missed)} messages)"
                )


def standings(requests: list[Request]) -> Iterator[Standing]:
    """Yield the times in which a group stands as it was confirmed, by requests that did not fail."""
    changes = sorted((it for it in requests if it.kind in ("rewind", "delete")), key=lambda it: it.sent)
    sent = [it.sent for it in changes]
    result: dict[tuple[float, int | None], tuple[Request, list[Request]]] = {}
    for request in sorted(requests, key=lambda it: it.ended):
        if request.ended == math.inf or request.kind == "delete" or not request.shows:
            continue
        others = [it for it in changes if it is not request]
        if any(it.sent <= request.ended and it.ended >= request.sent for it in others):
            continue  # one was under way, or may be
        before = cluster([it for it in others if it.ended < request.sent])
        began = min((it.sent for it in before), default=-1.0)
        if request.kind == "rewind":
            makers = [request]
            began = request.sent
        elif not before:
            makers = [it for it in requests if it.kind in ("create", "fetch") and it.sent <= request.ended]
            if request.partition is not None and request.kind == "fetch":
                makers = [it for it in makers if it.sent <= request.ended]
        elif any(it.kind == "delete" for it in before):
            makers = [
                it for it in requests if it.kind == "create" and it.sent <= request.ended and it.ended > began
            ]
            makers += [it for it in before if it.kind == "rewind"]
        else:
            makers = [it for it in before if it.kind == "rewind"]
        key = (began, request.partition)
        if makers and key not in result:
            result[key] = request, makers
    for (began, partition), (request, makers) in result.items():
        at = bisect_right(sent, request.sent)
        until = next((it.sent for it in changes[at:] if it is not request), math.inf)
        yield Standing(
            request.ended,
            until,
            min(it.sent for it in makers),
            began >= 0.0,
            frozenset(it.start for it in makers),
            max((it.from_ms for it in makers if it.start in ("time", "latest")), default=0),
            partition,
            request.generation,
        )


def cluster(changes: list[Request]) -> list[Request]:
    """Return the last of these, and all that overlap with it or with those: any of them may have been the last."""
    result: list[Request] = []
    began = math.inf
    for it in sorted(changes, key=lambda it: -it.ended):
        if result and it.ended < began:
            break
        result.append(it)
        began = min(began, it.sent)
    return result
