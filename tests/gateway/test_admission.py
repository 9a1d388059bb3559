"""Admission of requests: a user with many short ones, refused or not, delays no other user by all of them."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio

pytest.importorskip("starlette")

from quorumq.core.values.errors import Busy
from quorumq.gateway import admission
from quorumq.gateway.admission import ALONE, BESIDE_S, IDLE, ROUND, WORK_S, Admissions, Who
from quorumq.gateway.app import make_app
from quorumq.gateway.identity import User
from quorumq.node.clients import Entry, new_token
from tests.gateway.guarded import GATE_ENTRY, guarded
from tests.gateway.sdk import URL, Sdk

SHOP, RIVAL = User("shop"), User("rival")
Ask = Callable[[Sdk, Sdk, str], Awaitable[Any]]
"""A request of a hostile user: by an SDK with its key, by one with a wrong key, or with its token."""


async def empty_fetch(signer: Sdk, stranger: Sdk, token: str) -> Any:
    headers = {"content-type": "application/json", "authorization": f"Bearer {token}"}
    return await signer.send(b"{}", headers, path="/v1/topics/rival-jobs/groups/sqs/fetch")


async def no_token(signer: Sdk, stranger: Sdk, token: str) -> Any:
    return await Sdk(signer.app).send(b"", {}, method="GET", path="/v1/topics")


async def no_path(signer: Sdk, stranger: Sdk, token: str) -> Any:
    return await Sdk(signer.app).send(
        b"", {"authorization": f"Bearer {token}"}, method="GET", path="/v1/none"
    )


async def no_console(signer: Sdk, stranger: Sdk, token: str) -> Any:
    return await Sdk(signer.app).send(b"", {}, method="GET", path="/console/none")


async def no_signature(signer: Sdk, stranger: Sdk, token: str) -> Any:
    return await Sdk(signer.app).send(b"", {"authorization": "none"})


ATTACKS: dict[str, Ask] = {
    "empty ReceiveMessage": lambda signer, *_: signer.ask("ReceiveMessage", QueueUrl=f"{URL}/rival-jobs"),
    "SendMessage": lambda signer, *_: signer.ask(
        "SendMessage", QueueUrl=f"{URL}/rival-jobs", MessageBody="x"
    ),
    "empty SendMessageBatch": lambda signer, *_: signer.ask("SendMessageBatch", QueueUrl=f"{URL}/rival-jobs"),
    "wrong signature": lambda _, stranger, token: stranger.ask("ListQueues"),
    "no signature": no_signature,
    "empty fetch": empty_fetch,
    "no token": no_token,
    "no path": no_path,
    "no page": no_console,
}


@pytest.mark.parametrize("attack", ATTACKS)
async def test_short_requests_of_another_user_are_few_beside_each_of_a_calm_one(
    attack: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """16 at a time took 12 times the processor time of a calm user, and up to 32 times if they were refused."""
    monkeypatch.setattr(admission, "wait_all_tasks_blocked", busy)
    tokens, entries = {}, {"gate": Entry(GATE_ENTRY, on_behalf=("*",))}
    for name in ("shop", "rival"):
        tokens[name], kept = new_token(name)
        entries[name] = Entry(
            kept, publish=(f"{name}-*",), consume=((f"{name}-*", "*"),), admin=(f"{name}-*",)
        )
    hostile = 0
    async with guarded(tmp_path, entries) as it:
        app = make_app(it.gateway)
        shop, rival = (it.sdk(name, app, entries[name].token) for name in ("shop", "rival"))
        for sdk in (shop, rival):
            await sdk.ok("CreateQueue", QueueName=f"{sdk.name}-jobs")
        stranger = Sdk(app, "rival", "wrong")

        async def flood() -> None:
            nonlocal hostile
            while True:
                await ATTACKS[attack](rival, stranger, tokens["rival"])
                hostile += 1
                await trio.sleep(0.0005)  # time stands still while a task has something to do

        async with trio.open_nursery() as nursery:
            for _ in range(16):
                nursery.start_soon(flood)
            await trio.sleep(2 * WORK_S)
            hostile = requests = 0
            for _ in range(5):
                await shop.ok("SendMessage", QueueUrl=f"{URL}/shop-jobs", MessageBody="x")
                received = await shop.ok("ReceiveMessage", QueueUrl=f"{URL}/shop-jobs")
                handle = received["Messages"][0]["ReceiptHandle"]
                await shop.ok("DeleteMessage", QueueUrl=f"{URL}/shop-jobs", ReceiptHandle=handle)
                requests += 3
            nursery.cancel_scope.cancel()
        assert hostile <= 3 * requests
        assert hostile >= requests / 2, "it is served, too"


async def busy(seconds: float) -> None:
    """Wait for an idle loop that is never idle: virtual time passes in an idle one alone."""
    await trio.sleep_forever()


class Requests:
    """Requests that work until their ends are set."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.admissions = Admissions()
        self.nursery = nursery
        self.names: list[str] = []
        self.ends: dict[str, trio.Event] = {}
        nursery.start_soon(self.admissions.run)

    async def begin(self, name: str, user: User) -> None:
        """Begin a request, and let it come as far as it comes."""
        self.ends[name] = trio.Event()
        self.nursery.start_soon(self._work, name, user)
        await self.step()

    async def _work(self, name: str, user: User) -> None:
        async with self.admissions.of(("127.0.0.1", ""), user):
            self.names.append(name)
            await self.ends[name].wait()

    async def end(self, name: str) -> None:
        self.ends[name].set()
        await self.step()

    @staticmethod
    async def step() -> None:
        for _ in range(5):
            await trio.lowlevel.checkpoint()


