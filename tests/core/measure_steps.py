"""How long the longest step of a core takes for the worst requests within limits: `python -m tests.core.measure_steps`.

Each row is a request (or what follows from one) on three cores, at the limits of core/values/limits.py. A step is what
a node does in one go, while nobody else is served; the bar is 20 ms of processor time. The best of several runs is
taken, as whatever else the machine does only adds. What is counted in calls, for tests, is in test_growth.py.
"""

from __future__ import annotations

import functools
import gc
import sys
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from quorumq.core import messages as m
from quorumq.core.node.nodecore import NodeCore
from quorumq.core.values import limits
from quorumq.core.values.types import PartitionId, ProducerId, Span, Topic
from quorumq.wire.batch import Message, encode_record, pack_sections
from tests.core.cluster import Cluster
from tests.core.steps import LETTER
from tests.core.work import answered, by_one_each, by_sections, settling, with_holes

TURNS: Final = 3
BAR_MS: Final = 20.0


class Step(NamedTuple):
    ms: float
    what: str


def quiet(**more: object) -> Cluster:
    cluster = Cluster(**{"sync_interval": 600.0, "heartbeat": 0.5, **more})  # type: ignore[arg-type]
    cluster.checks = False
    return cluster


def timed(work: Callable[[], object]) -> Step:
    """The longest step of a core in ``work``."""
    longest = Step(0.0, "none")
    step = NodeCore.step

    def watched(self: NodeCore, event: Any, *args: Any) -> Any:
        nonlocal longest
        began = time.thread_time_ns()
        made = step(self, event, *args)
        took = (time.thread_time_ns() - began) / 1e6
        if took > longest.ms:
            kinds = [
                type(getattr(getattr(it, "envelope", it), "message", getattr(it, "request", it)))
                for it in event
            ]
            longest = Step(took, ", ".join(dict.fromkeys(kind.__name__ for kind in kinds)) or "a timer")
        return made

    NodeCore.step = watched  # type: ignore[method-assign]
    gc.collect()
    gc.disable()
    try:
        work()
    finally:
        gc.enable()
        NodeCore.step = step  # type: ignore[method-assign]
    return longest


# --------------------------------------------------------------------------- what there is


def many_topics(topics: int, partitions: int = 1) -> Cluster:
    cluster = quiet()
    for number in range(topics):
        cluster.topic(f"topic-{number:05}", partitions=partitions)
    return cluster


def many_groups(groups: int, partitions: int = 1) -> tuple[Cluster, Topic]:
    cluster = quiet()
    topic = cluster.topic(partitions=partitions)
    for number in range(groups):
        answered(cluster, "a", m.SetGroup("jobs", f"g{number:05}"))
    return cluster, topic


def fetch_of(topics: tuple[str, ...], group: str = "g", most: int = limits.FETCH_MESSAGES_MAX) -> m.Fetch:
    return m.Fetch(topics, group, most, limits.FETCH_BYTES_MAX, 1, 1, 0.0, 10.0, 0.0)


def published(
    cluster: Cluster, topic: Topic, count: int, *, batches: int = 1, partition: int = 0
) -> ProducerId:
    producer_id: ProducerId = cluster.ask("a", m.OpenSession()).producer_id  # type: ignore[union-attr]
    for number in range(batches):
        cluster.ask(
            "a", m.Publish(cluster.batch(topic, producer_id, number * count, [b"x"] * count, partition))
        )
    return producer_id


# --------------------------------------------------------------------------- rows

Row = Callable[[], Callable[[], object]]
"""Makes a cluster, and what to do there."""
ROWS: dict[str, Row] = {}


def row(name: str) -> Callable[[Row], Row]:
    def keep(made: Row) -> Row:
        ROWS[name] = made
        return made

    return keep


def asking(cluster: Cluster, request: object, name: str = "a") -> Callable[[], object]:
    def work() -> None:
        key = cluster.submit(name, request)
        for _ in range(4):
            cluster.advance(0.6)
        reply = cluster.replies.get(key)
        if isinstance(reply, m.Failed) or reply is None:
            print(f"    {reply}"[:150], file=sys.stderr)

    return work


N_TOPICS: Final = 1200


@row("METADATA of 1,000 names that are not there")
def _() -> Callable[[], object]:
    cluster = many_topics(N_TOPICS)
    return asking(cluster, m.Metadata(tuple(f"tropic-{n:05}" for n in range(1000))))


@row("METADATA of 1,000 names that are there")
def _() -> Callable[[], object]:
    return asking(many_topics(N_TOPICS), m.Metadata(tuple(f"topic-{n:05}" for n in range(1000))))


