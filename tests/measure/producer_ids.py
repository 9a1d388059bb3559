"""Processor time of anti-entropy beside many idle producer ids: `python -m tests.measure.producer_ids`.

Three cores in one process, as tests/core/cluster.py has them: no sockets, no disks, and 5 ms from node to node. Idle
producer ids are derived ones, 1,024 in a batch, in one partition; then others publish, fetch and ack in it, one message
a request. It counts the processor time that nodes take for anti-entropy, its frames included, and for RECLAIM.
"""

from __future__ import annotations

import argparse
import gc
import random
import time
import tracemalloc
from collections import Counter, deque
from typing import Any, Final

from quorumq.core import messages as m
from quorumq.core.node.upkeep import Upkeep
from quorumq.core.values.types import DERIVED, PartitionId, ProducerId, Span, Topic
from quorumq.wire.batch import Message, encode_record, pack_spans
from quorumq.wire.codec import decode_message, encode_message
from quorumq.wire.frames import FrameReader
from tests.core.cluster import Cluster
from tests.core.steps import fetch, receipts

COMPARED: Final = (m.SyncDigests, m.SyncListed, m.SyncState, m.SyncPull)


UPKEEP: Final = {
    "anti-entropy": ("sync", "on_compared", "go_on_comparing"),
    "RECLAIM": ("reclaim", "go_on_reclaiming"),
}
"""Methods of `Upkeep` by the work that they are for."""


class Spent:
    """Seconds of processor time for upkeep, by kind, and the messages of anti-entropy."""

    def __init__(self, cluster: Cluster) -> None:
        self.seconds: Counter[str] = Counter()
        self.longest: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()
        self._inside = False
        for kind, names in UPKEEP.items():
            for name in names:
                self._count(kind, name)
        cluster.drop = self._hear

    def _count(self, kind: str, name: str) -> None:
        method = getattr(Upkeep, name)

        def counted(*args: Any, **more: Any) -> Any:
            if self._inside:
                return method(*args, **more)
            self._inside = True
            began = time.process_time()
            try:
                return method(*args, **more)
            finally:
                self._inside = False
                self._add(kind, time.process_time() - began)

        setattr(Upkeep, name, counted)

    def _hear(self, sender: str, to: str, message: object) -> bool:
        if isinstance(message, COMPARED):
            self.sent[type(message).__name__] += 1
            began = time.process_time()
            reader = FrameReader()
            reader.feed(b"".join(encode_message(message)))
            frame = reader.next_frame()
            assert frame is not None
            decode_message(frame)
            self._add("anti-entropy", time.process_time() - began)
        return False

    def _add(self, kind: str, seconds: float) -> None:
        self.seconds[kind] += seconds
        self.longest[kind] = max(self.longest[kind], seconds)

    def tell(self, label: str, nodes: int, virtual_s: float) -> None:
        """Print the time of one node in 2 s, and begin anew."""
        texts = []
        for kind in UPKEEP:
            each = 1000 * self.seconds[kind] / nodes * 2 / virtual_s
            texts.append(
                f"{kind} {each:.1f} ms of each node in 2 s, longest {1000 * self.longest[kind]:.1f} ms"
            )
        print(f"{label}: {'; '.join(texts)}; {dict(self.sent)}", flush=True)
        for counts in (self.seconds, self.longest, self.sent):
            counts.clear()


def fill(cluster: Cluster, topic: Topic, producer_ids: int) -> None:
    """A message of each of ``producer_ids`` derived producer ids."""
    record = encode_record(Message(b"x"))
    for first in range(0, producer_ids, 1024):
        numbers = range(first, min(first + 1024, producer_ids))
        spans = tuple(sorted(Span(ProducerId(DERIVED, n, 7 * n, n), 0, 1) for n in numbers))
        batch = pack_spans(PartitionId(topic.id, 0), spans, cluster.now.wall_ms, [record] * len(spans))
        assert isinstance(cluster.ask("abc"[first // 1024 % 3], m.Publish(batch)), m.PublishReply)


def work(cluster: Cluster, topic: Topic, rate: int, sessions: int, seconds: float) -> int:
    """Others publish, fetch and ack; how many messages they acked."""
    names = [cluster.ask("a", m.OpenSession()).producer_id for _ in range(sessions)]  # type: ignore[union-attr]
    cluster.delay = 0.005
    rng, counts, acked = random.Random(1), Counter[ProducerId](), 0
    waiting: deque[int] = deque()
    for turn in range(int(seconds * 20)):
        for _ in range(rate // 20):
            producer_id = rng.choice(names)
            batch = cluster.batch(topic, producer_id, counts[producer_id], [b"x"])
            counts[producer_id] += 1
            cluster.submit(rng.choice("abc"), m.Publish(batch))
            cluster.advance(1 / rate)
        while waiting and waiting[0] in cluster.replies:
            got = receipts(cluster.replies[waiting.popleft()])
            acked += sum(item.receipt.span.size for item in got)
            if got:
                cluster.submit("b", m.AckRequest(got))
        waiting.append(cluster.submit("abc"[turn % 3], fetch("g", most=1000, wait=1.0)))
    return acked


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--producer-ids", type=int, default=250_000)
    parser.add_argument("--rate", type=int, default=1000, help="messages a second of others")
    parser.add_argument("--sessions", type=int, default=100, help="that they are published by")
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument(
        "--begin", default="latest", choices=("latest", "earliest"), help="where the group begins"
    )
    parser.add_argument("--memory", action="store_true", help="tell bytes a producer id instead")
    args = parser.parse_args()
    cluster = Cluster(sync_interval=2.0)
    cluster.checks = False
    topic = cluster.topic()
    fill(cluster, topic, args.producer_ids)
    if args.memory:
        tracemalloc.start()
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        for core in cluster.nodes.values():
            core.replicas[PartitionId(topic.id, 0)].sync.renew()
        gc.collect()
        digests = (tracemalloc.get_traced_memory()[0] - before) / 3 / args.producer_ids
        print(f"{digests:.0f} bytes of digests for each producer id, for the first of its tables")
        return
    spent = Spent(cluster)
    cluster.advance(20.0)
    spent.tell(f"made anew after {args.producer_ids} producer ids came", 3, 20.0)
    cluster.advance(20.0)
    spent.tell("idle", 3, 20.0)
    cluster.ask("a", m.SetGroup("jobs", "g", args.begin), 60.0, of=m.GroupReply)
    spent.tell(f"a group began from {args.begin}", 3, 60.0)
    acked = work(cluster, topic, args.rate, args.sessions, args.seconds)
    spent.tell(f"{args.rate} messages a second of {args.sessions} sessions, {acked} acked", 3, args.seconds)


if __name__ == "__main__":
    main()
