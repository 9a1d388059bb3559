"""Counters of a node, as Prometheus reads them.

If all partitions were read in one go, other work would wait. So a page is made of chunks, and between two of them
others are served. A page is made at most once a second, even if more ask. A bounded number of topics and groups have
rows of their own. If there are more, they are summed up in a row named "other", so that a page is never too big.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import trio
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from quorumq.core.node.status import moves, page
from quorumq.core.requests.leaving import why
from quorumq.core.values.latency import Latency
from quorumq.core.values.types import MemberState
from quorumq.node.health import COUNTS
from quorumq.node.node import Node

FRESH_S: Final = 1.0
"""Seconds for which a page is given again."""

GROUPS_MAX: Final = 200
"""Most groups that have rows of their own, over all topics; and most topics."""

OTHER: Final = "other"
OF_TOPIC: Final = {
    "messages": "Messages whose payload is here.",
    "missing": "Messages that are known here, and whose payload is not.",
    "lost": "Missing messages that no replica has.",
}
OF_GROUP: Final = {
    "available": ("ready", "Messages that could be delivered now."),
    "suspects": ("suspects", "Of the messages that could be delivered now, those that come in lots."),
    "dying": ("dying", "Messages that are out of deliveries and no dead letters yet."),
    "held": ("held", "Messages that a consumer holds."),
    "delayed": ("delayed", "Messages that are not due."),
    "dead": ("dead", "Dead letters."),
    "dropped": ("dropped", "Messages that expired, since the node started, where their topic drops such."),
}
CONTENT_TYPE: Final = CONTENT_TYPE_LATEST


@dataclass(eq=False)
class Table:
    """Sums for topics and groups; a bounded number of them have rows of their own."""

    topics: dict[tuple[str, ...], dict[str, float]] = field(default_factory=dict)  # by topic
    groups: dict[tuple[str, ...], dict[str, float]] = field(default_factory=dict)  # by topic and group
    left_out: int = 0  # rows of partitions that went into "other"

    def add(self, rows: Iterable[dict[str, Any]]) -> None:
        for row in rows:
            sums = self._row(self.topics, (row["topic"],))
            for name in OF_TOPIC:
                sums[name] = sums.get(name, 0) + row[name]
            for group, fields in row["groups"].items():
                sums = self._row(self.groups, (row["topic"], group))
                for name in OF_GROUP:
                    sums[name] = sums.get(name, 0) + fields[name]
                for name in ("oldest_s", "per_second"):
                    sums[name] = max(sums.get(name, 0), fields[name] or 0)

    def _row(self, rows: dict[tuple[str, ...], dict[str, float]], key: tuple[str, ...]) -> dict[str, float]:
        if key not in rows and len(rows) >= GROUPS_MAX:
            self.left_out += 1
            key = (OTHER,) * len(key)
        return rows.setdefault(key, {})


class Metrics:
    """Makes pages."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._made = float("-inf")
        self._page = b""
        self._lock = trio.Lock()

    async def page(self) -> bytes:
        """Return the page, at most a second old."""
        async with self._lock:
            if trio.current_time() >= self._made + FRESH_S:
                table = await self._look()
                self._page = generate_latest(Families(self._node, table))
                self._made = trio.current_time()
            return self._page

    async def _look(self) -> Table:
        node, table = self._node, Table()
        rows, more = page(node.core.context, node.clock())
        table.add(rows)
        while more is not None:
            await trio.lowlevel.checkpoint()
            rows, more = page(node.core.context, node.clock(), more)
            table.add(rows)
        return table


