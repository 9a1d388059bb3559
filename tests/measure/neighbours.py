"""A calm user of a gateway beside a hostile one: `python -m tests.measure.neighbours [WORD …]`.

A gateway and a node with a clients file run in this process, with disk and sockets in memory. The calm user publishes,
fetches and acks one small message after another as JSON, alone and beside each attack of another user, in turns. The
processor time of the process in each cycle is counted: it does not depend on how busy the machine is, and has the
attacker's own share in it. The bar: three times that alone at most.

The clock goes with the processor, and jumps when the process waits. So the loop counts as busy all the time: what a
gateway would do while it waits for nodes would be counted as if a user had waited for it.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import trio
import trio.testing

from quorumq.gateway import shares
from quorumq.gateway.accesskeys import secret_access_key
from quorumq.gateway.app import make_app
from quorumq.gateway.sqs.signature import HttpRequest
from quorumq.node.clients import Entry, new_token
from tests.gateway.guarded import GATE_ENTRY, guarded
from tests.gateway.sdk import URL, Sdk

CYCLES: Final = 50
"""Cycles of the calm user in a turn."""
TURNS: Final = 2
BEGUN_S: Final = 1.0
"""Seconds of an attack before the calm user begins."""
MIB: Final = 1024 * 1024
FORGED: Final = "QQ" * 60


class Signer(Sdk):
    """An SDK of SQS that signs equal requests once: that is not the gateway's work."""

    def __init__(self, app: Any, name: str, secret: str) -> None:
        super().__init__(app, name, secret)
        self.known: dict[tuple[str, bytes], dict[str, str]] = {}

    def signed(self, request: HttpRequest) -> dict[str, str]:
        key = request.headers["x-amz-target"], bytes(request.body)
        if key not in self.known:
            self.known[key] = super().signed(request)
        return self.known[key]


class User:
    """A user of JSON and SQS, and a stranger who knows its name."""

    def __init__(self, app: Any, name: str, token: str, secret: str) -> None:
        self.sdk, self.name = Sdk(app), name
        self.signer, self.stranger = Signer(app, name, secret), Signer(app, name, "wrong")
        self.headers = {"content-type": "application/json", "authorization": f"Bearer {token}"}

    async def post(self, path: str, body: bytes) -> Any:
        """Return the answer to a request, which may be refused."""
        return await self.sdk.send(body, self.headers, path=f"/v1{path}")

    async def ask(self, path: str, body: dict[str, Any]) -> Any:
        """Return the answer to a request that has to succeed."""
        answer = await self.post(path, json.dumps(body).encode())
        assert answer.status in (200, 201), answer.body
        return answer.json

    async def cycle(self) -> None:
        """Publish, fetch and ack one message."""
        await self.ask(f"/topics/{self.name}-jobs/messages", {"payload": "hello"})
        fetch = {"max_messages": 1, "max_wait": 5}
        (message,) = (await self.ask(f"/topics/{self.name}-jobs/groups/g/fetch", fetch))["messages"]
        (result,) = (await self.ask("/receipts/ack", {"receipts": [message["receipt"]]}))["results"]
        assert result["outcome"], result


Attack = Callable[[Any], Awaitable[Any]]
"""Send one request as a hostile user."""


def posting(path: str, body: bytes) -> Attack:
    """Return an attack by one request."""
    return lambda user: user.post(path, body)


def batch(size: int, count: int) -> bytes:
    return json.dumps({"messages": [{"payload": "x" * size}] * count}).encode()


async def searching(user: User) -> None:
    """Search messages for a text that none has."""
    query = "which=all&text=none&look_at=10000"
    path = f"/v1/topics/{user.name}-full/groups/g/messages"
    answer = await user.sdk.send(b"", user.headers, method="GET", path=path, query=query)
    assert answer.status == 200, answer.body


