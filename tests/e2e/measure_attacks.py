"""What a well-behaved client notices of each attack: `python -m tests.e2e.measure_attacks`.

Three processes, and one client that publishes, fetches and acks one small message after another. Its p99 is taken alone
and beside each attack, in turns, each attack from a process of its own, at the pace its connection allows or 20
requests a second, whichever is less. Wanted: three times the p99 alone at most. No test: machines are too noisy for it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from quorumq.core import limits
from quorumq.core import messages as m
from quorumq.core.types import Kind, Letter, Origin, PartitionId, Record, Span, Stamp
from quorumq.lab.local import LocalCluster
from quorumq.wire import cbor
from quorumq.wire.codec import TYPE_OF, encode_message
from quorumq.wire.frames import MAGIC
from tests.e2e.raw import Raw, client_hello, receipts

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
    """So many requests at once on one connection, which are of a topic of 1,024 partitions or of nothing."""

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
    """As many connections as one address may have, without a word."""
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
            origin, seq = raw.session(), 0
            while True:
                raw.publish(topic, origin, seq, [b"x"] * 200)
                seq += 200
                got: list[Any] = []
                for _ in range(200):
                    reply = raw.ask(FETCH._replace(topics=(topic.name,), max_messages=1))
                    got += receipts(reply) if isinstance(reply, m.FetchReply) else []
                yield raw.ask(make(tuple(got)))

    return attack


FETCH: Final = m.Fetch(("jobs",), "g", 100, limits.FETCH_BYTES_MAX, 1, 1, 0.0, 5.0, 0.0)
LETTER: Final = Letter(Stamp(0, ""), "rejected", "ValueError", "x" * 2000, "y" * 2000)
LAST: Final = m.Resolved(Span(Origin("a", 1, 1, 1), 0, 1), Record(0, limits.NUMBERS_END - 1, Kind.DEAD))
WIDE: Final = FETCH._replace(topics=("wide",))
ANY: Final = PartitionId(b"x" * 16, 0)
MAPS: Final = cbor.array_head(2) + cbor.uint(TYPE_OF[m.Metadata]) + cbor.array_head(60_000) + b"\xa0" * 60_000


def busy(pauses: float) -> Attack:
    """No attack: a processor is used for something else, so much longer than a pause; the attackers read answers."""

    def attack(address: str) -> Iterator[object]:
        while True:
            end = time.thread_time() + pauses * PAUSE_S
            while time.thread_time() < end:
                pass
            yield None

    return attack


ATTACKS: Final[dict[str, Attack]] = {
    "for comparison: a quarter of a processor": busy(1 / 3),
    "for comparison: nine tenths of a processor": busy(9.0),
    "L4 REDRIVE at the last n": asking(m.RedriveRequest("jobs", 0, "g", (LAST,))),
    "L6 half frames of 16 MiB": half_frames,
    "L7 ACK of 200 receipts": settling(m.AckRequest),
    "L7 EXTEND of 200 receipts": settling(lambda got: m.ExtendRequest(got, 5.0, 0.0)),
    "L8 REJECT of 200 receipts with a letter": settling(lambda got: m.RejectRequest(got, 0.0, LETTER)),
    "L7 FETCH of 1,000 names, twice each": asking(FETCH._replace(topics=("jobs",) * NAMES)),
    "L7 FETCH of 10 patterns": asking(FETCH._replace(topics=tuple("*" * n for n in range(1, 11)))),
    "L7 METADATA of 1,000 names": asking(m.Metadata(tuple(f"job{n}" for n in range(NAMES)))),
    "L7 METADATA of 10 patterns": asking(m.Metadata(tuple(f"*{n}*?" for n in range(10)))),
    "L7 a header of empty maps": sending(b"".join(encode_message(client_hello(), request=1)) + frame(MAPS)),
    "L7 CLOSE in 1,024 partitions": asking(
        m.CloseSession(Origin("a", 1, 1, 1), tuple(PartitionId(ANY.topic, n) for n in range(1024)))
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
        time.sleep(PAUSE_S)


def served(raw: Raw, topic: Any, origin: Any, seq: int, seconds: float) -> list[float]:
    """Seconds that each message took from its publish until its ack."""
    found: list[float] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.monotonic()
        raw.publish(topic, origin, seq + len(found), [b"hello"])
        got = receipts(raw.ask(FETCH._replace(topics=(topic.name,), group="served", max_wait=1.0)))
        assert got, "nobody else reads as this group"
        raw.ask(m.AckRequest(tuple(got)))
        found.append(time.monotonic() - began)
    return found


def main() -> None:
    wanted = sys.argv[1:]
    context = multiprocessing.get_context("spawn")
    with LocalCluster(3, settings={"log_level": "error"}) as cluster:
        address = cluster.addresses[0]
        with Raw(address) as raw:
            for number in range(100):
                raw.topic(f"other-{number}")
            raw.topic("jobs")
            topic, origin = raw.topic("served"), raw.session()
            seq = len(served(raw, topic, origin, 0, 2.0))
            for name in ATTACKS:
                if wanted and not any(word in name for word in wanted):
                    continue
                alone: list[float] = []
                beside: list[float] = []
                for _ in range(TURNS):
                    for times, attacked in ((alone, False), (beside, True)):
                        attacker = context.Process(target=attack_process, args=(name, address), daemon=True)
                        if attacked:
                            attacker.start()
                            time.sleep(1.5)
                        more = served(raw, topic, origin, seq, SECONDS)
                        times += more
                        seq += len(more)
                        if attacked:
                            attacker.terminate()
                            attacker.join()
                a, b = (statistics.quantiles(times, n=100)[98] * 1000 for times in (alone, beside))
                print(
                    f"{b / a:6.2f}  {name}: p99 {b:.1f} ms beside it, {a:.1f} ms alone "
                    f"({len(beside)} and {len(alone)} messages)",
                    flush=True,
                )
        assert all(cluster.running(node) for node in cluster.nodes)


if __name__ == "__main__":
    main()
