"""Cost of a message when nothing waits: three cores, the real codec and journal, in one process.

There is no socket, no second process and no loop: a frame is handed over as soon as it is encoded, and a commit is over
when it begins, so that what is left is work. It is counted exactly (core steps, messages between nodes, commits, calls
of Python functions), and timed by layer, each without what it calls in another: `python -m tests.measure.hot`.
"""

from __future__ import annotations

import cProfile
import json
import os
import random
import statistics
import tempfile
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import click

import quorumq
from quorumq.core import messages as m
from quorumq.core.cluster.state import NodeConfig
from quorumq.core.messages.effects import LinkUp, Raised, Received, Request, Restart, SendStored, Stop
from quorumq.core.messages.records import JournalRecord
from quorumq.core.node.nodecore import NodeCore
from quorumq.core.values.types import NodeId, Now, PartitionId, ProducerId, Span
from quorumq.driver import Driver
from quorumq.lab.bench_ledger import VerificationFailed
from quorumq.storage.disk import RealDisk
from quorumq.storage.journal import Journal
from quorumq.wire.batch import encode_records, pack_spans
from quorumq.wire.codec import decode_message, encode_message, open_request, signed_items
from quorumq.wire.frames import FrameReader
from quorumq.wire.receipts import sign_fetched
from quorumq.wire.values import SignedNamed, WireSlice

SIZES: Final = (1, 55, 500)
"""Messages in a batch."""

NODES: Final = ("n1", "n2", "n3")
KEYS: Final = {0: b"the secret of this benchmark"}
PACKAGE: Final = str(Path(quorumq.__file__).parent)
Result = TypeVar("Result")


class Meter:
    """Time by layer, and the counts."""

    def __init__(self) -> None:
        self.ns: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self._layer = "other"
        self._since = time.perf_counter_ns()

    def _switch(self, layer: str) -> str:
        now = time.perf_counter_ns()
        self.ns[self._layer] += now - self._since
        self._since = now
        before, self._layer = self._layer, layer
        return before

    def timed(
        self, layer: str, function: Callable[..., Result], *args: Any, count: str = "", **more: Any
    ) -> Result:
        """Call ``function``; its time is the layer's, calls of another layer aside."""
        before = self._switch(layer)
        try:
            return function(*args, **more)
        finally:
            self._switch(before)
            if count:
                self.counts[count] += 1

    def take(self) -> tuple[dict[str, int], dict[str, int]]:
        """Return counts, and nanoseconds by layer, since this was called last."""
        self._switch(self._layer)
        taken = dict(self.counts), dict(self.ns)
        self.counts.clear()
        self.ns.clear()
        return taken


class Unsynced(RealDisk):
    """A directory whose files are written and not synced: how long the disk takes is another matter."""

    def sync(self, file: int) -> None:
        """At once."""


class HotNode:
    """One node: the `Port` and the `Journal` of its driver."""

    needs_sync = property(lambda self: self.store.needs_sync)
    durable = property(lambda self: self.store.durable)
    position = property(lambda self: self.store.position)

    def __init__(self, cluster: HotCluster, name: NodeId, directory: Path) -> None:
        self.cluster = cluster
        self.name = name
        rng = random.Random(name)
        self.store = Journal.open(
            Unsynced(directory),
            node=name,
            cluster_id="hot",
            new_directory_id=lambda: rng.getrandbits(64) or 1,
        )
        # All are asked at once, so that all that an operation costs is in its own time.
        config = NodeConfig(node=name, nodes=NODES, cluster_id="hot", hold_time_max=60.0)
        self.core = NodeCore(
            config, self.store.replayed, nonce=rng.getrandbits(64), directory=self.store.directory,
            now=self.now(), rng=rng, location=self.store.location,
        )  # fmt: skip
        self.store.roll(lambda: self.core.snapshot(self.now()))
        self.store.commit()
        self.core.take_position(self.store.position)
        step, meter = self.core.step, cluster.meter
        self.core.step = lambda *args: meter.timed("core", step, *args, count="steps")  # type: ignore[method-assign]
        self.driver = Driver(self.core, self, cast("Any", self), rng)
        self.reader = FrameReader()

    # ------------------------------------------------------------------------- port

    def now(self) -> Now:
        return Now(self.cluster.time, int(1.7e12 + 1000 * self.cluster.time))

    def send(self, to: NodeId, message: m.PeerMessage) -> None:
        stamp = self.core.state.clock.value
        chunks = self.cluster.meter.timed("codec", encode_message, message, stamp=stamp, count="messages")
        self.cluster.underway.append((self.name, to, b"".join(chunks)))

    def send_stored(self, effect: SendStored) -> None:
        raise AssertionError("nobody lacks anything here")

    def reply(self, key: int, reply: m.ClientReply) -> None:
        self.cluster.replies[key] = reply

    def kept(self, records: tuple[JournalRecord, ...]) -> None:
        pass

    def end(self, effect: Stop | Restart) -> None:
        raise VerificationFailed(f"node {self.name} ended: {effect}")

    def raised(self, effect: Raised) -> None:
        raise effect.error

    def flush(self) -> None:
        pass

    # ---------------------------------------------------------------------- journal

    def append(self, records: tuple[JournalRecord, ...]) -> int:
        return self.cluster.meter.timed("journal", self.store.append, records)

    def drop(self, numbers: tuple[int, ...]) -> None:
        self.store.drop(numbers)

    def begin_sync(self, here: bool) -> None:
        meter, store = self.cluster.meter, self.store
        commit = meter.timed("journal", store.begin_commit, count="commits")
        meter.timed("write", commit.run)
        meter.timed("journal", store.finish, commit)
        self.driver.synced()