async def lying(user: User) -> None:
    """Send a long body to SQS in the name of a user, without its secret."""
    answer = await user.stranger.send(b"x" * (4 * MIB - 100), {"x-amz-target": "AmazonSQS.SendMessage"})
    assert answer.status == 403, answer.body


def asking(action: str, status: int, **params: Any) -> Attack:
    """Return an attack by one request of SQS, which has an answer of ``status``."""
    body = json.dumps({"QueueUrl": f"{URL}/hostile-jobs", **params}).encode()

    async def ask(user: User) -> None:
        sdk = user.stranger if status == 403 else user.signer
        answer = await sdk.send(body, {"x-amz-target": f"AmazonSQS.{action}"})
        assert answer.status == status, answer.body

    return ask


async def nameless(user: User) -> None:
    """Send a request without a token."""
    answer = await user.sdk.send(b"", {}, method="GET", path="/v1/topics")
    assert answer.status == 401, answer.body


NUMBERS: Final = itertools.count()


def making_groups(topic: str) -> Attack:
    """Return an attack by fetches of groups that are not there yet; a topic has 1,000 at most."""

    async def attack(user: User) -> None:
        path = f"/topics/{topic}/groups/g{next(NUMBERS)}/fetch"
        answer = await user.post(path, b'{"max_messages": 1000, "max_wait": 0}')
        assert answer.status == 200, answer.body

    return attack


async def naming(user: User) -> None:
    """Publish 1,000 messages with names of their own."""
    first = 1000 * next(NUMBERS)
    messages = (b'{"payload":"x","dedup":"d%d"}' % number for number in range(first, first + 1000))
    path = f"/topics/{user.name}-jobs/messages/batch"
    answer = await user.post(path, b'{"messages":[%b]}' % b",".join(messages))
    assert answer.status == 200, answer.body


JOBS: Final = "/topics/hostile-jobs/messages"
ATTACKS: Final[dict[str, tuple[int, Attack]]] = {
    "100 long polls": (100, posting("/topics/hostile-jobs/groups/g/fetch", b'{"max_wait": 20}')),
    "16 publishes of one message": (16, posting(JOBS, b'{"payload": "x"}')),
    "4 publishes of 1,000 messages": (4, posting(f"{JOBS}/batch", batch(100, 1000))),
    "4 publishes of 3 MiB": (4, posting(f"{JOBS}/batch", batch(MIB - 1000, 3))),
    "4 acks of 1,000 forged receipts": (
        4,
        posting("/receipts/ack", json.dumps({"receipts": [FORGED] * 1000}).encode()),
    ),
    "4 bodies of 4 MiB that are no JSON": (4, posting(JOBS, b'{"payload": "' + b"x" * (4 * MIB - 100))),
    "4 batches of 1,400,000 empty messages": (
        4,
        posting(f"{JOBS}/batch", b'{"messages":[' + b"{}," * 1_390_000 + b"{}]}"),
    ),
    "4 bodies of 4 MiB to SQS with a wrong signature": (4, lying),
    "4 searches of 10,000 messages": (4, searching),
    "16 fetches of nothing": (16, posting("/topics/hostile-jobs/groups/g/fetch", b"{}")),
    "16 bodies that are no JSON": (16, posting(JOBS, b"{")),
    "16 requests without a token": (16, nameless),
    "16 ReceiveMessage of nothing": (16, asking("ReceiveMessage", 200)),
    "16 SendMessage": (16, asking("SendMessage", 200, MessageBody="x")),
    "16 SendMessageBatch of nothing": (16, asking("SendMessageBatch", 400)),
    "16 SendMessage with a wrong signature": (16, asking("SendMessage", 403, MessageBody="x")),
    "16 fetches that make groups": (16, making_groups("hostile-empty")),
    "16 fetches of 1,000 messages by new groups": (16, making_groups("hostile-full")),
    "16 fetches of 3 MiB by new groups": (16, making_groups("hostile-large")),
    "4 publishes of 1,000 names": (4, naming),
}
"""Requests in flight, and each of them."""