@row("METADATA of 10 patterns")
def _() -> Callable[[], object]:
    return asking(many_topics(N_TOPICS), m.Metadata(tuple(f"*{n}*?" for n in range(10))))


@row("METADATA of all topics")
def _() -> Callable[[], object]:
    return asking(many_topics(N_TOPICS), m.Metadata())


@row("FETCH of 1,000 names, a new group")
def _() -> Callable[[], object]:
    return asking(many_topics(N_TOPICS), fetch_of(tuple(f"topic-{n:05}" for n in range(1000))))


@row("FETCH of 1,000 names, again")
def _() -> Callable[[], object]:
    cluster = many_topics(N_TOPICS)
    request = fetch_of(tuple(f"topic-{n:05}" for n in range(1000)))
    answered(cluster, "a", request)
    return asking(cluster, request._replace(max_wait=1.0))


@row("FETCH of 10 patterns that match all")
def _() -> Callable[[], object]:
    cluster = many_topics(N_TOPICS)
    request = fetch_of(tuple("*" * n for n in range(1, 11)))
    answered(cluster, "a", request)
    return asking(cluster, request._replace(max_wait=1.0))


@row("FETCH of a pattern with 1,024 partitions named")
def _() -> Callable[[], object]:
    cluster = many_topics(N_TOPICS)
    return asking(cluster, fetch_of(("*",))._replace(partitions=tuple(range(1024))))


@row("FETCH of 1,024 partitions, a new group")
def _() -> Callable[[], object]:
    cluster = quiet()
    cluster.topic(partitions=1024)
    return asking(cluster, fetch_of(("jobs",))._replace(max_wait=1.0))


@row("FETCH of 1,024 partitions with a message each")
def _() -> Callable[[], object]:
    cluster = quiet()
    topic = cluster.topic(partitions=1024)
    answered(cluster, "a", fetch_of(("jobs",)))
    for number in range(1024):
        published(cluster, topic, 1, partition=number)
    return asking(cluster, fetch_of(("jobs",)))


@row("PUBLISH of a message that 20 FETCHes of 1,024 partitions wait for")
def _() -> Callable[[], object]:
    cluster = quiet()
    topic = cluster.topic(partitions=1024)
    answered(cluster, "a", fetch_of(("jobs",)))
    for _ in range(20):
        cluster.submit("a", fetch_of(("jobs",))._replace(max_wait=20.0, hold_time=60.0))
    return lambda: published(cluster, topic, 1)


@row("FETCH of 1,000 names with 1,000 partitions named")
def _() -> Callable[[], object]:
    cluster = many_topics(1000)
    request = fetch_of(tuple(f"topic-{n:05}" for n in range(1000)))._replace(partitions=tuple(range(4)) * 250)
    answered(cluster, "a", request)
    return asking(cluster, request)


@row("FETCH of 65,536 messages in one batch")
def _() -> Callable[[], object]:
    cluster = quiet()
    published(cluster, cluster.topic(), 65_536)
    return asking(cluster, fetch_of(("jobs",)))


@row("FETCH of 4,096 batches of a message each")
def _() -> Callable[[], object]:
    cluster = quiet()
    published(cluster, cluster.topic(), 1, batches=4096)
    return asking(cluster, fetch_of(("jobs",)))


@row("FETCH of 1,024 sections")
def _() -> Callable[[], object]:
    cluster = quiet()
    topic = cluster.topic()
    producer_ids = sorted(cluster.ask("a", m.OpenSession()).producer_id for _ in range(1024))  # type: ignore[union-attr]
    spans = tuple(Span(producer_id, 0, 1) for producer_id in producer_ids)
    batch = pack_sections(
        PartitionId(topic.id, 0), spans, cluster.now.wall_ms, [encode_record(Message(b"x"))] * 1024
    )
    cluster.ask("a", m.Publish(batch))
    return asking(cluster, fetch_of(("jobs",)))


@row("PUBLISH of 65,536 messages")
def _() -> Callable[[], object]:
    cluster = quiet()
    topic = cluster.topic()
    answered(cluster, "a", fetch_of(("jobs",)))
    return lambda: published(cluster, topic, 65_536)


@row("PUBLISH of 1,024 sections")
def _() -> Callable[[], object]:
    cluster = quiet()
    topic = cluster.topic()
    for n in range(10):
        answered(cluster, "a", fetch_of(("jobs",), f"g{n}"))
    producer_ids = sorted(cluster.ask("a", m.OpenSession()).producer_id for _ in range(1024))  # type: ignore[union-attr]
    spans = tuple(Span(producer_id, 0, 1) for producer_id in producer_ids)
    batch = pack_sections(
        PartitionId(topic.id, 0), spans, cluster.now.wall_ms, [encode_record(Message(b"x"))] * 1024
    )
    return asking(cluster, m.Publish(batch))


