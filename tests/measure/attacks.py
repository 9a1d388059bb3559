"""Effects of each attack on a well-behaved client: `python -m tests.measure.attacks`.

Three processes, and one client that publishes, fetches and acks one small message after another. Its p99 is taken alone
and beside each attack, in turns, each attack from a process and an address of its own. The `FLOODS` go at full pace,
the others at 20 requests a second. Besides the time, the processor time that the node took in each cycle is counted:
it does not depend on how busy the machine is. The bar: three times the p99 alone at most. No test: machines are too
noisy for it.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from quorumq.core import messages as m
from quorumq.core.values import limits
from quorumq.core.values.types import Kind, Letter, PartitionId, ProducerId, Record, Span, Stamp
from quorumq.lab.local import LocalCluster
from quorumq.wire import cbor
from quorumq.wire.codec import TYPE_OF, encode_message
from quorumq.wire.frames import MAGIC
from tests.e2e.raw import Raw, client_hello, publish, receipts

SECONDS: Final = 6.0
TURNS: Final = 3
PAUSE_S: Final = 0.05
NAMES: Final = 1000

Attack = Callable[[str], Iterator[object]]
"""Attacks the node at an address, a little with each step."""


def frame(header: bytes, body: int = 0) -> bytes:
    return MAGIC + len(header).to_bytes(4, "big") + body.to_bytes(4, "big") + header


def asking(request: object) -> Attack:
    """The same request again and again."""

    def attack(address: str) -> Iterator[object]:
        with Raw(address) as raw:
            while True:
                yield raw.ask(request)

    return attack


def crowding(make: Callable[[int], object], count: int = 100) -> Attack:
    """``count`` requests at once on one connection, of a topic of 1,024 partitions or of nothing."""

    def attack(address: str) -> Iterator[object]:
        with Raw(address, timeout=60.0) as raw:
            raw.topic("wide", partitions=limits.PARTITIONS_MAX)
            while True:
                numbers = [raw.send(make(at)) for at in range(count)]
                yield [raw.receive(number) for number in numbers]

    return attack


def sending(data: bytes) -> Attack:
    """Bytes that a node hangs up on."""

    def attack(address: str) -> Iterator[object]:
        while True:
            with contextlib.suppress(OSError), Raw(address, hello=False) as raw:
                raw.sock.sendall(data)
                yield raw.is_closed(1.0)

    return attack


def flipped(address: str) -> Iterator[object]:
    """Valid frames with a bit changed."""
    rng = random.Random(7)
    hello = b"".join(encode_message(client_hello(), request=1))
    data = b"".join(encode_message(FETCH, request=2))
    while True:
        with contextlib.suppress(OSError), Raw(address, hello=False) as raw:
            bent = bytearray(data)
            bent[rng.randrange(12, len(bent))] ^= 1 << rng.randrange(8)
            raw.sock.sendall(hello + bytes(bent))
            yield raw.reader.feed(raw.sock.recv(1 << 16))


def half_frames(address: str) -> Iterator[object]:
    """Prefixes that announce 16 MiB, on a hundred connections, and no more."""
    with contextlib.ExitStack() as stack:
        while True:
            for _ in range(100):
                raw = stack.enter_context(Raw(address))
                raw.sock.sendall(MAGIC + (4).to_bytes(4, "big") + (16 * limits.MIB - 100).to_bytes(4, "big"))
                yield None
            stack.close()


def idle(address: str) -> Iterator[object]:
    """Open as many silent connections as one address may have."""
    with contextlib.ExitStack() as stack:
        for number in range(1400):
            with contextlib.suppress(OSError):
                stack.enter_context(Raw(address, hello=number % 2 == 0))
            if number % 20 == 0:
                yield None
        while True:
            yield None


def deaf(address: str) -> Iterator[object]:
    """Asks and never reads."""
    while True:
        with contextlib.suppress(OSError), Raw(address) as raw:
            raw.sock.settimeout(0.5)
            for _ in range(200):
                raw.send(m.Metadata())
                yield None


def settling(make: Callable[[tuple[m.ReceiptPart, ...]], object]) -> Attack:
    """A thousand deliveries of one message each, settled, or named again, in one request."""

    def attack(address: str) -> Iterator[object]:
        with Raw(address) as raw:
            topic = raw.topic(f"victim-{os.getpid()}")
            producer_id, seq = raw.session(), 0
            while True:
                raw.publish(topic, producer_id, seq, [b"x"] * 200)
                seq += 200
                got: list[Any] = []
                for _ in range(200):
                    reply = raw.ask(FETCH._replace(topics=(topic.name,), max_messages=1))
                    got += receipts(reply) if isinstance(reply, m.FetchReply) else []
                yield raw.ask(make(tuple(got)))

    return attack


FETCH: Final = m.Fetch(("jobs",), "g", 100, limits.FETCH_BYTES_MAX, 1, 1, 0.0, 5.0, 0.0)
WAITING: Final = FETCH._replace(max_messages=1, max_wait=10.0)
DEATH: Final = Letter(Stamp(0, ""), "rejected", "ValueError", "x" * 2000, "y" * 2000)
LAST: Final = m.SpanRecord(Span(ProducerId("a", 1, 1, 1), 0, 1), Record(0, limits.NUMBERS_END - 1, Kind.DEAD))
WIDE: Final = FETCH._replace(topics=("wide",))
ANY: Final = PartitionId(b"x" * 16, 0)
MAPS: Final = cbor.array_head(2) + cbor.uint(TYPE_OF[m.Metadata]) + cbor.array_head(60_000) + b"\xa0" * 60_000


def busy(pauses: float) -> Attack:
    """No attack: a processor is used for something else, much longer than a pause; the attackers read answers."""

    def attack(address: str) -> Iterator[object]:
        while True:
            end = time.thread_time() + pauses * PAUSE_S
            while time.thread_time() < end:
                pass
            yield None

    return attack


def waiting(address: str) -> Iterator[object]:
    """Twenty connections, each with 60 small FETCHes that wait, over 50 groups, sent again each half second."""
    with contextlib.ExitStack() as stack:
        raws = [stack.enter_context(Raw(address, source=SOURCE)) for _ in range(20)]
        raws[0].ask(m.CreateTopic("jobs"))
        for raw in raws:
            raw.sock.settimeout(0.0)
        while True:
            for raw in raws:
                with contextlib.suppress(OSError):
                    for at in range(60):
                        raw.send(WAITING._replace(group=f"w{at % 50}"))
                with contextlib.suppress(OSError):
                    while raw.sock.recv(1 << 16):
                        pass
            yield time.sleep(0.5)


def flooding(make: Callable[[Raw], Callable[[int], object]], in_flight: int) -> Attack:
    """``in_flight`` requests of a kind under way at any time, on one connection."""

    def attack(address: str) -> Iterator[object]:
        with Raw(address, timeout=60.0, source=SOURCE) as raw:
            request = make(raw)
            sent = [raw.send(request(at)) for at in range(in_flight)]
            for at in itertools.count(in_flight):
                yield raw.receive(sent.pop(0))
                sent.append(raw.send(request(at)))

    return attack


def big_batches(raw: Raw) -> Callable[[int], object]:
    topic, producer_id = raw.topic(f"big-{os.getpid()}"), raw.session()
    payload = os.urandom(limits.MESSAGE_BYTES_MAX - 1000)
    return lambda at: publish(topic, producer_id, 4 * at, [payload] * 4)


def forged(raw: Raw) -> Callable[[int], object]:
    topic, producer_id = raw.topic(f"forged-{os.getpid()}"), raw.session()
    raw.publish(topic, producer_id, 0, [b"x"])
    (item,) = receipts(raw.ask(FETCH._replace(topics=(topic.name,), max_wait=1.0)))
    bent = item._replace(signed=item.signed[:-1] + bytes([item.signed[-1] ^ 1]))
    return lambda at: m.AckRequest((bent,) * 800)


def churning(raw: Raw) -> Callable[[int], object]:
    made: list[Any] = []

    def request(at: int) -> object:
        if made:
            return m.DeleteTopic(made[0].name, made.pop().id)
        made.append(raw.topic(f"churn-{os.getpid()}-{at % 64}", partitions=64))
        return m.Metadata(("jobs",))

    return request


def browsing(raw: Raw) -> Callable[[int], object]:
    topic, producer_id = raw.topic(f"browsed-{os.getpid()}"), raw.session()
    for at in range(200):
        raw.publish(topic, producer_id, at, [b"x" * 1000])
    raw.ask(FETCH._replace(topics=(topic.name,), max_messages=1, max_wait=1.0))
    return lambda at: m.BrowseRequest(topic.name, 0, "g", "all", (0, 0), 256, complete=True)


SOURCE: Final = "127.0.0.2"
"""The attackers' address: they are another client than the one whose p99 is taken."""

