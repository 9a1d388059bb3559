"""Dead letters on five real nodes, RF 3, through one that is replica of none of the topic's partitions.

Each message is in exactly one state, under any number of simultaneous operations on its dead letter.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest
import trio

from quorumq.client import AlreadySettled, Client, HoldLost, Message, Outcome, Peek, QuorumqError
from quorumq.core.values.types import Kind
from quorumq.history import HistoryWriter, read_history
from quorumq.lab.local import LocalCluster
from tests.e2e.groups import KEPT_S, drained, outsider, payloads, publish, taken, through
from tests.patience import PATIENCE_S

HOLD_S = 30.0
"""No test waits for such a hold to end."""

QUORUMQ = (sys.executable, "-c", "from quorumq.cli.main import main; main()")


class Scene(NamedTuple):
    """A topic that group h has read to its end, and a client at a node that has no replica of it."""

    client: Client
    topic: str
    node: str
    address: str

    async def fetch(self, group: str = "g", most: int = 5000, hold_time: float = HOLD_S) -> list[Message]:
        return await self.client.fetch(
            self.topic, group, max_messages=most, max_wait=0.5, hold_time=hold_time, node=self.node
        )

    async def take(self, count: int, group: str = "g", hold_time: float = HOLD_S) -> list[Message]:
        return await taken(self.client, self.topic, group, count, hold_time, self.node)

    async def everything(self, group: str = "g") -> list[Message]:
        return await drained(self.client, self.topic, group, self.node)

    async def listed(self, which: str = "all", group: str = "g") -> list[Peek]:
        look = self.client.peek(self.topic, group, which, complete=True, node=self.node)  # type: ignore[arg-type]
        return [item async for item in look]

    async def states(self, group: str = "g") -> Counter[str]:
        """Return the number of messages in each state; `ready` includes messages that an old hold still blocks.

        A replica that missed the REJECT keeps its hold until that runs out, in any state of the message.
        """
        counts: Counter[str] = Counter()
        for item in await self.listed(group=group):
            counts["ready" if item.peeked.state == "held" else item.peeked.state] += item.peeked.span.size
        return counts

    async def die(self, count: int, reason: str = "no") -> None:
        """Have ``count`` messages die, in several deliveries."""
        while count:
            messages = await self.fetch(most=min(count, 70))
            await self.client.dead_letter(messages, error=ValueError(reason))
            count -= len(messages)

    async def command(self, *arguments: str) -> dict[str, int]:
        """Run a command as the operator; return its output."""
        done = await trio.run_process(
            [*QUORUMQ, *arguments, "--node", self.address, "--json"], capture_stdout=True
        )
        counts: dict[str, int] = json.loads(done.stdout)
        return counts

    async def others_see_nothing(self) -> None:
        assert await self.fetch("h") == []
        (states,) = (await self.states("h")).keys()
        assert states == "acked"


@asynccontextmanager
async def location(
    cluster: LocalCluster, topic: str, count: int, *, max_deliveries: int = 5, **more: object
) -> AsyncIterator[Scene]:
    async with through(cluster, "n1") as maker:
        settings = {"partitions": 2, "max_deliveries": max_deliveries, "retention": KEPT_S}
        register = await maker.create_topic(topic, **settings)
        while len({node for members in register.replicas for node in members}) == len(cluster.nodes):
            await maker.delete_topic(register.name)  # its replicas are everywhere: another id, other replicas
            register = await maker.create_topic(topic, **settings)
        node = outsider(cluster, register)
    async with through(cluster, node, **more) as client:
        await publish(client, topic, range(count))
        here = Scene(client, topic, node, cluster.address(node))
        assert len(await here.everything("h")) == count
        yield here
        if count:
            await here.others_see_nothing()


def test_a_dead_letter_s_life_through_a_node_without_replica(five: LocalCluster) -> None:
    """Dies, is read, redriven twice, dies again, is redriven again, and is acked; another one is purged by an ack."""

    async def main() -> None:
        async with location(five, "life", 20) as here:
            client = here.client
            await here.die(20, "first")
            deaths = await here.listed("dead")
            assert (await client.redrive("life", "g", deaths)).messages == 20
            assert (await client.redrive("life", "g", deaths)).messages == 20, "done twice, it is done once"
            assert await here.states() == {"ready": 20}
            await here.die(20, "second")
            again = await client.redrive("life", "g", deaths)
            assert (again.messages, sum(span.size for span, _ in again.refused)) == (0, 20)
            held = await here.take(5, "g!dead")
            assert {(x.letter.message, x.letter.redrives) for x in held if x.letter} == {("second", 1)}
            assert await client.ack(held) == [Outcome.ACKED] * 5
            waiting = await here.take(5, "g!dead")
            await client.reject(waiting, delay=60.0)
            assert await here.states("g!dead") == {"ready": 10, "delayed": 5}

            rest = await here.take(10, "g!dead")
            assert (await client.redrive("life", "g!dead", await here.listed("dead"))).messages == 15
            with pytest.raises(AlreadySettled):
                await client.ack(rest)
            assert await here.states() == {"ready": 15, "purged": 5}
            got = await here.everything()
            assert len(got) == 15
            assert {message.attempt for message in got} == {1}
            assert sorted(payloads(got) + payloads(held)) == list(range(20))
            assert await here.fetch("g!dead") == []

    trio.run(main)


def test_the_delivery_limit_and_the_ttl_end_in_dead_letters_that_say_so(five: LocalCluster) -> None:
    async def main() -> None:
        async with location(five, "delivered-twice", 10, max_deliveries=2) as here:
            deliveries = 0
            with trio.fail_after(PATIENCE_S):  # an expired message comes alone, and dies alone
                while (await here.states()).get("dead", 0) < 10:
                    deliveries += len(await here.fetch(hold_time=0.3))
                    await trio.sleep(0.1)
            assert deliveries <= 20, "nothing came a third time"
            died = await here.take(10, "g!dead")  # a node that has not heard of one yet brings the others
            assert {(x.letter.reason, x.letter.attempts) for x in died if x.letter} == {("max-deliveries", 2)}
            assert await here.client.ack(died) == [Outcome.ACKED] * 10
        async with location(five, "expiring", 0) as here:
            async with here.client.producer("expiring") as producer:
                await producer.send(b"10", ttl=0.2)
            await trio.sleep(0.3)
            assert await here.fetch() == []
            (message,) = await here.take(1, "g!dead")
            assert message.letter is not None
            assert message.letter.reason == "expired"

    trio.run(main)


@pytest.mark.parametrize(
    "purging",
    [pytest.param(False, marks=pytest.mark.soak, id="alone"), pytest.param(True, id="against a purge")],
)
def test_two_operators_redrive_at_once_one_is_killed_and_each_message_is_in_one_state(
    five: LocalCluster, purging: bool
) -> None:
    count = 240
    topic = f"operators-{purging}".lower()
    redrive = ("deadletters", "redrive", topic, "--group", "g", "--all", "--yes")

    async def main() -> None:
        async with location(five, topic, count) as here:
            await here.die(count)
            purged = 0
            with subprocess.Popen([*QUORUMQ, *redrive, "--rate", "10", "--node", here.address]) as killed:
                while (await here.states())["ready"] < 10:
                    assert killed.poll() is None
                killed.send_signal(signal.SIGKILL)
            between = await here.states()
            assert 10 <= between["ready"] < count, between
            assert between["dead"] == count - between["ready"], between

            async def run(*arguments: str) -> None:
                nonlocal purged
                purged += (await here.command(*arguments)).get("purged", 0)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(run, *redrive, "--rate", "400")
                nursery.start_soon(run, *redrive)
                if purging:
                    nursery.start_soon(run, "deadletters", "purge", topic, "--group", "g", "--yes")
            states = await here.states()
            assert states["dead"] == 0
            assert states["ready"] + states["purged"] == count
            assert purging or not purged
            got = await here.everything()
            assert len(got) == states["ready"]
            assert len(set(payloads(got))) == len(got), "each once"
            assert await here.fetch("g!dead") == []

    trio.run(main)


def test_whatever_is_done_at_once_each_dead_letter_ends_in_one_state(five: LocalCluster) -> None:
    """Readers that ack, reject and are refused, operators that redrive and purge, consumers that let die again."""
    count, seed = 300, int.from_bytes(os.urandom(4), "big")
    rng = random.Random(seed)
    acked: Counter[int] = Counter()
    removed: Counter[int] = Counter()

    async def main() -> None:
        async with location(five, "mixed", count) as here:
            client = here.client
            await here.die(count)

            async def read_dead_letters() -> None:
                while True:
                    for message in await here.fetch("g!dead", most=20, hold_time=1.0):
                        try:
                            if rng.random() < 0.4:
                                if await message.ack() in (Outcome.ACKED, Outcome.ACKED_AFTER_EXPIRY):
                                    removed[int(message.payload)] += 1
                            else:
                                await message.reject(delay=0.2 * rng.random())
                        except QuorumqError:
                            pass  # redriven or purged meanwhile, or its hold ran out

            async def operate() -> None:
                while True:
                    await trio.sleep(0.2 * rng.random())
                    if rng.random() < 0.1:
                        await client.purge("mixed.deadletters", "g", partition=rng.randrange(2))
                    await client.redrive("mixed", "g", await here.listed("dead"))

            async def work() -> None:
                while True:
                    for message in await here.fetch(most=20, hold_time=2.0):
                        if rng.random() < 0.5:
                            with suppress(HoldLost, AlreadySettled):  # or acked as a dead letter
                                await message.dead_letter(reason="again")
                        elif await message.ack() is Outcome.ACKED:
                            acked[int(message.payload)] += 1

            with trio.move_on_after(5):
                async with trio.open_nursery() as nursery:
                    for task in (read_dead_letters, operate, operate, work, work):
                        nursery.start_soon(task)
            with trio.fail_after(PATIENCE_S):
                while (states := await here.states()).keys() - {
                    "acked",
                    "purged",
                }:  # a reject may be under way
                    await client.redrive("mixed", "g", await here.listed("dead"))
                    for message in await here.everything():  # also what was in a hand, when its hold is over
                        acked[int(message.payload)] += 1
            assert sum(states.values()) == count
            assert states["acked"] >= len(acked)
            assert max(acked.values(), default=1) == 1, "acked twice: it was in two places"

    try:
        trio.run(main)
    except BaseException as error:
        error.add_note(f"seed {seed}")
        raise


def test_a_late_ack_beats_the_dead_letter_and_its_redrive_and_the_history_says_so(
    five: LocalCluster, tmp_path: Path
) -> None:
    path = tmp_path / "client.jsonl"

    async def main(history: HistoryWriter) -> None:
        async with location(five, "beaten", 2, history=history) as here:
            client = here.client
            late = await here.take(2, hold_time=0.3)
            await trio.sleep(0.4)
            await here.die(2)
            deaths = await here.listed("dead")
            one, two = late
            assert await one.ack() is Outcome.ACKED_AFTER_EXPIRY
            await client.redrive("beaten", "g", deaths)
            again = await here.take(1)
            assert [message.payload for message in again] == [two.payload]
            assert await two.ack() is Outcome.ACKED_AFTER_EXPIRY
            assert await here.states() == {"acked": 2}
            assert {item.peeked.record.kind for item in await here.listed()} == {Kind.ACKED}
            assert await here.fetch("g!dead") == []
            assert await here.fetch() == []

    with HistoryWriter(path, run="r", who="client:x") as history:
        trio.run(main, history)
    rows = [row for row in read_history([path]) if row.get("group") == "g"]
    outcomes = [
        (row["kind"], row["outcome"]) for row in rows if row.get("outcome") not in (None, "invoke", "ok")
    ]
    assert outcomes == [
        ("ack", "acked_after_expiry"),
        ("redrive", "already-settled"),
        ("ack", "acked_after_expiry"),
    ]
    assert [row["state"] for row in rows if row["kind"] == "list" and row["spans"]][-1] == "acked"