class Families(NamedTuple):
    """Collector that Prometheus asks for the families of a page."""

    node: Node
    table: Table

    def collect(self) -> Iterable[Metric]:
        yield from self._of_node()
        yield from self._of_traffic()
        yield from self._of_groups()

    def _of_node(self) -> Iterable[Metric]:
        node = self.node
        state, health = node.core.state, node.health
        yield gauge("up", "1 once the node runs.", 1)
        yield gauge("ready", "1 where /ready says yes.", not not_ready(node))
        yield gauge("links", "Peers that are connected.", len(state.links))
        yield gauge("connections", "Connections that were accepted.", health.connections)
        yield gauge("clients", "Connections of clients.", health.clients)
        yield gauge("inflight_bytes", "Bytes of requests that are not answered.", node.intake.inflight_bytes)
        yield gauge("disk_free_bytes", "Free bytes of the disk.", node.store.free_bytes)
        yield gauge("disk_full", "1 where publishes are refused for it.", state.disk_full)
        yield gauge("memory_full", "1 where publishes are refused for memory.", bool(state.memory_full))
        yield gauge("resident_bytes", "Memory of the process.", health.rss())
        yield gauge("batches", "Batches on disk.", len(node.store))
        yield from self._of_moves()
        remaining_s = health.certificate_left()
        if remaining_s is not None:
            yield gauge(
                "certificate_expires_seconds", "Seconds until the node's certificate ends.", remaining_s
            )
        for name, text in COUNTS.items():
            yield CounterMetricFamily(f"quorumq_{name}", text, value=health.counts[name])

    def _of_moves(self) -> Iterable[Metric]:
        rows = list(moves(self.node.core.context, self.node.clock()))
        copies = [progress for _, progress in rows]
        yield gauge("moves", "Moves of partitions that wait for something here.", len(rows))
        messages = sum(copy.messages_left or 0 for copy in copies)
        yield gauge(
            "moves_messages_left", "Messages of moves from here that a replica still lacks.", messages
        )
        rate = sum(copy.messages_per_s or 0 for copy in copies)
        yield gauge("moves_messages_per_second", "Messages of moves from here that are copied.", rate)
        seconds = max((copy.seconds_left or 0 for copy in copies), default=0)
        yield gauge("moves_seconds_left", "Seconds until the last move from here is copied.", seconds)

    def _of_traffic(self) -> Iterable[Metric]:
        traffic = self.node.traffic
        requests = CounterMetricFamily(
            "quorumq_requests", "Answered requests of clients.", labels=("kind", "code")
        )
        for (kind, code), count in traffic.requests.items():
            requests.add_metric((kind, code), count)
        yield requests
        for name, counts, text in (
            ("messages", traffic.messages, "Messages of clients, by what became of them here."),
            ("bytes", traffic.bytes, "Bytes of the records of messages."),
        ):
            family = CounterMetricFamily(f"quorumq_{name}", text, labels=("kind",))
            for kind, count in counts.items():
                family.add_metric((kind,), count)
            yield family
        yield histogram("fsync_seconds", "Times of fsyncs of the journal.", {(): traffic.fsyncs}, ())
        times: dict[tuple[str, ...], Latency] = {
            (kind,): durations for kind, durations in traffic.times.items()
        }
        yield histogram("request_seconds", "Times of requests until their answer.", times, ("kind",))
        holds = self.node.core.context.hold_times
        yield histogram("hold_reply_seconds", "Times of peers until their answer to a HOLD.", {(): holds}, ())
        p99 = holds.p99()
        if p99 is not None:
            yield gauge("hold_reply_p99_seconds", "How long peers take to answer a HOLD.", p99)

    def _of_groups(self) -> Iterable[Metric]:
        table = self.table
        for name, text in OF_TOPIC.items():
            family = GaugeMetricFamily(f"quorumq_topic_{name}", text, labels=("topic",))
            for key, sums in table.topics.items():
                family.add_metric(key, sums[name])
            yield family
        shown = {
            **OF_GROUP,
            "oldest_s": ("oldest_seconds", "Age of the oldest that is to be delivered."),
            "per_second": ("limit", "Deliveries a second to which the group is limited; 0 for no limit."),
        }
        for name, (called, text) in shown.items():
            family = GaugeMetricFamily(f"quorumq_group_{called}", text, labels=("topic", "group"))
            for key, sums in table.groups.items():
                family.add_metric(key, sums[name])
            yield family
        yield gauge("rows_left_out", 'Rows of partitions that are summed up as "other".', table.left_out)


def gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"quorumq_{name}", text, value=float(value))


def histogram(
    name: str, text: str, times: Mapping[tuple[str, ...], Latency], labels: tuple[str, ...]
) -> Metric:
    """Return a histogram of durations, by labels."""
    family = HistogramMetricFamily(f"quorumq_{name}", text, labels=labels)
    for key, durations in times.items():
        family.add_metric(key, durations.up_to(), durations.seconds)
    return family


def not_ready(node: Node) -> str:
    """Return the reason, in a few words, if the node is of no use to clients now; else ""."""
    state, trust = node.core.state, node.core.trust
    if node.silent or node.intake.paused:
        return "stopping"
    if not state.trusted:
        return "not trusted: it " + ("resyncs" if trust.resync is not None else "waits for other nodes")
    if state.standing != MemberState.JOINED:
        return why(state)
    remaining_s = node.core.context.quarantine_left(node.clock())
    if remaining_s > 0:
        return f"in quarantine for {remaining_s:.1f} s"
    voters = state.catalogue.cluster.voters
    linked, needed = sum(it == state.me or it in state.links for it in voters), len(voters) // 2 + 1
    return "" if linked >= needed else f"{linked} of {len(voters)} nodes linked, {needed} are needed"
