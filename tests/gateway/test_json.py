"""JSON over HTTP against a cluster in one process."""

from __future__ import annotations

import base64
import gc
import json
from pathlib import Path
from typing import Any

import pytest
import trio

pytest.importorskip("starlette", reason="the extra quorumq[gateway] is not installed")
pytest.importorskip("hypercorn", reason="the extra quorumq[gateway] is not installed")

from quorumq.client import Closed
from quorumq.core.values.errors import Busy
from quorumq.gateway import shares
from quorumq.gateway.app import make_app
from quorumq.gateway.gateway import running
from quorumq.gateway.jsonapi.openapi import document
from quorumq.gateway.jsonapi.problems import headers_of, problem_of
from quorumq.gateway.requests import VALUES_MAX
from quorumq.gateway.settings import Settings
from quorumq.gateway.sqs.errors import sqs_error
from quorumq.node.clients import Entry, new_token, write_clients
from quorumq.testing import cluster
from tests.gateway.http import Browser, gateway

JOBS = "/v1/topics/jobs"
GROUP = JOBS + "/groups/g"


async def test_a_message_goes_from_a_publish_to_its_ack() -> None:
    async with gateway() as (_, _, browser):
        message = {"payload": "grüße", "key": "k", "headers": {"tenant": "7", "n" * 256: 3}}
        made = await browser.call("POST", JOBS + "/messages", message, status=201)
        (got,) = (await browser.call("POST", GROUP + "/fetch", {"max_wait": 1}))["messages"]
        assert {name: got[name] for name in ("id", "payload", "key", "headers", "attempt")} == {
            "id": made["id"], "attempt": 1, **message,
        }  # fmt: skip
        assert 0 < got["expires_in"] <= 30
        life = await browser.call("GET", f"{JOBS}/messages/{made['id']}")
        assert {seen["state"] for replica in life["replicas"] for seen in replica["groups"]} >= {"held"}
        assert life["message"]["payload"] == "grüße"
        settled = await browser.call("POST", "/v1/receipts/ack", {"receipts": [got["receipt"]]})
        assert settled == {"results": [{"outcome": "acked", "problem": None}]}
        assert (await browser.call("GET", GROUP + "/backlog"))["ready"] == 0


async def test_batches_of_one_user_share_a_session_and_keep_their_order() -> None:
    async with gateway() as (_, _, browser):
        ids = []
        for _ in range(3):
            messages = [{"payload": str(number)} for number in range(20)]
            made = await browser.call("POST", JOBS + "/messages/batch", {"messages": messages})
            ids += [result["id"] for result in made["results"]]
        assert len({name.rpartition("/")[0] for name in ids}) == 1
        assert [int(name.rpartition("/")[2]) for name in ids] == list(range(60))


async def test_a_message_of_the_same_name_is_the_same_message() -> None:
    async with gateway() as (_, _, browser):
        one, two = [
            await browser.call("POST", JOBS + "/messages", {"payload": "x", "dedup": "invoice-4711"})
            for _ in range(2)
        ]
        assert one == two
        other = await browser.call(
            "POST", JOBS + "/messages", {"payload": "y", "dedup": "invoice-4711"}, status=409
        )
        assert other["code"] == "conflict"


