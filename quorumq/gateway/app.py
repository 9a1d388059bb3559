"""The ASGI application of a gateway: one for each protocol, by the path of the request.

SQS gets all paths that no other application has: its SDKs post to ``/`` and to the URLs of queues.
"""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from quorumq.gateway.console.app import ConsoleApp
from quorumq.gateway.gateway import Gateway
from quorumq.gateway.jsonapi.app import JsonApp
from quorumq.gateway.requests import draining
from quorumq.gateway.sites import why_refused
from quorumq.gateway.sqs.app import SqsApp


def make_app(gateway: Gateway) -> ASGIApp:
    """Return the application of a running gateway."""

    async def ready(request: Request) -> Response:
        """Answer that requests are taken, for balancers: 503 once the gateway stops."""
        stopping = gateway.stopping.is_set()
        return PlainTextResponse("stopping\n" if stopping else "ready\n", 503 if stopping else 200)

    applications: dict[str, ASGIApp] = {"/v1": JsonApp(gateway), "/console": ConsoleApp(gateway)}
    others = Starlette(routes=[Route("/ready", ready), Mount("/", SqsApp(gateway))])

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        """Give a request to its application. Patterns of routes do not match all characters that a path may have."""
        prefix = "/" + scope.get("path", "").removeprefix("/").partition("/")[0]
        refusal = why_refused(scope, gateway.settings) if scope["type"] == "http" else None
        if refusal is not None:
            status, text = refusal
            await PlainTextResponse(text + "\n", status)(scope, receive, send)
        elif prefix in applications:
            await applications[prefix](
                {**scope, "root_path": scope.get("root_path", "") + prefix}, receive, send
            )
        else:
            await others(scope, receive, send)

    return draining(app)
