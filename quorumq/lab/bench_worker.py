"""One producer or consumer of a benchmark, in a process of its own.

Its commands are lines of JSON on standard input and its answers lines of JSON on standard output (bench.py).
It uses the client library as any program would. Times are of the machine's monotonic clock, which all processes
share.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, suppress
from itertools import islice
from typing import Any, Final

import trio

from quorumq.client import Client, Message, Outcome, Pending, connect
from quorumq.core.values.errors import QuorumqError
from quorumq.core.values.limits import KIB, MIB
from quorumq.lab.bench_ledger import Payloads, VerificationFailed, runs_of

GROUP: Final = "bench"
REPORT_S: Final = 0.05
"""Time between a consumer's reports of its settled messages, in seconds."""

SAMPLE: Final = 4
"""Messages per latency that is kept."""

SINGLES_IN_FLIGHT: Final = 64
"""Batches of one message that a producer has in flight."""

BATCH: Final = 500
ACKS_IN_FLIGHT: Final = 4

Receive = trio.MemoryReceiveChannel[dict[str, Any]]


def say(**line: Any) -> None:
    """Write one line to the process that started this one."""
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


async def read(commands: trio.MemorySendChannel[dict[str, Any]]) -> None:
    """Pass on the lines of standard input, until it is closed."""
    async with commands:
        while line := await trio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True):
            await commands.send(json.loads(line))