async def test_several_messages_of_all_kinds_of_payload_are_published_at_once() -> None:
    async with gateway() as (_, _, browser):
        raw = base64.b64encode(b"\x00\xff").decode()
        messages = [
            {"payload": ""},
            {"payload_base64": raw},
            {"json": {"a": [1]}},
            {"json": None},
            {"payload": "z" * 2_000_000},
        ]
        made = await browser.call("POST", JOBS + "/messages/batch", {"messages": messages})
        assert (made["stored"], made["results"][4]["problem"]["code"]) == (4, "too-large")
        got = (await browser.call("POST", GROUP + "/fetch", {"max_messages": 9, "max_wait": 1}))["messages"]
        payloads = {message["id"]: message["payload"] or message["payload_base64"] for message in got}
        assert [payloads[result["id"]] for result in made["results"][:3]] == [None, raw, '{"a":[1]}']


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code", "named"),
    [
        ("POST", JOBS + "/messages", {}, 400, "usage", "no payload"),
        ("POST", JOBS + "/messages", {"payload": "a", "json": 1}, 400, "usage", "payload and json"),
        ("POST", JOBS + "/messages", {"payload": "a", "prio": 1}, 400, "bad-request", "prio"),
        ("POST", JOBS + "/messages", {"payload": "a", "delay": -1}, 400, "bad-request", "$.delay"),
        ("POST", JOBS + "/messages", {"payload_base64": "?"}, 400, "usage", "base64"),
        ("POST", "/v1/topics/a b/messages", {"payload": "a"}, 400, "usage", "a b"),
        ("POST", "/v1/topics/a%0Ab/messages", {"payload": "a"}, 400, "usage", "a\\nb"),
        ("GET", "/v1/%0A", None, 404, "not-found", "openapi.json"),
        ("POST", JOBS + "/messages/batch", {"messages": []}, 400, "bad-request", "$.messages"),
        ("POST", JOBS + "/messages/batch", {"messages": [{"payload": ""}, {}]}, 400, "usage", "message 1"),
        ("POST", JOBS + "/messages/batch", {"messages": [{}] * VALUES_MAX}, 413, "too-large", "50000 values"),
        ("POST", GROUP + "/fetch", {"max_wait": 21}, 400, "bad-request", "$.max_wait"),
        ("POST", "/v1/topics/nothing/groups/g/fetch", {}, 404, "not-found", "nothing"),
        ("POST", GROUP + "/rewind", {"to": "2026-11-21T08:00:00"}, 400, "bad-request", "zone"),
        ("POST", GROUP + "/purge", {}, 400, "usage", "ids"),
        ("POST", GROUP + "/dead-letters/redrive", {}, 400, "usage", "choose"),
        ("POST", "/v1/receipts/ack", {"receipts": []}, 400, "bad-request", "$.receipts"),
        ("GET", GROUP + "/messages?which=old", None, 400, "bad-request", "old"),
        ("GET", GROUP + "/messages?limit=1&limit=2", None, 400, "bad-request", "twice"),
        ("GET", GROUP + "/backlog?x=1", None, 400, "bad-request", "no parameters"),
        ("GET", "/v1/topics/nothing/groups/g/tail", None, 404, "not-found", "nothing"),
        ("GET", JOBS + "/messages/xyz", None, 400, "usage", "xyz"),
        ("DELETE", JOBS + "/messages", None, 405, "bad-request", "POST"),
        ("DELETE", "/v1/topics", None, 405, "bad-request", "GET, HEAD"),
        ("HEAD", "/v1/receipts/ack", None, 405, "bad-request", "POST"),
        ("GET", "/v1/nothing", None, 404, "not-found", "openapi.json"),
        ("HEAD", "/v1/nothing", None, 404, "not-found", "openapi.json"),
    ],
)
async def test_wrong_requests_are_refused_with_the_wrong_value_and_a_remedy(
    method: str, path: str, body: Any, status: int, code: str, named: str
) -> None:
    async with gateway() as (_, client, browser):
        await client.create_topic("jobs")
        await client.create_group("jobs", "g")
        data = b"" if body is None else json.dumps(body).encode()
        answer = await browser.ask(method, path.replace(" ", "%20"), data, content_type="application/json")
        problem = answer.json
        assert (answer.status, problem["status"], problem["code"]) == (status, status, code), problem
        assert named in problem["detail"]
        assert problem["remedy"]
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.headers.get("allow", "") == (named if status == 405 else "")
        assert status == 405 or str(status) in document()["components"]["responses"]
        other = await browser.ask("POST", GROUP + "/fetch", b"{}", content_type="text/plain")
        assert other.status == 415
        assert "415" in document()["components"]["responses"]


