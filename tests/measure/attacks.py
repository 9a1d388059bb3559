"""Effects of each attack on a well-behaved client: `python -m tests.measure.attacks`.

Three processes, and one client that publishes, fetches and acks one small message after another. Its p99 is taken alone
and beside each attack, in turns, each attack at full pace from a process and an address of its own. Besides the time,
the processor time that the node took in each cycle is counted: it does not depend on how busy the machine is. The bar:
three times the p99 alone at most. No test: machines are too noisy for it.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from quorumq.core import messages as m
from quorumq.core.values import limits
from quorumq.lab.local import LocalCluster
from tests.e2e.raw import Raw, publish, receipts

SECONDS: Final = 6.0
TURNS: Final = 3
NAMES: Final = 1000

Attack = Callable[[str], Iterator[object]]
"""Attacks the node at an address, a little with each step."""

FETCH: Final = m.Fetch(("jobs",), "g", 100, limits.FETCH_BYTES_MAX, 1, 1, 0.0, 5.0, 0.0)
WAITING: Final = FETCH._replace(max_messages=1, max_wait=10.0)


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
    payload = os.urandom(limits.PAYLOAD_BYTES_MAX - 1000)
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
    return lambda at: m.PeekRequest(topic.name, 0, "g", "all", (0, 0), 256, complete=True)


SOURCE: Final = "127.0.0.2"
"""The attackers' address: they are another client than the one whose p99 is taken."""

ATTACKS: Final[dict[str, Attack]] = {
    "S10 1,200 small FETCHes wait": waiting,
    "S10 2 batches of 4 MB in flight": flooding(big_batches, 2),
    "S10 16 FETCHes of 1,000 names in flight": flooding(
        lambda raw: lambda at: FETCH._replace(topics=tuple(f"none{n}" for n in range(NAMES))), 16
    ),
    "S10 4 ACKs of 800 forged receipts in flight": flooding(forged, 4),
    "S10 topics of 64 partitions, made and deleted": flooding(churning, 1),
    "S10 4 BROWSEs complete in flight": flooding(browsing, 4),
}


def attack_process(name: str, address: str) -> None:
    for _ in ATTACKS[name](address):
        pass


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
        assert got, "no other client reads as this group"
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
                            assert attacker.is_alive(), f"the attack {name} has ended by itself"
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
