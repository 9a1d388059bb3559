"""The ASGI application of a gateway, with the server's framework; it runs if the extra is installed."""

from __future__ import annotations

from typing import Any

import pytest
import trio

pytest.importorskip("starlette")

from quorumq.gateway import requests, shares
from quorumq.gateway.app import make_app
from quorumq.gateway.settings import Settings
from quorumq.gateway.sites import why_refused
from tests.gateway.sdk import URL, Sdk, call, world


def get(path: str, **headers: str) -> dict[str, Any]:
    """The scope of a GET."""
    return {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "scheme": "http",
        "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "",
        "headers": [(name.encode(), text.encode()) for name, text in headers.items()],
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 7480),
    }  # fmt: skip


async def test_balancers_learn_when_a_gateway_stops() -> None:
    async with world() as it:
        app = make_app(it.gateway)
        assert (await call(app, get("/ready"), b"", None)).status == 200
        it.gateway.stopping.set()
        assert (await call(app, get("/ready"), b"", None)).status == 503


async def test_a_balancer_is_answered_while_its_address_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "WAITING_MAX", 1)
    async with world() as it, trio.open_nursery() as nursery:
        app, share = make_app(it.gateway), it.gateway.shares.of(("127.0.0.1", ""))
        async with share.begins:
            nursery.start_soon(call, app, get("/v1/topics"), b"", None)
            await trio.testing.wait_all_tasks_blocked()
            assert (await call(app, get("/ready"), b"", None)).status == 200
            refused = await call(app, get("/v1/topics"), b"", None)
            assert (refused.status, refused.json["code"]) == (429, "busy")


async def test_sqs_has_the_paths_of_queues() -> None:
    async with world() as it:
        sdk = Sdk(make_app(it.gateway))
        await sdk.ok("CreateQueue", QueueName="jobs")
        sent = await sdk.query("SendMessage", path="/000000000000/jobs", MessageBody="x")
        assert sent.status == 200
        with trio.fail_after(5):
            assert (await sdk.ok("ReceiveMessage", QueueUrl=f"{URL}/jobs", WaitTimeSeconds=2))["Messages"]


async def test_a_browser_that_is_given_the_address_alone_gets_to_the_console() -> None:
    """It showed an AccessDenied of SQS, as XML."""
    page = "text/html,application/xhtml+xml,*/*;q=0.8"
    async with world() as it:
        app = make_app(it.gateway)
        answer = await call(app, get("/", accept=page), b"", None)
        assert (answer.status, answer.headers["location"]) == (307, "/console/")
        for scope in (get("/"), {**get("/", accept=page), "query_string": b"Action=ListQueues"}):
            assert (await call(app, scope, b"", None)).status == 403, "of SQS"


async def test_no_header_and_no_path_is_a_bug() -> None:
    async with world() as it:
        app = make_app(it.gateway)
        for headers, status in (
            ({"host": "[::1"}, 400),
            ({"host": "127.0.0.1:7480", "origin": "http://["}, 403),
            ({"host": "127.0.0.1:7480", "origin": "null"}, 403),
        ):
            assert (await call(app, get("/ready", **headers), b"", None)).status == status, headers
        assert (await call(app, {**get("*"), "method": "OPTIONS"}, b"", None)).status == 404


def test_a_public_name_that_leads_to_an_open_gateway_is_refused() -> None:
    names = {"listen": "0.0.0.0:7480", "public_url": "http://q.example.org:7480"}
    for host, status in (
        ("10.1.2.3:7480", 0), ("[::1]:7480", 0), ("gateway:7480", 0), ("gw.internal.", 0), ("", 0),
        ("q.example.org:7480", 0), ("evil.example.org:7480", 403), ("127.0.0.1.nip.io", 403),
    ):  # fmt: skip
        refusal = why_refused(get("/v1/topics", host=host), Settings(nodes=("a:1",), **names))
        assert (0 if refusal is None else refusal[0]) == status, host
        guarded = Settings(nodes=("a:1",), clients_file="clients.toml", token="t", **names)
        assert why_refused(get("/v1/topics", host=host), guarded) is None, "a page has no token"


async def test_a_body_that_is_not_read_is_drained_before_the_answer_ends() -> None:
    """The server's queue has room for one part; it closes the connection when the answer has ended."""
    async with world() as it:
        app = make_app(it.gateway)
        parts, queue = trio.open_memory_channel[dict[str, Any]](1)
        sent: list[str] = []

        async def client() -> None:
            for _ in range(20):
                await parts.send({"type": "http.request", "body": 1000 * b"x", "more_body": True})
            await parts.send({"type": "http.request", "body": b"", "more_body": False})

        async def send(message: dict[str, Any]) -> None:
            sent.append(message["type"])
            if message["type"] == "http.response.body":
                await parts.send({"type": "http.disconnect"})  # as hypercorn does: after all parts

        with trio.fail_after(requests.BODY_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client)
                await app({**get("/"), "method": "PUT"}, queue.receive, send)
        assert sent == ["http.response.start", "http.response.body"]


async def test_answers_that_are_not_read_count_as_bodies(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that reads slowly kept up to 4 MiB of each answer in memory, at as many connections as it liked."""
    monkeypatch.setattr(requests, "BODIES_BYTES_MAX", 8 * 1000)
    async with world() as it:
        app = make_app(it.gateway)
        read = trio.Event()

        async def send(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.body":
                await read.wait()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(app, get("/v1/openapi.json"), trio.sleep_forever, send)
            await trio.testing.wait_all_tasks_blocked()
            answer = await call(app, get("/v1/topics"), b"", None)
            assert (answer.status, answer.json["code"]) == (429, "busy")
            read.set()
        assert (await call(app, get("/v1/topics"), b"", None)).status == 200
        assert (it.gateway.bodies.bytes, it.gateway.bodies.by_owner) == (0, {})


async def test_a_body_without_end_is_drained_within_bounds_and_until_the_server_ends_it() -> None:
    async with world() as it:
        parts, queue = trio.open_memory_channel[dict[str, Any]](1)
        size = 0

        async def client() -> None:
            nonlocal size
            while True:
                await parts.send({"type": "http.request", "body": 1_000_000 * b"x", "more_body": True})
                size += 1_000_000

        async def send(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.body":
                await parts.send({"type": "http.disconnect"})  # behind a part for which the queue has no room

        with trio.fail_after(requests.BODY_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client)
                await make_app(it.gateway)({**get("/"), "method": "PUT"}, queue.receive, send)
                nursery.cancel_scope.cancel()
        assert requests.BODY_BYTES_MAX <= size <= requests.BODY_BYTES_MAX + 6_000_000


async def test_an_answer_ends_at_once_if_the_body_was_read() -> None:
    """The next message of such a request is that its client has left."""
    async with world() as it:
        began = trio.current_time()
        for path in ("/ready", "/v1/topics"):
            assert (await call(make_app(it.gateway), get(path), b"", None)).status == 200
        assert trio.current_time() - began < requests.DRAIN_S