async def produce(client: Client, command: dict[str, Any]) -> None:
    """Publish as fast as publishes are confirmed."""
    payloads = Payloads(command["run"], command["size"])
    producer_id, count = command["producer"], command["count"]
    began, cpu = time.monotonic_ns(), time.process_time()
    said = began

    def messages() -> Iterator[bytes]:
        nonlocal said
        for number in range(count):
            now = time.monotonic_ns()
            if now - said > REPORT_S * 1e9:
                said = now
                say(**{"is": "publishing", "producer": producer_id, "count": number})
            yield payloads.make(producer_id, number, now)

    options: dict[str, Any] = {}
    if command.get(
        "single"
    ):  # a batch for each message, as many producers make them that publish now and then
        options = {"batch_bytes": 1, "in_flight": SINGLES_IN_FLIGHT, "buffer_bytes": 256 * KIB}
    elif command.get("tenths"):  # messages taken and not confirmed would count in an earlier tenth
        options = {"buffer_bytes": 4 * MIB}
    async with client.producer(command["topic"], create=False, **options) as producer:
        calls = 10 if command.get("tenths") else 1  # at its end each makes an id of every message
        source, published = messages(), 0
        for call in range(1, calls + 1):
            published += len(await producer.publish_many(islice(source, count * call // calls - published)))
    assert published == count
    end(producer_id, count, [], began, cpu)


def end(producer_id: int, count: int, latencies: list[float], began: int, cpu: float) -> None:
    """Write the last line of a producer."""
    line = {"is": "published", "producer": producer_id, "count": count, "latencies": latencies}
    say(**line, began_ns=began, ended_ns=time.monotonic_ns(), cpu_s=time.process_time() - cpu)


async def fan_in(command: dict[str, Any]) -> None:
    """Publish over many connections, each with one message at a time in flight."""
    payloads = Payloads(command["run"], command["size"])
    topic, total = command["topic"], command["count"]
    numbers = iter(range(total))
    confirmed = bytearray(total)
    latencies: list[float] = []

    async def publish(client: Client) -> None:
        for number in numbers:
            before = time.monotonic_ns()
            await client.publish(topic, payloads.make(0, number, before))
            latencies.append((time.monotonic_ns() - before) / 1e9)
            confirmed[number] = 1

    async def report() -> None:
        while True:
            await trio.sleep(REPORT_S)
            say(**{"is": "publishing", "producer": 0, "count": len(latencies)})

    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(connect(command["nodes"])) for _ in range(command["connections"])
        ]
        for client in clients:  # each knows its topic and has its session before the clock runs
            await client.topic(topic)
        began, cpu = time.monotonic_ns(), time.process_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(report)
            async with trio.open_nursery() as tasks:
                for client in clients:
                    tasks.start_soon(publish, client)
            nursery.cancel_scope.cancel()
        assert sum(confirmed) == total
        end(0, total, latencies, began, cpu)


class Consuming:
    """One consumer at work: messages that it found and settled, and its reports."""

    def __init__(self, client: Client, command: dict[str, Any]) -> None:
        self.client = client
        self.command = command
        self.payloads = Payloads(command["run"], command["size"])
        self.latencies: list[float] = []
        self.ack_latencies: list[float] = []
        self.redelivered = 0
        self.seen = 0
        self.group = command.get("group", GROUP)
        self.began = 0
        self.ended = 0
        self.cpu = time.process_time()
        self._settled: list[tuple[int, int]] = []
        self._outcomes: Counter[str] = Counter()

    async def run(self, *, stop: trio.Event) -> None:
        """Take, check and ack until the command to stop."""
        async with (
            self.client.consumer(
                self.command["topic"], self.group, hold_time=self.command["hold_time"], prefetch=4 * BATCH
            ) as consumer,
            trio.open_nursery() as nursery,
        ):
            self.began = self.ended = time.monotonic_ns()
            nursery.start_soon(self._report)
            slots = trio.Semaphore(ACKS_IN_FLIGHT)
            nursery.start_soon(self._take, consumer.batches(BATCH), slots, nursery)
            await stop.wait()
            nursery.cancel_scope.cancel()
        self.report()

    async def _take(self, batches: Any, slots: trio.Semaphore, nursery: trio.Nursery) -> None:
        async for messages in batches:
            now = time.monotonic_ns()
            checked = [self.payloads.check(message.payload) for message in messages]
            for message, stamped in zip(messages, checked, strict=True):
                if stamped.number % SAMPLE == 0:
                    self.latencies.append((now - stamped.published_ns) / 1e9)
                self.redelivered += message.attempt > 1
            self.seen += len(messages)
            await slots.acquire()
            nursery.start_soon(self._ack, messages, [(one.producer, one.number) for one in checked], slots)

    async def _ack(
        self, messages: Sequence[Message], numbers: list[tuple[int, int]], slots: trio.Semaphore
    ) -> None:
        try:
            before = time.monotonic_ns()
            outcomes = await self.client.ack(messages)
            self.ended = time.monotonic_ns()
            self.ack_latencies.append((self.ended - before) / 1e9)
            self.settled(numbers, outcomes)
        finally:
            slots.release()

    def settled(self, numbers: list[tuple[int, int]], outcomes: Sequence[Outcome]) -> None:
        self._settled += numbers
        self._outcomes.update(outcome.value for outcome in outcomes)

    def report(self, **more: Any) -> None:
        """Report the messages settled since the last report."""
        if self._settled:
            line = {"is": "settled", "group": self.group, "runs": runs_of(self._settled)}
            say(**line, outcomes=self._outcomes, **more)
            self._settled = []
            self._outcomes = Counter()

    async def _report(self) -> None:
        while True:
            await trio.sleep(REPORT_S)
            self.report()

    def finish(self) -> None:
        """Write the last line of a run."""
        line = {"is": "consumed", "seen": self.seen, "redelivered": self.redelivered}
        latencies = {"latencies": self.latencies, "ack_latencies": self.ack_latencies}
        cpu_s = time.process_time() - self.cpu
        say(**line, **latencies, began_ns=self.began, ended_ns=self.ended, cpu_s=cpu_s)


async def consume(client: Client, command: dict[str, Any], commands: Receive) -> None:
    """Consume until the next command, which is to stop, or until standard input is closed."""
    stop = trio.Event()
    consuming = Consuming(client, command)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: consuming.run(stop=stop))
        with suppress(trio.EndOfChannel):
            await commands.receive()
        stop.set()
    consuming.finish()


async def one_by_one(client: Client, command: dict[str, Any]) -> None:
    """Publish one message, take it and ack it. When that is done, go on with the next."""
    consuming = Consuming(client, command)
    legs: dict[str, list[float]] = {"publish": [], "delivery": [], "ack": [], "whole": []}
    topic, hold_time = command["topic"], command["hold_time"]
    async with (
        client.producer(topic, create=False) as producer,
        client.consumer(topic, GROUP, hold_time=hold_time, prefetch=1) as consumer,
    ):
        said = 0.0
        for number in range(command["count"]):
            begin = time.monotonic_ns()
            pending = await producer.send(consuming.payloads.make(0, number, begin))
            confirmed: list[int] = []

            async def confirm(pending: Pending = pending, confirmed: list[int] = confirmed) -> None:
                await pending.wait()
                confirmed.append(time.monotonic_ns())

            async with trio.open_nursery() as nursery:
                nursery.start_soon(confirm)
                message = await anext(consumer)
                delivered = time.monotonic_ns()
            stamped = consuming.payloads.check(message.payload)
            consuming.redelivered += message.attempt > 1
            before_ack = time.monotonic_ns()
            outcome = await message.ack()
            end = time.monotonic_ns()
            for leg, ns in (
                ("publish", confirmed[0] - begin),
                ("delivery", delivered - begin),
                ("ack", end - before_ack),
                ("whole", end - begin),
            ):
                legs[leg].append(ns / 1e9)
            consuming.settled([(stamped.producer, stamped.number)], [outcome])
            if end / 1e9 - said > REPORT_S or number == command["count"] - 1:
                said = end / 1e9
                consuming.report(published=number + 1)
    cpu_s = time.process_time() - consuming.cpu
    say(**{"is": "done", **legs, "redelivered": consuming.redelivered, "cpu_s": cpu_s})


async def work() -> None:
    """Execute commands of standard input, until it is closed."""
    send, commands = trio.open_memory_channel[dict[str, Any]](64)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(read, send)
        async for first in commands:
            async with connect(first["nodes"]) as client:
                say(**{"is": "ready"})
                async for command in commands:
                    if command["do"] == "produce":
                        await produce(client, command)
                    elif command["do"] == "fan-in":
                        await fan_in({**command, "nodes": first["nodes"]})
                    elif command["do"] == "consume":
                        await consume(client, command, commands)
                    elif command["do"] == "one-by-one":
                        await one_by_one(client, command)
        nursery.cancel_scope.cancel()


def main() -> int:
    """Run. If quorumq raises an error on purpose, it goes to the process that started this one."""
    from quorumq.commands import releases

    try:
        trio.run(work)
    except BaseException as error:
        errors = [leaf for leaf in releases(error) if not isinstance(leaf, trio.Cancelled)]
        if not all(isinstance(leaf, QuorumqError) for leaf in errors):
            raise
        worst = next((leaf for leaf in errors if isinstance(leaf, VerificationFailed)), errors[0])
        assert isinstance(worst, QuorumqError)
        say(**{"is": "failed", "code": worst.code, "text": str(worst)})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