async def served(user: Any) -> list[float]:
    """Return the processor milliseconds of each cycle."""
    times = []
    gc.disable()  # a collection of all that this process has would be the p99
    for _ in range(CYCLES):
        began = time.process_time()
        await user.cycle()
        times.append(1000 * (time.process_time() - began))
    gc.enable()
    return times


async def compare(name: str, count: int, attack: Attack, calm: Any, hostile: Any) -> None:
    """Measure the calm user alone and beside an attack, and print the ratios.

    Args:
        count: requests under way.
    """
    requests = 0
    gc.collect()
    gc.freeze()  # as a node and a gateway do when they start

    async def go_on() -> None:
        nonlocal requests
        while True:
            await attack(hostile)
            requests += 1
            await trio.sleep(0)

    alone: list[float] = []
    beside: list[float] = []
    for _ in range(TURNS):
        alone += await served(calm)
        async with trio.open_nursery() as nursery:
            for _ in range(count):
                nursery.start_soon(go_on)
            await trio.sleep(BEGUN_S)
            beside += await served(calm)
            nursery.cancel_scope.cancel()
    figures = []
    for percentile in (50, 99):
        before, after = (statistics.quantiles(times, n=100)[percentile - 1] for times in (alone, beside))
        figures.append(f"p{percentile} {after / before:.1f} ({before:.1f} ms alone)")
    print(f"{name}: {', '.join(figures)}; {requests} hostile requests", flush=True)


async def busy(seconds: float) -> None:
    """Wait for an idle loop that is never idle."""
    await trio.sleep_forever()


async def main(*words: str) -> None:
    shares.wait_all_tasks_blocked = busy  # type: ignore[attr-defined, assignment]
    shares.time = SimpleNamespace(perf_counter=time.process_time)  # type: ignore[attr-defined, assignment]
    tokens, entries = {}, {"gate": Entry(GATE_ENTRY, on_behalf=("calm", "hostile"))}
    for name in ("calm", "hostile"):
        tokens[name], kept = new_token(name)
        topics = (f"{name}-*",)
        entries[name] = Entry(kept, publish=topics, consume=((topics[0], "*"),), admin=topics)
    with tempfile.TemporaryDirectory() as folder:
        async with guarded(Path(folder), entries) as it:
            app = make_app(it.gateway)
            calm, hostile = (
                User(app, name, token, secret_access_key(it.keys[0], name, entries[name].token))
                for name, token in tokens.items()
            )
            for user in (calm, hostile):
                await user.cycle()
            for _ in range(10):
                await hostile.ask("/topics/hostile-full/messages/batch", json.loads(batch(100, 1000)))
            await hostile.ask("/topics/hostile-full/groups/g/fetch", {"max_messages": 1})
            await hostile.ask("/topics/hostile-large/messages/batch", json.loads(batch(MIB - 1000, 3)))
            await hostile.ask("/topics/hostile-empty/messages", {"payload": "x", "delay": 1e6})
            for name, (count, attack) in ATTACKS.items():
                if not words or any(word in name for word in words):
                    await compare(name, count, attack, calm, hostile)


def parse(text: str | None) -> list[str]:
    """Return the words of the command line: parts of the names of attacks to measure, or none for all."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "words", nargs="*", metavar="WORD", help="measure the attacks that have it in their name"
    )
    words: list[str] = parser.parse_args().words
    return words


def processor_clock() -> trio.testing.MockClock:
    """Return a clock that goes while this process uses a processor, and jumps when it waits."""
    clock = trio.testing.MockClock(rate=1.0, autojump_threshold=0.0)
    clock._real_clock = time.process_time
    clock._real_base = time.process_time()
    return clock


if __name__ == "__main__":
    trio.run(main, *parse(__doc__), clock=processor_clock())
