"""Shares of processor time: a user with many steps, or with long ones, delays no other user by all of them.

Time is counted, not measured: a step takes `STEP_S`, and as long as it says beyond that. The clock goes with it.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from functools import partial, wraps
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

pytest.importorskip("starlette")

from quorumq.core.values.errors import Busy
from quorumq.gateway import shares
from quorumq.gateway.app import make_app
from quorumq.gateway.identity import ANYBODY, User
from quorumq.gateway.requests import Bodies
from quorumq.gateway.shares import LONG_S, PACE_ITEMS, PAYER, THERE_S, Shares, finish, pace, turn
from quorumq.node.clients import Entry, new_token
from tests.gateway.guarded import GATE_ENTRY, guarded
from tests.gateway.sdk import URL, Sdk, World, world
from tests.virtual import run

SHOP, RIVAL = User("shop"), User("rival")
HERE = ("127.0.0.1", "")
STEP_S = 0.0001


class Processor(trio.abc.Instrument):
    """A processor whose time goes by steps.

    Attributes:
        seconds: seconds that each user has used.
        steps: users of all steps, in their order.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.steps: list[str] = []
        self.began = 0.0
        patch.setattr(shares, "time", SimpleNamespace(perf_counter=lambda: self.now))
        patch.setattr(shares, "wait_all_tasks_blocked", busy)
        self.clock = trio.testing.MockClock(rate=1.0, autojump_threshold=0.0)
        self.clock._real_clock = lambda: self.now
        self.clock._real_base = 0.0

    def work(self, seconds: float) -> None:
        self.now += seconds

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.now += STEP_S
        payer = task.context.get(PAYER)
        name = "" if payer is None else names(payer.shares).get(payer.share, "")
        self.steps.append(name)
        self.seconds[name] += self.now - self.began
        self.began = self.now

    def run(self, test: Callable[[], Awaitable[object]]) -> None:
        run(test, clock=self.clock, instruments=[self])

    def reset(self) -> None:
        self.seconds.clear()
        self.steps.clear()


def names(all_shares: Shares) -> dict[Any, str]:
    """Return the names of users by share; an owner has the name that it claims."""
    return {share: who[-1] or who[0] for who, share in all_shares._shares.items()}


async def busy(seconds: float) -> None:
    """Wait for an idle loop that is never idle: its clock jumps when it waits."""
    await trio.sleep_forever()


@pytest.fixture
def processor(monkeypatch: pytest.MonkeyPatch) -> Processor:
    return Processor(monkeypatch)


@pytest.fixture
def it() -> Shares:
    return Shares()


