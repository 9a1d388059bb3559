"""The ASGI application of a gateway, with the server's framework; it runs if the extra is installed."""

from __future__ import annotations

from typing import Any

import pytest
import trio

pytest.importorskip("starlette")

from quorumq.gateway.app import make_app
from tests.gateway.sdk import URL, Sdk, call, world


def get(path: str) -> dict[str, Any]:
    """The scope of a GET."""
    return {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "scheme": "http",
        "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "", "headers": [],
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 7480),
    }  # fmt: skip


async def test_balancers_learn_when_a_gateway_stops() -> None:
    async with world() as it:
        app = make_app(it.gateway)
        assert (await call(app, get("/ready"), b"", None)).status == 200
        it.gateway.stopping.set()
        assert (await call(app, get("/ready"), b"", None)).status == 503


async def test_sqs_has_the_paths_of_queues() -> None:
    async with world() as it:
        sdk = Sdk(make_app(it.gateway))
        await sdk.ok("CreateQueue", QueueName="jobs")
        sent = await sdk.query("SendMessage", path="/000000000000/jobs", MessageBody="x")
        assert sent.status == 200
        with trio.fail_after(5):
            assert (await sdk.ok("ReceiveMessage", QueueUrl=f"{URL}/jobs", WaitTimeSeconds=2))["Messages"]