@row("PUBLISH of 1,024 sections to 200 groups")
def _() -> Callable[[], object]:
    cluster, topic = many_groups(200)
    producer_ids = sorted(cluster.ask("a", m.OpenSession()).producer_id for _ in range(1024))  # type: ignore[union-attr]
    spans = tuple(Span(producer_id, 0, 1) for producer_id in producer_ids)
    batch = pack_sections(
        PartitionId(topic.id, 0), spans, cluster.now.wall_ms, [encode_record(Message(b"x"))] * 1024
    )
    return asking(cluster, m.Publish(batch))


@row("PUBLISH of one message to 200 groups")
def _() -> Callable[[], object]:
    cluster, topic = many_groups(200)
    return lambda: published(cluster, topic, 1)


@row("CREATE with 1,024 partitions")
def _() -> Callable[[], object]:
    return asking(quiet(), m.CreateTopic("jobs", 3, 1024))


@row("ALTER from 1 to 1,024 partitions, 48 groups, which is the most")
def _() -> Callable[[], object]:
    cluster, _ = many_groups(48)
    return asking(cluster, m.AlterTopic("jobs", partitions=1024))


@row("DELETE of a topic of 1,024 partitions with 10 groups")
def _() -> Callable[[], object]:
    cluster, topic = many_groups(10, 1024)
    return asking(cluster, m.DeleteTopic("jobs", topic.id))


@row("DELETE of a topic with 65,536 batches' worth: 4,096 batches")
def _() -> Callable[[], object]:
    cluster = quiet()
    topic = cluster.topic()
    published(cluster, topic, 1, batches=4096)
    return asking(cluster, m.DeleteTopic("jobs", topic.id))


@row("SetGroup on 1,024 partitions")
def _() -> Callable[[], object]:
    cluster = quiet()
    cluster.topic(partitions=1024)
    return asking(cluster, m.SetGroup("jobs", "g"))


@row("rewind on 1,024 partitions")
def _() -> Callable[[], object]:
    cluster, _ = many_groups(1, 1024)
    return asking(cluster, m.SetGroup("jobs", "g00000", rewind=True))


@row("rewind of 4,096 batches of which every second was acked")
def _() -> Callable[[], object]:
    cluster, (got,) = with_holes(8192)
    return asking(cluster, m.SetGroup("jobs", got.receipt.group, rewind=True))


@row("rewind to a time, 4,096 batches")
def _() -> Callable[[], object]:
    cluster = quiet()
    published(cluster, cluster.topic(), 1, batches=4096)
    answered(cluster, "a", m.SetGroup("jobs", "g"))
    return asking(cluster, m.SetGroup("jobs", "g", "time", cluster.now.wall_ms - 1, rewind=True))


@row("DeleteGroup of 4,096 runs")
def _() -> Callable[[], object]:
    cluster, (got,) = with_holes(8192)
    return asking(cluster, m.DeleteGroup("jobs", got.receipt.group))


@row("DeleteGroup on 1,024 partitions")
def _() -> Callable[[], object]:
    cluster, _ = many_groups(1, 1024)
    return asking(cluster, m.DeleteGroup("jobs", "g00000"))


@row("PURGE of all, 4,096 runs")
def _() -> Callable[[], object]:
    cluster, (got,) = with_holes(8192)
    return asking(cluster, m.PurgeRequest("jobs", 0, got.receipt.group))


@row("PURGE of 1,000 spans")
def _() -> Callable[[], object]:
    cluster, (got,) = with_holes(8192)
    spans = tuple(Span(got.receipt.span.producer_id, at, at + 1) for at in range(1, 2001, 2))
    return asking(cluster, m.PurgeRequest("jobs", 0, got.receipt.group, spans))


@row("PURGE of 1,000 spans that are not there")
def _() -> Callable[[], object]:
    cluster, (got,) = with_holes(8192)
    spans = tuple(Span(ProducerId("x", 1, at, 1), 0, 1 << 40) for at in range(1000))
    return asking(cluster, m.PurgeRequest("jobs", 0, got.receipt.group, spans))


