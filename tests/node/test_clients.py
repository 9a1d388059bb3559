"""Tokens, rights, and a clients file that changes under way (docs/operations.md, Clients)."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from quorumq.core import messages as m
from quorumq.core.messages.effects import Request
from quorumq.core.node.nodecore import NodeCore
from quorumq.core.values.errors import NotStored, Unauthorized, UsageError
from quorumq.node.admission import OPERATOR_SLOTS
from quorumq.node.clients import Entry, changing, new_token, read_clients, write_clients
from quorumq.node.node import Node
from quorumq.node.transport import ConnectionLost
from quorumq.wire.receipts import sign_session, signature
from quorumq.wire.values import SignedNamed
from tests.node.memory import Client, World, fetch, outcomes, payloads, publish, receipts, world
from tests.wire.requests import REQUESTS

SHOP, SHOP_ENTRY = new_token("shop")
WORKER, WORKER_ENTRY = new_token("worker")
BOSS, BOSS_ENTRY = new_token("boss")
GATE, GATE_ENTRY = new_token("gate")
ENTRIES = {
    "shop": Entry(SHOP_ENTRY, publish=("jobs",)),
    "worker": Entry(WORKER_ENTRY, consume=(("jobs", "g"),)),
    "boss": Entry(BOSS_ENTRY, publish=("*",), consume=(("*", "*"),), admin=("*",)),
}


@asynccontextmanager
async def guarded(path: Path, **settings: Any) -> AsyncIterator[World]:
    """A node that serves the clients of a file."""
    write_clients(path, ENTRIES)
    async with world("a", clients_file=str(path), **settings) as cluster:
        yield cluster


def change(path: Path, entries: dict[str, Entry]) -> None:
    """Write the file, as if a moment later than before, however fast the test is."""
    before = path.stat().st_mtime_ns
    write_clients(path, entries)
    os.utime(path, ns=(before + 1, before + 1))


WRONG = {
    "none": "", "no secret": "shop", "an empty one": "shop.", "one letter more": f"{SHOP}x",
    "another's": f"worker.{SHOP.partition('.')[2]}", "a dot": ".",
}  # fmt: skip


@pytest.mark.parametrize("token", WRONG.values(), ids=WRONG)
async def test_a_token_that_is_not_in_the_file_gets_no_further_than_hello(tmp_path: Path, token: str) -> None:
    async with guarded(tmp_path / "clients.toml") as cluster:
        with pytest.raises(Unauthorized, match=r"clients file only.*quorumq clients add"):
            await cluster.client("a", token=token)
        assert cluster.services["a"].node.health.clients == 0
        (line,) = cluster.logs["a"].of("client_refused")
        assert SHOP.partition(".")[2] not in str(line), "no token gets into the log"


async def test_each_does_what_it_may_and_nothing_else(tmp_path: Path) -> None:
    async with guarded(tmp_path / "clients.toml") as cluster:
        shop, worker, boss = [await cluster.client("a", token=token) for token in (SHOP, WORKER, BOSS)]
        refused = await shop.ask(m.CreateTopic("jobs", rf=1))
        assert (refused.code, "right admin to topic 'jobs'" in refused.detail) == ("unauthorized", True)
        topic, producer_id = await boss.topic(rf=1), await shop.session()
        assert isinstance(await shop.ask(publish(topic, producer_id, 0, b"one")), m.PublishReply)
        assert (await shop.ask(fetch())).code == "unauthorized"
        assert (await worker.ask(m.OpenSession())).code == "unauthorized"
        assert (await worker.ask(publish(topic, producer_id, 1, b"two"))).code == "unauthorized"
        assert (await worker.ask(m.StatusRequest())).code == "unauthorized"
        got = await worker.ask(fetch())
        assert payloads(got) == [b"one"], "and nothing of what was refused"
        for event, change in (
            ("change_refused", ("shop at client", "topic created", "unauthorized")),
            ("change", ("boss at client", "topic created", "ok")),
        ):
            (line,) = cluster.logs["a"].of(event)
            assert (line["client"], line["what"], line["outcome"]) == change
        refused = await shop.ack(*receipts(got))
        assert refused.code == "unauthorized", "a receipt is no right"
        assert outcomes(await worker.ack(*receipts(got))) == ["acked"]
        assert [known.name for known in (await worker.ask(m.Metadata())).topics] == ["jobs"]


def as_sent(request: Any, node: Node) -> Any:
    """``request`` as a client sends it after a delivery: signed."""
    key = {"secret": node.secret, "key": node.secret_number}
    if isinstance(request, m.Publish):
        return request._replace(signature=sign_session(request.batch.header.spans[0].producer_id, **key))
    if isinstance(request, m.CloseSession):
        return request._replace(signature=sign_session(request.producer_id, **key))
    if hasattr(request, "items"):
        return request._replace(
            items=tuple(SignedNamed(signature(item.receipt, **key), item.spans) for item in request.items)
        )
    return request


async def test_requests_without_a_right_do_not_reach_the_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached: list[Any] = []
    step = NodeCore.step

    def watched(self: NodeCore, events: Any, *more: Any) -> Any:
        reached.extend(event.request for event in events if isinstance(event, Request))
        return step(self, events, *more)

    monkeypatch.setattr(NodeCore, "step", watched)
    path = tmp_path / "clients.toml"
    no_client, entry = new_token("nobody")
    write_clients(path, {"nobody": Entry(entry)})
    async with world("a", clients_file=str(path)) as cluster:
        client = await cluster.client("a", token=no_client)
        reached.clear()
        for name, (request, _) in {**REQUESTS, "all": (m.StatusRequest(), ())}.items():
            answer = await client.ask(as_sent(request, cluster.services["a"].node))
            if name == "Metadata":
                assert (answer.topics, answer.groups) == ((), ())
            else:
                assert answer.code == "unauthorized", (name, answer)
        assert reached == [m.Metadata()]


async def test_a_topic_that_other_nodes_know_is_not_open_to_a_publisher_of_another(tmp_path: Path) -> None:
    path = tmp_path / "clients.toml"
    write_clients(path, ENTRIES)
    async with world("abc", clients_file=str(path)) as cluster:
        shop, boss, there = [
            await cluster.client(node, token=token) for node, token in (("a", SHOP), ("a", BOSS), ("b", BOSS))
        ]
        producer_id, topic = await shop.session(), await there.topic("payroll")
        await trio.sleep(0.1)
        context = cluster.services["a"].node.core.context
        for caller, code in ((shop, "not-found"), (boss, None)):
            # As a node is that has not heard of the topic yet.
            for known in (context.catalogue.topics, context.catalogue.names):
                known.pop(topic.id if topic.id in known else "payroll", None)  # type: ignore[attr-defined]
            context.replicas.clear()
            answer = await caller.ask(publish(topic, producer_id, 0, b"x"))
            assert getattr(answer, "code", None) == code, answer


async def fetch_for_ever(client: Client) -> None:
    while True:  # each waits for a tenth of its hold time
        assert isinstance(await client.ask(fetch(wait=20.0)), m.FetchReply)


async def test_a_revoked_client_is_hung_up_on_and_rights_change_at_once(tmp_path: Path) -> None:
    path = tmp_path / "clients.toml"
    async with guarded(path) as cluster:
        boss, worker, idle = [await cluster.client("a", token=token) for token in (BOSS, WORKER, SHOP)]
        await boss.topic(rf=1)
        change(path, {"boss": Entry(BOSS_ENTRY, publish=("*",)), "shop": ENTRIES["shop"]})
        with trio.fail_after(2), pytest.raises(ConnectionLost):
            await fetch_for_ever(worker)
        assert (await boss.ask(m.DeleteTopic("jobs", b"x" * 16))).code == "unauthorized"
        change(path, {"boss": ENTRIES["boss"]})
        await trio.sleep(1.1)
        assert [line["revoked"] for line in cluster.logs["a"].of("clients_file_read")] == ["worker", "shop"]
        assert await idle.closed(0.1), "though it had nothing under way"
        assert not await boss.closed(0.1)
        with pytest.raises(Unauthorized):
            await cluster.client("a", token=SHOP)
        assert len(cluster.services["a"].node.shown) == 1


async def test_a_waiting_client_that_lost_its_right_is_disconnected(tmp_path: Path) -> None:
    path = tmp_path / "clients.toml"
    async with guarded(path, hold_time_max=60.0) as cluster:
        boss, worker = [await cluster.client("a", token=token) for token in (BOSS, WORKER)]
        topic, producer_id = await boss.topic(rf=1), await boss.session()
        await worker.send(fetch(wait=20.0, hold_time=60.0))
        await trio.sleep(0.1)
        change(path, {**ENTRIES, "worker": Entry(WORKER_ENTRY, consume=(("jobs", "other"),))})
        await trio.sleep(1.2)
        await boss.ask(publish(topic, producer_id, 0, b"secret"))
        assert await worker.closed(0.1)
        assert payloads(await boss.ask(fetch())) == [b"secret"], "it was handed to nobody"


GATEWAYS = {**ENTRIES, "gate": Entry(GATE_ENTRY, on_behalf=("shop", "work*"))}


async def test_a_gateway_has_the_rights_of_the_client_that_it_names_and_no_others(tmp_path: Path) -> None:
    path = tmp_path / "clients.toml"
    async with guarded(path) as cluster:
        change(path, GATEWAYS)
        await trio.sleep(1.1)
        boss = await cluster.client("a", token=BOSS)
        topic = await boss.topic(rf=1)
        shop, worker = [await cluster.client("a", GATE, name) for name in ("shop", "worker")]
        assert isinstance(await shop.ask(publish(topic, await shop.session(), 0, b"one")), m.PublishReply)
        assert (await shop.ask(fetch())).code == "unauthorized"
        assert payloads(await worker.ask(fetch())) == [b"one"]
        assert (await worker.ask(m.OpenSession())).code == "unauthorized"
        assert (await worker.ask(m.DeleteTopic("jobs", topic.id))).code == "unauthorized"
        (line,) = cluster.logs["a"].of("change_refused")
        assert line["client"].startswith("worker by gate at "), "the log has both"
        alone = await cluster.client("a", GATE)
        assert (await alone.ask(m.OpenSession())).code == "unauthorized", "a gateway has no right of its own"


@pytest.mark.parametrize(
    ("token", "name", "words"),
    [
        (SHOP, "worker", "client 'shop' lacks the right on_behalf for client 'worker'"),
        (SHOP, "nobody", "client 'shop' lacks the right on_behalf for client 'nobody'"),
        (GATE, "boss", "client 'gate' lacks the right on_behalf for client 'boss'"),
        (GATE, "workless", "has no client 'workless', for which 'gate' asks"),
        ("shop.wrong", "worker", "a token that it does not know"),
    ],
    ids=["no right", "no such right", "another name", "no such client", "wrong token"],
)
async def test_a_client_that_may_not_ask_for_another_is_refused_by_name(
    tmp_path: Path, token: str, name: str, words: str
) -> None:
    path = tmp_path / "clients.toml"
    async with guarded(path) as cluster:
        change(path, GATEWAYS)
        await trio.sleep(1.1)
        with pytest.raises(Unauthorized) as caught:
            await cluster.client("a", token, name)
        assert words in str(caught.value)
        assert cluster.services["a"].node.health.clients == 0


async def test_a_node_without_a_clients_file_refuses_a_gateway_that_names_a_client() -> None:
    async with world("a") as cluster:
        with pytest.raises(Unauthorized, match="node a has no clients file, and so no client 'shop'"):
            await cluster.client("a", "", "shop")


async def test_a_gateway_is_hung_up_on_when_it_or_its_client_is_revoked(tmp_path: Path) -> None:
    path = tmp_path / "clients.toml"
    async with guarded(path) as cluster:
        change(path, GATEWAYS)
        await trio.sleep(1.1)
        shop, worker = [await cluster.client("a", GATE, name) for name in ("shop", "worker")]
        change(path, {name: entry for name, entry in GATEWAYS.items() if name != "shop"})
        await trio.sleep(1.2)
        assert await shop.closed(0.1)
        assert not await worker.closed(0.1)
        change(path, {**ENTRIES, "gate": Entry(GATE_ENTRY, on_behalf=("shop",))})
        await trio.sleep(1.2)
        assert await worker.closed(0.1)


async def test_quotas_of_a_client_count_over_its_connections_and_gateways(tmp_path: Path) -> None:
    path = tmp_path / "clients.toml"
    async with guarded(path) as cluster:
        few = Entry(SHOP_ENTRY, publish=("jobs",), requests_per_s=2.0)
        change(path, {**GATEWAYS, "shop": few})
        await trio.sleep(1.1)
        direct, through = await cluster.client("a", SHOP), await cluster.client("a", GATE, "shop")
        replies = [await client.ask(m.Metadata()) for client in (direct, through, direct, through)]
        assert [isinstance(reply, m.MetadataReply) for reply in replies] == [True, True, False, False]
        assert {reply.code for reply in replies[2:]} == {"busy"}


async def test_a_file_that_becomes_wrong_or_goes_away_changes_nothing_but_reports(tmp_path: Path) -> None:
    path = tmp_path / "clients.toml"
    async with guarded(path) as cluster:
        boss = await cluster.client("a", token=BOSS)
        path.write_text("[boss\n")
        await trio.sleep(1.1)
        fields = (await boss.ask(m.StatusRequest())).fields
        assert "is not TOML" in fields["clients_file_problem"]
        path.unlink()
        await trio.sleep(3.1)
        said = [line["reason"] for line in cluster.logs["a"].of("clients_file_ignored")]
        assert len(said) == 2, "each once"
        assert "cannot be read" in said[1]
        write_clients(path, ENTRIES)
        await trio.sleep(1.1)
        assert (await boss.ask(m.StatusRequest())).fields["clients_file_problem"] == ""


async def test_a_file_that_is_being_copied_revokes_no_one_and_one_that_names_no_one_has_to_say_so(
    tmp_path: Path,
) -> None:
    """F2: `cp` empties a file before it writes it, and who looked between took an empty one."""
    path = tmp_path / "clients.toml"
    async with guarded(path) as cluster:
        boss, whole = await cluster.client("a", token=BOSS), path.read_bytes()
        cut = whole.index(b"[worker]")  # shop alone
        for size in range(cut, len(whole), 40):  # a slow copy
            path.write_bytes(whole[:cut] if size < len(whole) - 40 else whole)
            os.utime(path, ns=(size, size))
            await trio.sleep(0.3)
        await trio.sleep(1.1)
        assert not any(line["revoked"] for line in cluster.logs["a"].of("clients_file_read"))
        for text in ("", "# nothing yet\n"):
            path.write_text(text)
            await trio.sleep(1.1)
            fields = (await boss.ask(m.StatusRequest())).fields
            assert "names no client: where nobody may connect any more" in fields["clients_file_problem"]
        path.write_text("revoke_all = true\n")
        await trio.sleep(1.1)
        assert await boss.closed(0.1)


def test_the_last_client_that_is_revoked_writes_a_file_that_means_it(tmp_path: Path) -> None:
    path = tmp_path / "clients.toml"
    write_clients(path, {"boss": ENTRIES["boss"]})
    with changing(path) as entries:
        del entries["boss"]
    assert read_clients(path) == {}
    path.write_text("")
    with changing(path) as entries:
        entries["boss"] = ENTRIES["boss"]
    assert [*read_clients(path)] == ["boss"]


async def test_a_full_node_lets_an_operator_in(tmp_path: Path) -> None:
    """Field, near misses: a full table of connections shut out the operator."""
    async with guarded(tmp_path / "clients.toml", connections_max=2, connections_per_address=2) as cluster:
        for _ in range(2):
            await cluster.client("a", token=SHOP)
        with pytest.raises(NotStored, match="connections_max"):
            await cluster.client("a", token=WORKER)
        operators = [await cluster.client("a", token=BOSS) for _ in range(OPERATOR_SLOTS)]
        assert (await operators[-1].ask(m.StatusRequest())).fields["node"] == "a"
        with pytest.raises(NotStored, match="and operators"):
            await cluster.client("a", token=BOSS)


def test_two_simultaneous_changes_of_the_file_are_both_kept(tmp_path: Path) -> None:
    path, names = tmp_path / "clients.toml", [f"worker-{number}" for number in range(8)]
    write_clients(path, {**ENTRIES, **dict.fromkeys(names, ENTRIES["worker"])})
    ready = threading.Barrier(len(names))

    def revoke(name: str) -> None:
        ready.wait()
        with changing(path) as entries:
            del entries[name]

    threads = [threading.Thread(target=revoke, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert read_clients(path) == ENTRIES


def test_a_change_that_fails_keeps_the_file_and_who_may_read_it_stays(tmp_path: Path) -> None:
    path = tmp_path / "clients.toml"
    write_clients(path, ENTRIES)
    path.chmod(0o640)
    with pytest.raises(KeyError), changing(path) as entries:
        del entries["boss"], entries["nobody"]
    assert read_clients(path) == ENTRIES
    with changing(path) as entries:
        del entries["shop"]
    assert (path.stat().st_mode & 0o777, [*read_clients(path)]) == (0o640, ["worker", "boss"])
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(OSError, match="directory"):
        write_clients(folder, ENTRIES)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["clients.toml", "folder"], "nothing is left"


def test_a_file_that_everybody_may_write_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "clients.toml"
    write_clients(path, ENTRIES)
    path.chmod(0o602)
    with pytest.raises(UsageError, match="chmod o-w"):
        read_clients(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_file_of_the_nodes_user_stays_his_where_root_changes_it(tmp_path: Path) -> None:
    path = tmp_path / "clients.toml"
    write_clients(path, ENTRIES)
    os.chown(path, 1234, 1235)
    with changing(path) as entries:
        del entries["shop"]
    assert (path.stat().st_uid, path.stat().st_gid) == (1234, 1235)


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "clients.toml"
    odd = Entry(
        SHOP_ENTRY, publish=('a"\\\n\t', "é*"), consume=(("a*", "*"), ("b", "g h")), on_behalf=("a*",)
    )
    write_clients(path, {"shop": odd, "boss": ENTRIES["boss"]})
    assert read_clients(path) == {"shop": odd, "boss": ENTRIES["boss"]}
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[a]\n", "missing required field `token`"),
        ("[a]\ntoken = 'secret'\n", "is no hash"),
        (f"[a]\ntoken = '{SHOP_ENTRY}'\nconsume = ['jobs']\n", "pairs of patterns"),
        (f"[a]\ntoken = '{SHOP_ENTRY}'\nadmins = ['jobs']\n", "unknown field `admins`"),
        (f"[a]\ntoken = '{SHOP_ENTRY}'\nunsettled = -1\n", "unsettled = '-1': expected an integer >= 1"),
        (f"['a b']\ntoken = '{SHOP_ENTRY}'\n", "1 to 64 characters"),
        ("a = 1\n", "expected a table"),
        (f"revoke_all = true\n[a]\ntoken = '{SHOP_ENTRY}'\n", "remove either"),
        ("revoke_all = false\n", "names no client"),
        ("\xff", "is not TOML"),
        (f"a = {'[' * 20_000}", "is not TOML"),
    ],
    ids=["token", "hash", "pair", "field", "value", "name", "table", "both", "none", "text", "nested"],
)
def test_errors_in_a_file_are_named(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "clients.toml").write_bytes(text.encode("latin-1"))
    with pytest.raises(UsageError) as caught:
        read_clients(tmp_path / "clients.toml")
    assert words in str(caught.value)