FLOODS: Final[dict[str, Attack]] = {
    "S10 1,200 small FETCHes wait": waiting,
    "S10 2 batches of 4 MB in flight": flooding(big_batches, 2),
    "S10 16 FETCHes of 1,000 names in flight": flooding(
        lambda raw: lambda at: FETCH._replace(topics=tuple(f"none{n}" for n in range(NAMES))), 16
    ),
    "S10 4 ACKs of 800 forged receipts in flight": flooding(forged, 4),
    "S10 topics of 64 partitions, made and deleted": flooding(churning, 1),
    "S10 16 SetGroups in flight": flooding(lambda raw: lambda at: m.SetGroup("jobs", f"s{at % 900}"), 16),
    "S10 4 BROWSEs complete in flight": flooding(browsing, 4),
    "S10 64 publishes of a small message in flight": flooding(
        lambda raw: small_publishes(raw.topic(f"small-{os.getpid()}"), raw.session()), 64
    ),
}


def small_publishes(topic: Any, producer_id: Any) -> Callable[[int], object]:
    return lambda at: publish(topic, producer_id, at, [b"x"])


ATTACKS: Final[dict[str, Attack]] = {
    **FLOODS,
    "for comparison: a quarter of a processor": busy(1 / 3),
    "for comparison: nine tenths of a processor": busy(9.0),
    "L4 REDRIVE at the last n": asking(m.RedriveRequest("jobs", 0, "g", (LAST,))),
    "L6 half frames of 16 MiB": half_frames,
    "L7 ACK of 200 receipts": settling(m.AckRequest),
    "L7 EXTEND of 200 receipts": settling(lambda got: m.ExtendRequest(got, 5.0, 0.0)),
    "L8 REJECT of 200 receipts with a letter": settling(lambda got: m.RejectRequest(got, 0.0, DEATH)),
    "L7 FETCH of 1,000 names, twice each": asking(FETCH._replace(topics=("jobs",) * NAMES)),
    "L7 FETCH of 10 patterns": asking(FETCH._replace(topics=tuple("*" * n for n in range(1, 11)))),
    "L7 METADATA of 1,000 names": asking(m.Metadata(tuple(f"job{n}" for n in range(NAMES)))),
    "L7 METADATA of 10 patterns": asking(m.Metadata(tuple(f"*{n}*?" for n in range(10)))),
    "L7 a header of empty maps": sending(b"".join(encode_message(client_hello(), request=1)) + frame(MAPS)),
    "L7 CLOSE in 1,024 partitions": asking(
        m.CloseSession(ProducerId("a", 1, 1, 1), tuple(PartitionId(ANY.topic, n) for n in range(1024)))
    ),
    "L7 STATUS": asking(m.StatusRequest()),
    "L9 idle and mute connections": idle,
    "frames with a bit changed": flipped,
    "noise": sending(random.Random(7).randbytes(4096)),
    "asks and never reads": deaf,
    "L7 100 METADATA of 1,000 names at once": crowding(
        lambda at: m.Metadata(tuple(f"job{n}" for n in range(NAMES)))
    ),
    "L7 100 STATUS at once": crowding(lambda at: m.StatusRequest()),
    "L7 100 FETCHes of 1,024 partitions at once": crowding(lambda at: WIDE),
    "L7 100 FETCHes of 1,024 partitions that wait": crowding(lambda at: WIDE._replace(max_wait=0.5)),
    "L7 3 groups on 1,024 partitions": crowding(lambda at: WIDE._replace(group=f"g{at}", max_wait=1.0), 3),
    "L7 100 DESCRIBEs of 1,024 partitions at once": crowding(lambda at: m.DescribeGroup("wide", "g")),
}