def buried(count: int) -> tuple[Cluster, list[m.SpanRecord]]:
    cluster, got = by_one_each(count)
    answered(cluster, "c", m.RejectRequest(got, 0.0, LETTER))
    page: Any = answered(cluster, "a", m.BrowseRequest("jobs", 0, "g!dead", "dead", (0, 0), 256))
    found = [m.SpanRecord(item.span, item.record) for item in page.items]
    while page.cursor is not None:
        page = answered(cluster, "a", m.BrowseRequest("jobs", 0, "g!dead", "dead", page.cursor, 256))
        found += [m.SpanRecord(item.span, item.record) for item in page.items]
    return cluster, found


@row("REDRIVE of 1,000 dead letters")
def _() -> Callable[[], object]:
    cluster, found = buried(1000)
    return asking(cluster, m.RedriveRequest("jobs", 0, "g", tuple(found[:1000])))


@row("PURGE of 1,000 dead letters")
def _() -> Callable[[], object]:
    cluster, _ = buried(1000)
    return asking(cluster, m.PurgeRequest("jobs", 0, "g!dead"))


@row("PEEK of dead letters, a page")
def _() -> Callable[[], object]:
    cluster, _ = buried(1000)
    return asking(cluster, m.BrowseRequest("jobs", 0, "g!dead", "dead", (0, 0), 256))


@row("PEEK complete, a page of dead letters")
def _() -> Callable[[], object]:
    cluster, _ = buried(1000)
    request = m.BrowseRequest("jobs", 0, "g!dead", "dead", (0, 0), 256, complete=True)
    return asking(cluster, request)


@row("PEEK with nothing to show in 8,192 batches")
def _() -> Callable[[], object]:
    cluster = quiet()
    published(cluster, cluster.topic(), 1, batches=4096)
    answered(cluster, "a", m.SetGroup("jobs", "g"))
    return asking(cluster, m.BrowseRequest("jobs", 0, "g", "dead", (0, 0), 256))


@row("PEEK with nothing to show in 4,096 runs of a batch")
def _() -> Callable[[], object]:
    cluster, (got,) = with_holes(8192)
    return asking(cluster, m.BrowseRequest("jobs", 0, got.receipt.group, "dead", (0, 0), 256))


@row("PEEK complete, with nothing to show in 4,096 runs")
def _() -> Callable[[], object]:
    cluster, (got,) = with_holes(8192)
    return asking(cluster, m.BrowseRequest("jobs", 0, got.receipt.group, "dead", (0, 0), 256, complete=True))


@row("PEEK with bodies")
def _() -> Callable[[], object]:
    cluster, (got,) = with_holes(8192)
    return asking(cluster, m.BrowseRequest("jobs", 0, got.receipt.group, "all", (0, 0), 256, bodies=True))


@row("SHOW of a message with 200 groups")
def _() -> Callable[[], object]:
    cluster, topic = many_groups(200)
    producer_id = published(cluster, topic, 1)
    return asking(cluster, m.ShowRequest(PartitionId(topic.id, 0), Span(producer_id, 0, 1)))


@row("DESCRIBE of a group on 1,024 partitions")
def _() -> Callable[[], object]:
    cluster, _ = many_groups(1, 1024)
    return asking(cluster, m.DescribeGroup("jobs", "g00000"))


@row("STATUS of 1,024 partitions x 3 groups")
def _() -> Callable[[], object]:
    cluster, _ = many_groups(3, 1024)
    return asking(cluster, m.StatusRequest())


@row("LEAVE of 1,000 receipts")
def _() -> Callable[[], object]:
    cluster, got = by_one_each(1000)
    return asking(cluster, m.LeaveRequest(got))


SETTLED: Final = {
    "1,000 receipts": lambda: by_one_each(1000),
    "a receipt with 500 holes": lambda: with_holes(1000),
    "1,000 sections": lambda: by_sections(1000),
}


def settled(step: str, made: Callable[[], tuple[Cluster, tuple[m.ReceiptPart, ...]]]) -> Callable[[], object]:
    cluster, got = made()
    return asking(cluster, settling(step, got)[0])


ROWS.update(
    (f"{step} of {what}", functools.partial(settled, step, made))
    for step in ("ack", "reject", "bury", "extend")
    for what, made in SETTLED.items()
)


def main() -> None:
    wanted = [word for word in sys.argv[1:] if word != "--once"]
    for name, made in ROWS.items():
        if wanted and not any(word in name for word in wanted):
            continue
        turns = 1 if "--once" in sys.argv else TURNS
        try:
            found = min(timed(made()) for _ in range(turns))
        except Exception as error:
            print(f"{name}: {type(error).__name__}: {error}"[:200], flush=True)
            continue
        over = "  ABOVE THE BAR" if found.ms > BAR_MS else ""
        print(f"{found.ms:9.1f} ms  {name} ({found.what}){over}", flush=True)


if __name__ == "__main__":
    main()