class HotCluster:
    """Three nodes and one client; the nodes' journals are in ``directory``."""

    def __init__(self, directory: Path) -> None:
        self.meter = Meter()
        self.time = 100.0
        self.underway: deque[tuple[NodeId, NodeId, bytes]] = deque()
        self.replies: dict[int, m.ClientReply] = {}
        self.nodes = {name: HotNode(self, name, directory / name) for name in NODES}
        self._keys = 0
        for node in self.nodes.values():
            node.driver.start()
        for name in NODES:
            for peer in NODES:
                if peer != name:
                    welcome = self._ask(peer, self.nodes[name].core.hello(self.nodes[name].now()))
                    assert isinstance(welcome, m.Welcome)
                    up = LinkUp(
                        peer, welcome.incarnation, welcome.stamp, welcome.seen,
                        welcome.position, welcome.position_by,
                    )  # fmt: skip
                    self.nodes[name].driver.feed(up)
        self._run()
        self.topic = cast("m.TopicReply", self._ask("n1", m.CreateTopic("jobs"))).topic
        self.producer_id: ProducerId = cast(
            "m.OpenSessionReply", self._ask("n1", m.OpenSession())
        ).producer_id
        self.seq = 0

    def close(self) -> None:
        """End; the directories stay."""
        for node in self.nodes.values():
            node.store.abandon()

    def _run(self) -> None:
        while self.underway:
            sender, to, data = self.underway.popleft()
            node = self.nodes[to]
            decoded = self.meter.timed("codec", self._decode, node.reader, data)
            mine, theirs = node.core.state.incarnation, self.nodes[sender].core.state.incarnation
            envelope = m.Envelope(sender, theirs, to, mine, decoded.stamp, cast("Any", decoded.message))
            node.driver.feed(Received(envelope))

    @staticmethod
    def _decode(reader: FrameReader, data: bytes) -> Any:
        reader.feed(data)
        return decode_message(next(iter(reader)))

    def _ask(self, name: NodeId, request: Any) -> m.ClientReply:
        self._keys += 1
        self.nodes[name].driver.feed(Request(self._keys, request))
        self._run()
        return self.replies.pop(self._keys)

    def ask(self, name: NodeId, request: Any) -> Any:
        """Pass a client's request there, and the reply back, over the wire as they are."""
        self.time += 0.001
        node, timed = self.nodes[name], self.meter.timed
        data = b"".join(timed("client", encode_message, request, request=1))
        taken = timed("codec", self._decode, FrameReader(), data).message
        reply: Any = self._ask(name, timed("codec", open_request, taken, keys=KEYS))
        if isinstance(reply, m.FetchReply):
            reply = timed("codec", sign_fetched, reply, secret=KEYS[0])
        data = b"".join(timed("codec", encode_message, reply, request=1, stamp=1, read=self._reader(node)))
        return timed("client", self._decode, FrameReader(), data).message

    def _reader(self, node: HotNode) -> Callable[[m.Slice], bytes | memoryview]:
        def read(part: m.Slice) -> bytes | memoryview:
            start, stop = part.header.end_of(part.first - 1), part.header.end_of(part.stop - 1)
            return self.meter.timed("journal", node.store.read_slice, part.batch, start, stop, check=False)

        return read

    # --------------------------------------------------------------------- what is measured

    def publish(self, payloads: Sequence[bytes]) -> None:
        """Publish one batch, as a producer makes it."""
        batch = self.meter.timed(
            "client", lambda: pack_spans(
                PartitionId(self.topic.id, 0), (Span(self.producer_id, self.seq, self.seq + len(payloads)),), 0,
                encode_records(payloads),
            )
        )  # fmt: skip
        self.seq += len(payloads)
        reply = self.ask("n1", m.Publish(batch))
        if not isinstance(reply, m.PublishReply):
            raise VerificationFailed(f"a publish was answered with {reply}")

    def fetch(self, payloads: Sequence[bytes]) -> list[SignedNamed]:
        """Fetch as many messages as were published; return their receipts."""
        fetch = m.Fetch(
            topics=("jobs",), group="g", max_messages=len(payloads), max_bytes=1 << 23, min_messages=1,
            max_wait=0.0, hold_time=20.0, sent_at=0.0,
        )  # fmt: skip
        parts: Sequence[WireSlice] = self.ask("n1", fetch).slices
        received = self.meter.timed(
            "client", lambda: [one.payload for part in parts for one in part.messages()]
        )
        if received != payloads:
            raise VerificationFailed(
                f"{len(received)} messages were delivered, and not those that were published"
            )
        return [SignedNamed(delivery.signed, ()) for part in parts for delivery in part.deliveries]

    def ack(self, items: Iterable[SignedNamed]) -> None:
        """Through another node, as a client that lost its connection would."""
        reply = self.ask("n2", m.AckRequest(signed_items(items)))
        if {verdict.outcome for verdict in reply.verdicts} != {"acked"}:
            raise VerificationFailed(f"an ack was answered with {reply}")


