"""A small SDK of SQS for tests: requests in either protocol, signed if there is a key, to an ASGI application."""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from urllib.parse import urlencode
from xml.etree import ElementTree

import trio

from quorumq.client import Client
from quorumq.gateway.gateway import Gateway, running
from quorumq.gateway.settings import Settings
from quorumq.gateway.sqs.app import SqsApp
from quorumq.gateway.sqs.signature import Claim, HttpRequest, canonical_request, signing_key
from quorumq.testing import Cluster, cluster

HOST = "127.0.0.1:7480"
URL = f"http://{HOST}/000000000000"
JOBS = f"{URL}/jobs"
TYPES = {
    "InvalidParameterValue": "InvalidParameterValueException",
    "MissingParameter": "MissingRequiredParameterException",
}
"""Types of errors whose names differ, as AWS answers them."""
PART_BYTES = 64 * 1024
"""Bytes that a server reads from a socket at once."""


class Answer(NamedTuple):
    """The answer to one request."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body, from JSON."""
        return json.loads(self.body)

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode()

    @property
    def code(self) -> str:
        """Name of the error in the JSON protocol; "" without one."""
        name = str(self.json.get("__type", "")).removeprefix("com.amazonaws.sqs#")
        return {value: key for key, value in TYPES.items()}.get(name, name)

    @property
    def xml(self) -> ElementTree.Element:
        """The body, from XML, without its namespace."""
        return ElementTree.fromstring(
            self.text.replace(' xmlns="http://queue.amazonaws.com/doc/2012-11-05/"', "")
        )


class Sdk:
    """Requests to an application.

    Args:
        app: an ASGI application.
        name, secret: access key; requests are not signed without a secret.
        now: seconds since 1970.
    """

    def __init__(
        self, app: Any, name: str = "", secret: str = "", now: Callable[[], float] = time.time
    ) -> None:
        self.app = app
        self.name = name
        self.secret = secret
        self.now = now

    async def ask(self, action: str, **params: Any) -> Answer:
        """Send an action in the JSON protocol."""
        headers = {"x-amz-target": f"AmazonSQS.{action}", "content-type": "application/x-amz-json-1.0"}
        return await self.send(json.dumps(params).encode(), headers)

    async def ok(self, action: str, **params: Any) -> Any:
        """Send an action that has to succeed, and return its result."""
        answer = await self.ask(action, **params)
        assert answer.status == 200, answer.body
        return answer.json

    async def query(self, action: str, path: str = "/", **params: str) -> Answer:
        """Send an action in the query protocol."""
        body = urlencode({"Action": action, "Version": "2012-11-05", **params}).encode()
        return await self.send(body, {"content-type": "application/x-www-form-urlencoded"}, path=path)

    async def send(
        self,
        body: bytes,
        headers: Mapping[str, str],
        *,
        method: str = "POST",
        path: str = "/",
        query: str = "",
        hung_up: trio.Event | None = None,
        changed: Callable[[dict[str, str], bytes], tuple[dict[str, str], bytes]] | None = None,
    ) -> Answer:
        """Send a request.

        Args:
            body: its body.
            headers: headers beside Host and those of the signature.
            method, path, query: of the request.
            hung_up: set when the client hangs up; never if None.
            changed: changes headers and body after they are signed.
        """
        all_headers = {"host": HOST, **headers}
        if self.secret:
            all_headers |= self.signed(HttpRequest(method, path, query, all_headers, body))
        if changed is not None:
            all_headers, body = changed(all_headers, body)
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
            "path": path, "raw_path": path.encode(), "query_string": query.encode(), "root_path": "",
            "headers": [(name.encode(), value.encode()) for name, value in all_headers.items()],
            "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 7480),
        }  # fmt: skip
        return await call(self.app, scope, body, hung_up)

    def signed(self, request: HttpRequest) -> dict[str, str]:
        """Return the headers that sign a request."""
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(self.now()))
        names = tuple(sorted({*request.headers, "x-amz-date"}))
        claim = Claim(self.name, stamp[:8], "eu-north-1", "sqs", names, "")
        dated = request._replace(headers={**request.headers, "x-amz-date": stamp})
        canonical = canonical_request(dated, names, hashlib.sha256(request.body).hexdigest())
        scope = f"{claim.date}/{claim.region}/{claim.service}/aws4_request"
        digest = hashlib.sha256(canonical.encode()).hexdigest()
        text = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{digest}"
        signature = hmac.new(signing_key(self.secret, claim), text.encode(), hashlib.sha256).hexdigest()
        fields = f"Credential={self.name}/{scope}, SignedHeaders={';'.join(names)}, Signature={signature}"
        return {"x-amz-date": stamp, "authorization": f"AWS4-HMAC-SHA256 {fields}"}


async def call(
    app: Callable[..., Awaitable[None]], scope: dict[str, Any], body: bytes, hung_up: trio.Event | None
) -> Answer:
    """Call an ASGI application; status 0 says that it sent nothing."""
    parts = [body[at : at + PART_BYTES] for at in range(0, len(body), PART_BYTES)] or [b""]
    chunks = [{"type": "http.request", "body": part, "more_body": True} for part in reversed(parts)]
    chunks[0]["more_body"] = False
    start: dict[str, Any] = {"status": 0, "headers": []}
    answer: list[bytes] = []
    gone = trio.Event() if hung_up is None else hung_up

    async def receive() -> dict[str, Any]:
        if chunks:
            return chunks.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            start.update(message)
        else:
            answer.append(message.get("body", b""))

    await app(scope, receive, send)
    headers = {name.decode(): value.decode() for name, value in start["headers"]}
    return Answer(start["status"], headers, b"".join(answer))


class World(NamedTuple):
    """A cluster in this process, with a gateway."""

    nodes: Cluster
    client: Client
    gateway: Gateway
    sdk: Sdk


@asynccontextmanager
async def world(*queues: str, **options: Any) -> AsyncIterator[World]:
    """Run a cluster and a gateway without a clients file, and make queues; options as of `cluster`."""
    nodes = cluster(**options)
    async with (
        nodes as client,
        running(Settings(nodes=("a:7401",)), lambda user: nodes.connect(timeout=3)) as gateway,
    ):
        sdk = Sdk(SqsApp(gateway))
        for queue in queues:
            await sdk.ok("CreateQueue", QueueName=queue)
        yield World(nodes, client, gateway, sdk)


async def receive(sdk: Sdk, url: str = JOBS, **params: Any) -> list[dict[str, Any]]:
    """Receive up to 10 messages."""
    answer = await sdk.ok("ReceiveMessage", QueueUrl=url, MaxNumberOfMessages=10, **params)
    return list(answer.get("Messages", []))


async def counts(sdk: Sdk, url: str = JOBS) -> list[int]:
    """Counts of visible, held and delayed messages."""
    attributes = (await sdk.ok("GetQueueAttributes", QueueUrl=url, AttributeNames=["All"]))["Attributes"]
    return [int(attributes[f"ApproximateNumberOfMessages{kind}"]) for kind in ("", "NotVisible", "Delayed")]