async def test_receipts_are_settled_one_by_one_and_each_says_how() -> None:
    async with gateway() as (_, client, browser):
        for number in range(5):
            await client.publish("jobs", b"%d" % number)
        got = (await browser.call("POST", GROUP + "/fetch", {"max_messages": 5, "max_wait": 2}))["messages"]
        one, two, three, four, five = [message["receipt"] for message in got]
        mixed = await browser.call("POST", "/v1/receipts/ack", {"receipts": [one, "nonsense"]})
        assert [result["outcome"] for result in mixed["results"]] == ["acked", None]
        assert mixed["results"][1]["problem"]["code"] == "bad-receipt"
        await browser.call("POST", "/v1/receipts/extend", {"receipts": [two], "hold_time": 60})
        assert (await browser.call("POST", "/v1/receipts/reject", {"receipts": [three], "delay": 30}))[
            "results"
        ][0]["outcome"] == "requeued"
        await browser.call("POST", "/v1/receipts/release", {"receipts": [four]})
        await browser.call(
            "POST", "/v1/receipts/dead-letter", {"receipts": [five], "reason": "no such order"}
        )
        backlog = await browser.call("GET", GROUP + "/backlog")
        assert [backlog[name] for name in ("ready", "held", "delayed", "dead")] == [1, 1, 1, 1]
        assert (await browser.call("GET", "/v1/backlogs?topic=jobs"))["backlogs"] == [backlog]
        (again,) = (await browser.call("POST", GROUP + "/fetch", {}))["messages"]
        assert (again["attempt"], again["interruptions"]) == (1, 1)
        lost = await browser.call("POST", "/v1/receipts/extend", {"receipts": [three]})
        assert lost["results"][0]["problem"]["code"] == "hold-lost"


async def test_dead_letters_are_counted_redriven_and_purged() -> None:
    async with gateway() as (_, client, browser):
        for number in range(6):
            await client.publish("jobs", b"%d" % number)
        messages = await client.fetch("jobs", "g", max_messages=6, min_messages=6, max_wait=2)
        for number, message in enumerate(messages):
            await message.dead_letter(ValueError("bad") if number < 4 else KeyError("k"))
        kinds = (await browser.call("GET", GROUP + "/dead-letters"))["kinds"]
        assert [(kind["messages"], kind["error_class"]) for kind in kinds] == [
            (4, "ValueError"),
            (2, "KeyError"),
        ]
        body = {"fingerprint": kinds[0]["fingerprint"], "limit": 3}
        assert await browser.call("POST", GROUP + "/dead-letters/redrive", body) == {
            "redriven": 3, "already": 0, "more": True,
        }  # fmt: skip
        (sample,) = kinds[1]["samples"][:1]
        assert (await browser.call("POST", GROUP + "/dead-letters/redrive", {"ids": [sample]}))[
            "redriven"
        ] == 1
        assert (await browser.call("POST", GROUP + "/dead-letters/purge", {"all": True}))["purged"] == 2
        peek = await browser.call("GET", GROUP + "/messages?which=all&text=3")
        assert [message["payload"] for message in peek["messages"]] == ["3"]
        assert (peek["looked_at"], peek["of"], peek["complete"]) == (6, 6, True)


async def test_groups_are_created_and_rewound_and_a_rewind_is_counted_before() -> None:
    async with gateway() as (_, client, browser):
        await client.create_topic("jobs", retention=3600)
        await browser.call("PUT", GROUP, {"start": "earliest"})
        await client.publish("jobs", b"x")
        await client.ack(await client.fetch("jobs", "g", max_wait=1))
        dry = await browser.call("POST", GROUP + "/rewind", {"to": "earliest", "dry_run": True})
        assert (dry["messages"], dry["states"]) == (1, {"acked": 1})
        await browser.call("POST", GROUP + "/rewind", {"to": "2020-01-01T00:00:00Z"})
        assert (await browser.call("GET", GROUP + "/backlog"))["ready"] == 1
        limited = await browser.call("POST", GROUP + "/limit", {"per_second": 5, "burst": 2})
        assert (limited["per_second"], limited["burst"]) == (5.0, 2)
        assert (await browser.call("POST", GROUP + "/limit", {"per_second": None}))["per_second"] is None
        assert (await browser.call("POST", GROUP + "/pause"))["paused"]
        assert not (await browser.call("POST", GROUP + "/fetch", {}))["messages"]
        assert not (await browser.call("POST", GROUP + "/resume"))["paused"]
        (topic,) = (await browser.call("GET", "/v1/topics"))["topics"]
        assert (topic["name"], topic["retention"], topic["groups"]) == ("jobs", 3600.0, ["g"])


