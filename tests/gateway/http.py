"""Requests of HTTP to an ASGI application in the process of a test, and a gateway beside a cluster there."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import trio

from quorumq.client import Client
from quorumq.gateway.app import make_app
from quorumq.gateway.gateway import running
from quorumq.gateway.settings import Settings
from quorumq.testing import Cluster, cluster
from tests.gateway.sdk import Answer

HOST = "127.0.0.1:7480"


@dataclass(eq=False)
class Browser:
    """Requests to an application.

    Attributes:
        app: an ASGI application.
        headers: sent with each request.
        cookies: as the application set them.
    """

    app: Callable[..., Awaitable[None]]
    headers: dict[str, str] = field(default_factory=dict)
    cookies: dict[str, str] = field(default_factory=dict)

    async def ask(
        self,
        method: str,
        url: str,
        body: bytes = b"",
        *,
        hang_up: trio.Event | None = None,
        on_chunk: Callable[[bytes], None] = lambda chunk: None,
        **headers: str,
    ) -> Answer:
        """Send a request, and return the answer; the client hangs up once ``hang_up`` is set."""
        parts = urlsplit(url)
        sent = {
            "host": HOST,
            **self.headers,
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        if self.cookies:
            sent["cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
            "path": parts.path, "raw_path": parts.path.encode(), "query_string": parts.query.encode(), "root_path": "",
            "headers": [(name.encode(), value.encode()) for name, value in sent.items()],
            "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 7480),
        }  # fmt: skip
        scope["path"] = _unquoted(parts.path)
        messages = [{"type": "http.request", "body": body, "more_body": False}]
        start: dict[str, Any] = {}
        chunks: list[bytes] = []

        async def receive() -> Any:
            if messages:
                return messages.pop()
            await (trio.Event() if hang_up is None else hang_up).wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            await trio.lowlevel.checkpoint()
            if message["type"] == "http.response.start":
                start.update(message)
            else:
                chunks.append(bytes(message.get("body", b"")))
                on_chunk(chunks[-1])

        await self.app(scope, receive, send)
        pairs = [(name.decode().lower(), value.decode()) for name, value in start.get("headers", ())]
        for name, value in pairs:
            if name == "set-cookie":
                key, _, rest = value.partition("=")
                self.cookies[key] = rest.partition(";")[0]
        return Answer(start.get("status", 0), dict(pairs), b"".join(chunks))

    async def get(self, url: str) -> Answer:
        """Get a page."""
        return await self.ask("GET", url)

    async def call(self, method: str, url: str, body: Any = None, *, status: int | None = None) -> Any:
        """Send JSON that has to be answered with ``status`` (any below 300 if None), and return the answer's."""
        data = b"" if body is None else json.dumps(body).encode()
        answer = await self.ask(method, url, data, content_type="application/json")
        assert answer.status == status if status is not None else answer.status < 300, answer
        return answer.json


def _unquoted(path: str) -> str:
    from urllib.parse import unquote

    return unquote(path)


@asynccontextmanager
async def gateway(
    nodes: Cluster | None = None, **settings: Any
) -> AsyncIterator[tuple[Cluster, Client, Browser]]:
    """Run a cluster, a client of it, and a gateway; a browser without a token."""
    nodes = nodes or cluster()
    async with (
        nodes as client,
        running(Settings(nodes=("a:1",), **settings), lambda user: nodes.connect()) as made,
    ):
        yield nodes, client, Browser(make_app(made))