def measure(
    turns: Mapping[int, int], size: int, *, profiler: cProfile.Profile | None = None
) -> list[dict[str, Any]]:
    """Measure batches by operation. ``turns``: for each number of messages in a batch, the number of measurements.

    Returns:
        rows with ``messages``, ``operation``, ``us`` (the median by layer) and ``counts`` (of the last turn, exact).
    """
    results = []
    with tempfile.TemporaryDirectory(prefix="quorumq-hot-") as folder:
        cluster = HotCluster(Path(folder))
        try:
            for messages, repeats in turns.items():
                rows: dict[str, list[tuple[dict[str, int], dict[str, int]]]] = {}
                for _ in range(repeats):
                    payloads = [os.urandom(size) for _ in range(messages)]
                    items: list[SignedNamed] = []
                    steps: dict[str, Callable[[], Any]] = {
                        "publish": lambda payloads=payloads: cluster.publish(payloads),  # type: ignore[misc]
                        "fetch": lambda payloads=payloads, items=items: items.extend(cluster.fetch(payloads)),  # type: ignore[misc]
                        "ack": lambda items=items: cluster.ack(items),  # type: ignore[misc]
                    }
                    for name, step in steps.items():
                        cluster.meter.take()
                        if profiler is not None:
                            profiler.enable()
                        try:
                            step()
                        finally:
                            if profiler is not None:
                                profiler.disable()
                        rows.setdefault(name, []).append(cluster.meter.take())
                for name, taken in rows.items():
                    layers = sorted({layer for _, ns in taken for layer in ns})
                    us = {
                        layer: round(statistics.median(ns.get(layer, 0) for _, ns in taken) / 1000, 1)
                        for layer in layers
                    }
                    results.append(
                        {"messages": messages, "operation": name, "us": us, "counts": taken[-1][0]}
                    )
        finally:
            cluster.close()
    return results


def calls_by_file(profiler: cProfile.Profile, messages: int) -> list[dict[str, Any]]:
    """Return calls of Python functions a message, and µs in them while they were counted, by file; most calls first."""
    calls: Counter[str] = Counter()
    seconds: dict[str, float] = defaultdict(float)
    for entry in profiler.getstats():
        name = getattr(entry.code, "co_filename", "")
        if name.startswith(PACKAGE):
            path = name.removeprefix(PACKAGE + os.sep)
        elif name.startswith("<quorumq"):
            path = "wire (generated)"
        else:
            continue
        calls[path] += entry.callcount
        seconds[path] += entry.inlinetime
    return [
        {"file": path, "calls": round(count / messages, 3), "us": round(seconds[path] / messages * 1e6, 3)}
        for path, count in calls.most_common()
    ]


@click.command()
@click.option("--turns", default=40, show_default=True, help="How often each batch is measured.")
@click.option("--size", default=1024, show_default=True, help="Bytes of a message.")
@click.option("--profile", "batch", default=0, help="Count calls by file, in batches of this many messages.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(turns: int, size: int, batch: int, as_json: bool) -> None:
    """Print the cost of a batch of 1, 55 and 500 messages for three nodes and their client, by layer."""
    profiler = cProfile.Profile(builtins=False) if batch else None
    rows = measure({batch: turns} if batch else dict.fromkeys(SIZES, turns), size, profiler=profiler)
    if profiler is not None:
        rows = calls_by_file(profiler, batch * turns)
    if as_json:
        click.echo(json.dumps({"size": size, "turns": turns, "rows": rows}))
        return
    for row in rows:
        click.echo("  ".join(f"{name} {value}" for name, value in row.items()))


if __name__ == "__main__":
    main()