async def test_a_long_poll_whose_client_has_left_takes_no_message_along() -> None:
    async with gateway() as (_, client, browser):
        await client.create_topic("jobs")
        await client.create_group("jobs", "g")
        hang_up = trio.Event()
        async with trio.open_nursery() as nursery:
            body = json.dumps({"max_wait": 20}).encode()
            nursery.start_soon(lambda: browser.ask("POST", GROUP + "/fetch", body, hang_up=hang_up))
            await trio.sleep(2)
            hang_up.set()
        await client.publish("jobs", b"x")
        (message,) = await client.fetch("jobs", "g", max_wait=1)
        assert message.attempt == 1


async def test_head_is_get_and_of_a_tail_it_has_an_end() -> None:
    async with gateway() as (_, client, browser):
        await client.create_topic("jobs")
        await client.create_group("jobs", "g")
        for url in ("/v1/topics", "/v1/openapi.json", GROUP + "/messages", GROUP + "/backlog"):
            head, get = await browser.ask("HEAD", url), await browser.get(url)
            assert (head.status, head.headers) == (200, get.headers), url
        answer = await browser.ask("HEAD", GROUP + "/tail")
        assert (answer.status, answer.headers["content-type"]) == (200, "text/event-stream")


async def test_a_tail_is_events_and_ends_with_its_client() -> None:
    async with gateway() as (_, client, browser):
        await client.create_topic("jobs", retention=3600)
        await client.create_group("jobs", "g")
        hang_up, chunks = trio.Event(), []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                lambda: browser.ask("GET", GROUP + "/tail", hang_up=hang_up, on_chunk=chunks.append)
            )
            await trio.sleep(2)
            name = await client.publish("jobs", b"line\n\ntwo")
            await trio.sleep(20)
            hang_up.set()
        events = [chunk for chunk in chunks if chunk.startswith(b"id:")]
        (event,) = events
        head, _, data = event.decode().strip().partition("\ndata: ")
        assert head == f"id: {name}\nevent: message"
        assert json.loads(data)["payload"] == "line\n\ntwo"
        assert chunks.count(b": alive\n\n") == 2
        assert (await client.backlog("jobs", "g")).held == 0


async def test_a_token_is_needed_where_the_nodes_have_clients(tmp_path: Path) -> None:
    token, digest = new_token("alice")
    write_clients(tmp_path / "clients.toml", {"alice": Entry(digest, publish=("*",))})

    settings = {"clients_file": str(tmp_path / "clients.toml"), "token": "gateway.x"}
    async with gateway(**settings) as (_, _, browser):
        for wrong in ({}, {"authorization": "Bearer alice.x"}, {"authorization": "Basic YTpi"}):
            browser.headers = wrong
            answer = await browser.get("/v1/topics")
            assert (answer.status, answer.json["code"]) == (401, "unauthorized")
            assert answer.headers["www-authenticate"] == "Bearer"
        browser.headers = {"authorization": f"Bearer {token}"}
        assert (await browser.get("/v1/topics")).status == 200


def test_every_answer_is_as_the_document_says() -> None:
    """The document is made of the classes; so are the answers. The test checks that it is complete."""
    paths = document()["paths"]
    names = [entry["operationId"] for methods in paths.values() for entry in methods.values()]
    assert len(names) == len(set(names)) == 23
    text = json.dumps(document())
    schemas = document()["components"]["schemas"]
    for part in text.split('"#/components/schemas/')[1:]:
        assert part.partition('"')[0] in schemas
    fetch = paths["/topics/{topic}/groups/{group}/fetch"]["post"]
    assert fetch["requestBody"]["content"]["application/json"]["schema"] == {
        "$ref": "#/components/schemas/FetchBody"
    }
    assert schemas["FetchBody"]["properties"]["max_wait"]["maximum"] == 20
    assert schemas["FetchBody"]["additionalProperties"] is False
    assert not fetch["requestBody"]["required"], "each field has a default"
    assert paths["/receipts/ack"]["post"]["requestBody"]["required"]
    assert (document()["security"], document(is_open=True)["security"]) == ([{"token": []}], [{}])