async def test_a_user_begins_its_next_request_when_those_of_all_others_are_done() -> None:
    async with trio.open_nursery() as nursery:
        it = Requests(nursery)
        for name, user in (("a1", SHOP), ("b1", RIVAL), ("b2", RIVAL), ("b3", RIVAL), ("a2", SHOP)):
            await it.begin(name, user)
        assert it.names == ["a1", "b1"]
        await it.end("b1")
        assert it.names == ["a1", "b1"], "another user works"
        await it.end("a1")
        assert it.names == ["a1", "b1", "b2", "a2"]
        nursery.cancel_scope.cancel()


async def test_one_request_after_another_begins_at_once_a_few_times_in_a_round() -> None:
    async with trio.open_nursery() as nursery:
        it = Requests(nursery)
        await it.begin("a", SHOP)
        for number in range(ROUND + 1):
            await it.begin(f"b{number}", RIVAL)
            await it.end(f"b{number}")
        assert len(it.names) == 1 + ROUND
        await it.end("a")
        assert len(it.names) == 2 + ROUND
        nursery.cancel_scope.cancel()


async def test_a_request_that_waits_for_a_node_holds_back_no_other_one() -> None:
    async with trio.open_nursery() as nursery:
        it = Requests(nursery)
        await it.begin("a1", SHOP)
        await it.begin("b1", RIVAL)
        await trio.sleep(2 * WORK_S)
        for name, user in (("a2", SHOP), ("b2", RIVAL)):
            await it.begin(name, user)
        assert it.names == ["a1", "b1", "a2", "b2"]
        await it.begin("b3", RIVAL)
        await trio.sleep(2 * WORK_S)
        assert it.names[-1] == "b3", "it waits no longer than that, even if the loop is never idle"
        nursery.cancel_scope.cancel()


async def test_an_idle_loop_admits_the_next_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "IDLE_S", 0.0)
    async with trio.open_nursery() as nursery:
        it = Requests(nursery)
        await it.begin("a", SHOP)
        for number in range(IDLE + 2):
            await it.begin(f"b{number}", RIVAL)
        assert it.names == ["a", "b0"]
        began = trio.current_time()
        await trio.testing.wait_all_tasks_blocked()
        await it.step()
        assert (len(it.names), trio.current_time()) == (2 + IDLE, began)
        nursery.cancel_scope.cancel()


async def test_a_user_alone_works_on_many_requests_and_no_longer_alone_on_one() -> None:
    async with trio.open_nursery() as nursery:
        it = Requests(nursery)
        for number in range(ALONE + 3):
            await it.begin(f"b{number}", RIVAL)
        assert len(it.names) == ALONE
        await it.end("b0")
        assert len(it.names) == ALONE + 1
        await it.begin("a", SHOP)
        await it.end("b1")
        assert len(it.names) == ALONE + 2, "the other user's request begins at once, and no further one"
        await it.end("a")
        for number in range(2, ALONE + 3):
            await it.end(f"b{number}")
        await trio.sleep(BESIDE_S + 1)
        for number in range(5):
            await it.begin(f"c{number}", RIVAL)
        assert it.names[-5:] == [f"c{number}" for number in range(5)]
        nursery.cancel_scope.cancel()


async def test_requests_that_wait_are_bounded_and_end_with_their_tasks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(admission, "WAITING_MAX", 2)
    async with trio.open_nursery() as nursery:
        it = Requests(nursery)
        await it.begin("a", SHOP)
        async with trio.open_nursery() as rivals:
            it.nursery = rivals
            for number in range(3):
                await it.begin(f"b{number}", RIVAL)
            with pytest.raises(Busy, match="2 requests of this client wait"):
                async with it.admissions.of(("127.0.0.1", ""), RIVAL):
                    pass
            rivals.cancel_scope.cancel()
        await it.end("a")
        await trio.sleep(WORK_S)
        assert (it.admissions._under_way, it.admissions._lines) == ({}, {})
        assert it.names == ["a", "b0"]
        nursery.cancel_scope.cancel()


async def test_a_claim_counts_by_its_address_until_it_is_proven_and_a_wrong_one_again() -> None:
    admissions = Admissions()
    here, there = ("127.0.0.1", "shop"), ("127.0.0.2", "shop")

    def who(owner: tuple[str, str]) -> Who:
        return admissions.of(owner)._who

    async with admissions.of(here) as claimed:
        assert set(admissions._under_way) == {here}
        await claimed.prove(SHOP)
        assert set(admissions._under_way) == {SHOP}
    assert (who(here), who(there)) == (SHOP, there), "a stranger elsewhere who knows the name is another one"
    admissions.drop(here)
    assert who(here) == here
    assert not admissions._under_way


async def test_a_claim_of_sqs_is_proven_by_its_signature(tmp_path: Path) -> None:
    async with guarded(tmp_path) as it:
        app = make_app(it.gateway)
        owner = ("127.0.0.1", "shop")
        await it.sdk("shop", app).ok("ListQueues")
        assert it.gateway.admissions._proven == {owner: SHOP}
        assert json.loads((await Sdk(app, "shop", "wrong").ask("ListQueues")).body)["__type"]
        assert it.gateway.admissions._proven == {}