def in_steps(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Return an async test as one whose time goes by the steps of its processor."""

    @wraps(test)
    def run_test(processor: Processor, **fixtures: Any) -> None:
        processor.run(partial(test, processor=processor, **fixtures))

    return run_test


async def short(it: Processor) -> None:
    it.work(0.0002)


async def long_loop(it: Processor) -> None:
    for number in range(1000):
        it.work(0.00005)
        await pace(number)


async def one_long_step(it: Processor) -> None:
    await turn()
    it.work(0.008)


async def steps_of_a_generator(it: Processor) -> None:
    def steps() -> Any:
        for _ in range(20):
            it.work(0.002)
            yield

    await finish(steps())


async def connections(it: Processor) -> None:
    """Begin cheaply, and have connections to nodes work on the answer outside of all turns."""

    async def receive() -> None:
        for _ in range(16):
            it.work(0.0005)
            await trio.lowlevel.checkpoint()

    await trio.sleep(0.001)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive)


@pytest.mark.parametrize("tasks", [1, 16, 300])
@pytest.mark.parametrize("hostile", [short, long_loop, one_long_step, steps_of_a_generator, connections])
@in_steps
async def test_others_get_as_much_time_as_a_user_that_needs_it(
    hostile: Callable[[Processor], Awaitable[None]], tasks: int, processor: Processor, it: Shares
) -> None:
    trio.lowlevel.add_instrument(it)

    async def flood() -> None:
        while True:
            async with it.request(HERE, RIVAL):
                await hostile(processor)
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        for _ in range(tasks):
            nursery.start_soon(flood)
        await trio.sleep(0.3)
        ratios = []
        for _ in range(100):
            processor.reset()
            async with it.request(HERE, SHOP):
                for _ in range(20):
                    processor.work(0.0002)
                    await trio.lowlevel.checkpoint()
                    await turn()
            ratios.append(processor.seconds["rival"] / processor.seconds["shop"])
        nursery.cancel_scope.cancel()
    ratios.sort()
    assert sum(ratios) / len(ratios) <= 1.2, ratios
    assert sum(ratios) / len(ratios) >= 0.2, "it is served, too"
    assert ratios[98] <= 3, "no burst of it, either"


@in_steps
async def test_a_user_alone_never_rests_and_lets_others_come_in_after_a_millisecond(
    processor: Processor, it: Shares
) -> None:
    trio.lowlevel.add_instrument(it)
    async with it.request(HERE, RIVAL):
        await trio.lowlevel.checkpoint()
        processor.reset()
        for number in range(10 * PACE_ITEMS):
            await pace(number)
        for _ in range(9):
            processor.work(0.9 * LONG_S / 9)
            await turn()
        assert processor.steps == [], "turns cost no steps"
        processor.work(0.2 * LONG_S)
        await turn()
        assert processor.steps == ["rival"]
        processor.work(1.0)
        await turn()
        assert processor.now < 1.1
    assert it.ahead(it.of(RIVAL)) == 0


@in_steps
async def test_a_rest_ends_in_an_idle_loop_or_after_twice_the_time(
    processor: Processor, it: Shares, monkeypatch: pytest.MonkeyPatch
) -> None:
    cushions: list[float] = []

    async def idle(cushion: float) -> None:
        cushions.append(cushion)

    shop, rival = it.of(SHOP), it.of(RIVAL)
    it.ahead(shop)
    it.ahead(rival)
    rival.used += 0.004
    began = trio.current_time()
    await it.turn(rival)
    assert trio.current_time() - began == pytest.approx(0.008, abs=0.001)
    assert abs(it.ahead(rival)) <= 4 * STEP_S
    rival.used += 0.004
    monkeypatch.setattr(shares, "wait_all_tasks_blocked", idle)
    await it.turn(rival)
    assert cushions == [pytest.approx(0.001, abs=STEP_S)] * 2
    assert abs(it.ahead(rival)) <= 4 * STEP_S
    await trio.sleep(1)
    rival.used += 0.004
    assert it.ahead(rival) == 0, "the other user is gone"


@in_steps
async def test_a_user_that_comes_back_owes_and_is_owed_nothing(processor: Processor, it: Shares) -> None:
    shop, rival = it.of(SHOP), it.of(RIVAL)
    it.ahead(rival)
    rival.used += 100.0
    assert abs(it.ahead(shop)) <= 3 * STEP_S, "it may not make up for the time before"
    assert abs(it.ahead(rival)) <= 3 * STEP_S
    shop.used += 5.0
    await trio.sleep(10)
    it.ahead(rival)
    assert abs(it.ahead(shop)) <= 3 * STEP_S, "a rest of ten seconds has paid"


@in_steps
async def test_requests_wait_in_line_and_end_with_their_tasks(
    processor: Processor, it: Shares, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shares, "WAITING_MAX", 3)

    shop, rival = it.of(SHOP), it.of(RIVAL)
    it.ahead(shop)
    it.ahead(rival)
    rival.used += 1.0
    served: list[int] = []

    async def begin(number: int) -> None:
        async with it.request(HERE, RIVAL):
            served.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(4):
            nursery.start_soon(begin, number)
            await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(Busy, match="3 requests of this client wait"):
            await begin(4)
        assert served == []
        nursery.cancel_scope.cancel()
    assert not rival.begins.locked()
    async with trio.open_nursery() as nursery:
        for number in range(4):
            nursery.start_soon(begin, number)
            await trio.lowlevel.checkpoint()
    assert served == [0, 1, 2, 3]


@in_steps
async def test_a_user_that_returns_is_ahead_by_what_it_has_not_paid(processor: Processor, it: Shares) -> None:
    shop, rival = it.of(SHOP), it.of(RIVAL)
    it.ahead(shop)
    it.ahead(rival)
    rival.used += 1.0
    await trio.sleep(0.4)
    it.ahead(shop)
    assert 0.59 < it.ahead(rival) < 0.61


@in_steps
async def test_costs_are_those_of_a_request_and_owners_that_are_known_are_bounded(
    processor: Processor, it: Shares, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shares, "PROVEN_MAX", 2)

    trio.lowlevel.add_instrument(it)
    share = it.of(RIVAL)
    for number in range(40):
        async with it.request(HERE, RIVAL):
            processor.work(0.005)
            await trio.lowlevel.checkpoint()
        await it.prove((str(number), "shop"), SHOP)
        assert len(it._proven) <= 2
    assert 0.004 < share.cost < 0.007


@in_steps
async def test_users_that_rest_for_one_another_use_all_of_the_time(processor: Processor, it: Shares) -> None:
    """Each of them is ahead of another one that rests, or that waits for its own requests, again and again."""
    trio.lowlevel.add_instrument(it)

    async def flood(name: str, hostile: Callable[[Processor], Awaitable[None]]) -> None:
        while True:
            async with it.request((name, ""), User(name)):
                await hostile(processor)
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        for name, hostile in (("a", short), ("b", one_long_step), ("c", connections)):
            for _ in range(16):
                nursery.start_soon(flood, name, hostile)
        await trio.sleep(1)
        processor.reset()
        began = trio.current_time()
        await trio.sleep(2)
        parts = [processor.seconds[name] / (trio.current_time() - began) for name in "abc"]
        nursery.cancel_scope.cancel()
    assert min(parts) > 0.2
    assert sum(parts) > 0.95


@in_steps
async def test_a_user_alone_begins_requests_for_a_bounded_time(processor: Processor, it: Shares) -> None:
    """A new user has to wait for them."""
    share = it.of(RIVAL)
    share.cost = 0.005
    async with trio.open_nursery() as nursery:

        async def forever() -> None:
            async with it.request(HERE, RIVAL):
                await trio.sleep_forever()

        for _ in range(20):
            nursery.start_soon(forever)
        for _ in range(20):
            await trio.lowlevel.checkpoint()
        assert len(share.starts) == 3
        await trio.sleep(1.0)
        assert not share.begins.locked(), "requests that wait for nodes hold back no other one for long"
        nursery.cancel_scope.cancel()


@in_steps
async def test_a_request_begins_in_an_idle_loop_though_others_of_its_user_wait_for_nodes(
    processor: Processor, it: Shares, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shares, "wait_all_tasks_blocked", trio.sleep)
    share = it.of(RIVAL)
    share.cost = 0.005
    began = trio.current_time()
    share.starts.update((object(), began) for _ in range(20))
    await it.turn(share, begins=True)
    assert trio.current_time() - began < THERE_S / 2


@in_steps
async def test_a_batch_goes_on_if_its_client_disconnects(processor: Processor, it: Shares) -> None:
    it.pay(RIVAL)
    processor.work(2 * LONG_S)
    with trio.CancelScope() as scope:
        scope.cancel()
        await pace(PACE_ITEMS - 1)
        with pytest.raises(trio.Cancelled):
            await turn()


@in_steps
async def test_no_part_of_a_body_is_read_while_its_user_is_ahead(processor: Processor, it: Shares) -> None:
    trio.lowlevel.add_instrument(it)
    parts = 0

    async def receive() -> dict[str, Any]:
        nonlocal parts
        parts += 1
        processor.work(0.001)
        return {"type": "http.request", "body": b"x" * 65536, "more_body": parts % 64 > 0}

    async def flood() -> None:
        while True:
            async with it.request(HERE, RIVAL), Bodies().read(receive, HERE):
                pass

    async with trio.open_nursery() as nursery:
        for _ in range(16):
            nursery.start_soon(flood)
        await trio.sleep(0.1)
        async with it.request(HERE, SHOP):
            before = parts
            for _ in range(50):
                processor.work(0.001)
                await trio.lowlevel.checkpoint()
        assert 10 <= parts - before <= 50
        nursery.cancel_scope.cancel()


@in_steps
async def test_users_of_an_open_gateway_count_by_their_addresses(processor: Processor, it: Shares) -> None:
    for _ in range(2):
        async with it.request(HERE):
            await it.prove(HERE, ANYBODY)
            payer = PAYER.get()
            assert payer is not None
            assert payer.share is it.of(HERE)


@in_steps
async def test_a_claim_counts_by_its_address_until_proven_or_wrong(processor: Processor, it: Shares) -> None:
    here, there = ("127.0.0.1", "shop"), ("127.0.0.2", "shop")

    it.pay(None, serves=True)
    outer = PAYER.get()
    assert outer is not None

    async def who(owner: tuple[str, str]) -> Any:
        async with it.request(owner):
            payer = PAYER.get()
            assert payer is not None
            (name,) = (who for who, share in it._shares.items() if share is payer.share)
            PAYER.set(outer)
            return name

    async with it.request(here):
        assert outer.share is it.of(here), "its connection works for it, too"
        await it.prove(here, SHOP)
        assert it.ahead(it.of(SHOP)) == 0, "and it is alone there"
    PAYER.set(outer)
    assert (await who(here), await who(there)) == (SHOP, there), "a stranger elsewhere who knows the name"
    it.drop(here)
    assert await who(here) == here


# ------------------------------------------------------------------------------ at a node


async def no_token(signer: Sdk, stranger: Sdk, token: str) -> Any:
    return await Sdk(signer.app).send(b"", {}, method="GET", path="/v1/topics")


async def no_path(signer: Sdk, stranger: Sdk, token: str) -> Any:
    headers = {"authorization": f"Bearer {token}"}
    return await Sdk(signer.app).send(b"", headers, method="GET", path="/v1/none")


async def empty_fetch(signer: Sdk, stranger: Sdk, token: str) -> Any:
    headers = {"content-type": "application/json", "authorization": f"Bearer {token}"}
    return await signer.send(b"{}", headers, path="/v1/topics/rival-jobs/groups/sqs/fetch")


async def no_console(signer: Sdk, stranger: Sdk, token: str) -> Any:
    return await Sdk(signer.app).send(b"", {}, method="GET", path="/console/none")


async def no_signature(signer: Sdk, stranger: Sdk, token: str) -> Any:
    return await Sdk(signer.app).send(b"", {"authorization": "none"})


ATTACKS: dict[str, Callable[[Sdk, Sdk, str], Awaitable[Any]]] = {
    "empty ReceiveMessage": lambda signer, *_: signer.ask("ReceiveMessage", QueueUrl=f"{URL}/rival-jobs"),
    "SendMessage": lambda signer, *_: signer.ask(
        "SendMessage", QueueUrl=f"{URL}/rival-jobs", MessageBody="x"
    ),
    "empty SendMessageBatch": lambda signer, *_: signer.ask("SendMessageBatch", QueueUrl=f"{URL}/rival-jobs"),
    "wrong signature": lambda _, stranger, token: stranger.ask("ListQueues"),
    "long wrong body": lambda _, stranger, token: stranger.ask("ListQueues", x="x" * 2_000_000),
    "no signature": no_signature,
    "empty fetch": empty_fetch,
    "no token": no_token,
    "no path": no_path,
    "no page": no_console,
}


@pytest.mark.parametrize("attack", ATTACKS)
@in_steps
async def test_a_hostile_user_has_few_steps_beside_those_of_a_calm_one(
    attack: str, tmp_path: Path, processor: Processor
) -> None:
    """16 requests at a time took 12 times the processor time of a calm user, and up to 32 times if refused."""
    tokens, entries = {}, {"gate": Entry(GATE_ENTRY, on_behalf=("*",))}
    for name in ("shop", "rival"):
        tokens[name], kept = new_token(name)
        topics = (f"{name}-*",)
        entries[name] = Entry(kept, publish=topics, consume=((topics[0], "*"),), admin=topics)

    async with guarded(tmp_path, entries) as it:
        app = make_app(it.gateway)
        shop, rival = (it.sdk(name, app, entries[name].token) for name in ("shop", "rival"))
        for sdk in (shop, rival):
            await sdk.ok("CreateQueue", QueueName=f"{sdk.name}-jobs")
        stranger = Sdk(app, "rival", "wrong")

        async def flood() -> None:
            while True:
                await ATTACKS[attack](rival, stranger, tokens["rival"])
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            for _ in range(16):
                nursery.start_soon(flood)
            await trio.sleep(0.1)
            processor.reset()
            for _ in range(5):
                await shop.ok("SendMessage", QueueUrl=f"{URL}/shop-jobs", MessageBody="x")
                received = await shop.ok("ReceiveMessage", QueueUrl=f"{URL}/shop-jobs")
                handle = received["Messages"][0]["ReceiptHandle"]
                await shop.ok("DeleteMessage", QueueUrl=f"{URL}/shop-jobs", ReceiptHandle=handle)
            steps = Counter(processor.steps)
            nursery.cancel_scope.cancel()
        calm, hostile = steps["shop"], steps["rival"] + steps["127.0.0.1"]
        assert calm > 50
        assert calm / 10 <= hostile <= 2 * calm, steps


@pytest.mark.parametrize("is_open", [True, False])
async def test_the_only_user_never_rests(
    is_open: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an open gateway its connections to nodes were another user, beside whom it rested."""

    async def rest(seconds: float) -> None:
        pytest.fail("it rested")

    monkeypatch.setattr(shares, "ALONE_S", 1000.0)
    monkeypatch.setattr(shares, "wait_all_tasks_blocked", rest)
    async with world() if is_open else guarded(tmp_path) as it:
        app = make_app(it.gateway)
        sdk = Sdk(app) if isinstance(it, World) else it.sdk("shop", app)
        await sdk.ok("CreateQueue", QueueName="shop-jobs")
        for _ in range(20):
            await sdk.ok("SendMessage", QueueUrl=f"{URL}/shop-jobs", MessageBody="x" * 10_000)


async def test_a_claim_of_sqs_is_proven_by_its_signature(tmp_path: Path) -> None:
    async with guarded(tmp_path) as it:
        app = make_app(it.gateway)
        owner = ("127.0.0.1", "shop")
        await it.sdk("shop", app).ok("ListQueues")
        assert it.gateway.shares._proven == {owner: SHOP}
        assert json.loads((await Sdk(app, "shop", "wrong").ask("ListQueues")).body)["__type"]
        assert it.gateway.shares._proven == {}