async def test_a_gateway_that_stops_says_so_and_that_others_may_be_asked() -> None:
    nodes = cluster(1)
    async with nodes as client, running(Settings(nodes=("a:1",)), lambda user: nodes.connect()) as made:
        await client.create_topic("jobs")
        browser = Browser(make_app(made))
        answers = []

        async def wait() -> None:
            answers.append(await browser.call("POST", GROUP + "/fetch", {"max_wait": 20}, status=503))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            nursery.start_soon(browser.ask, "GET", GROUP + "/tail")
            await trio.sleep(1)
            made.stopping.set()
            nursery.cancel_scope.deadline = trio.current_time() + 5
        assert not nursery.cancel_scope.cancelled_caught, "a tail ends, too"
        assert (answers[0]["code"], "another gateway" in answers[0]["remedy"]) == ("stopping", True)
    assert problem_of(Closed("x")).status == sqs_error(Closed("x")).status == 503


def test_a_client_above_its_quota_waits_for_a_second_at_least() -> None:
    assert [headers_of(Busy("x", delay=delay))["Retry-After"] for delay in (0.0, 0.4, 2.6)] == ["1", "1", "3"]


async def test_headers_and_values_that_no_message_may_have_are_refused() -> None:
    async with gateway() as (_, _, browser):
        for message in ({"payload": "x", "headers": {"n": 2**64}}, {"payload": "x", "headers": {"": 1}}):
            refused = await browser.call("POST", JOBS + "/messages", message, status=400)
            assert refused["code"] == "usage", refused
            made = await browser.call(
                "POST", JOBS + "/messages/batch", {"messages": [message, {"payload": "y"}]}
            )
            assert [result["problem"] is None for result in made["results"]] == [False, True]
        for body in (b'{"payload": "\\ud800"}', b'{"json": 1e999}', b'{"payload": "x", "key": "\\udfff"}'):
            assert (await browser.ask("POST", JOBS + "/messages", body)).status == 400, body


async def test_an_answer_has_4_mib_of_messages_that_were_looked_at() -> None:
    async with gateway() as (_, client, browser):
        for _ in range(6):
            await client.publish("jobs", 1_000_000 * b"x")
        answer = await browser.call("GET", GROUP + "/messages?which=all&limit=10")
        assert (len(answer["messages"]), answer["complete"]) == (4, False)


async def test_long_work_asks_for_turns_between_its_items(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = 0

    async def turn() -> None:
        nonlocal turns
        turns += 1

    async with gateway() as (_, client, browser):
        await client.producer("jobs").publish_many([b"x"] * 5)
        await client.create_group("jobs", "g")
        monkeypatch.setattr(shares, "turn", turn)
        monkeypatch.setattr(shares, "PACE_ITEMS", 1)
        five = {"messages": [{"payload": "x"}] * 5}
        for method, url, body, most in (
            ("GET", GROUP + "/messages?which=all", None, 10),
            ("GET", GROUP + "/messages?which=all&text=none", None, 5),
            ("GET", "/v1/topics", None, 1),
            ("GET", "/v1/backlogs", None, 1),
            ("POST", GROUP + "/fetch", {"max_messages": 5}, 5),
            ("POST", JOBS + "/messages/batch", five, 10),
            ("POST", "/v1/receipts/ack", {"receipts": ["QQ"] * 5}, 10),
        ):
            before = turns
            await browser.call(method, url, body)
            assert turns - before == most, url
        before = turns
        assert (await browser.get("/console/group?topic=jobs&group=g")).status == 200
        assert turns - before >= 5


async def test_forged_receipts_make_no_work_for_the_collector() -> None:
    async with gateway() as (_, _, browser):
        body = {"receipts": ["QQ" * 60] * 200}
        await browser.call("POST", "/v1/receipts/ack", body)
        gc.collect()
        await browser.call("POST", "/v1/receipts/ack", body)
        assert gc.collect() < 200