def attack_process(name: str, address: str) -> None:
    for _ in ATTACKS[name](address):
        if name not in FLOODS:
            time.sleep(PAUSE_S)


def processor_s(process: int) -> float:
    """Processor time of all threads of a process so far."""
    tasks = Path(f"/proc/{process}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


def served(
    raw: Raw, topic: Any, producer_id: Any, seq: int, seconds: float, process: int
) -> list[tuple[float, float]]:
    """Seconds that each message took from its publish until its ack, and those of the node's processor."""
    times: list[tuple[float, float]] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        began, used = time.monotonic(), processor_s(process)
        raw.publish(topic, producer_id, seq + len(times), [b"hello"])
        got = receipts(raw.ask(FETCH._replace(topics=(topic.name,), group="served", max_wait=1.0)))
        assert got, "nobody else reads as this group"
        raw.ask(m.AckRequest(tuple(got)))
        times.append((time.monotonic() - began, processor_s(process) - used))
    return times


def main() -> None:
    words = sys.argv[1:]
    context = multiprocessing.get_context("spawn")
    with LocalCluster(3, settings={"log_level": "error"}) as cluster:
        address = cluster.addresses[0]
        with Raw(address) as raw:
            for number in range(100):
                raw.topic(f"other-{number}")
            raw.topic("jobs")
            topic, producer_id = raw.topic("served"), raw.session()
            process = cluster.pid("n1")
            seq = len(served(raw, topic, producer_id, 0, 2.0, process))
            for name in ATTACKS:
                if words and not any(word in name for word in words):
                    continue
                alone: list[tuple[float, float]] = []
                beside: list[tuple[float, float]] = []
                for _ in range(TURNS):
                    for times, attacked in ((alone, False), (beside, True)):
                        attacker = context.Process(target=attack_process, args=(name, address), daemon=True)
                        if attacked:
                            attacker.start()
                            time.sleep(1.5)
                        more = served(raw, topic, producer_id, seq, SECONDS, process)
                        times += more
                        seq += len(more)
                        if attacked:
                            attacker.terminate()
                            attacker.join()
                print(f"{name} ({len(beside)} cycles beside it, {len(alone)} alone)", flush=True)
                for which, unit in ((0, "time"), (1, "processor time of the node")):
                    for percentile in (50, 99):
                        a, b = (
                            statistics.quantiles([one[which] for one in times], n=100)[percentile - 1] * 1000
                            for times in (alone, beside)
                        )
                        print(
                            f"  {b / a:6.2f}  p{percentile} {b:.1f} ms beside it, {a:.1f} ms alone: {unit}",
                            flush=True,
                        )
        assert all(cluster.running(node) for node in cluster.nodes)


if __name__ == "__main__":
    main()
