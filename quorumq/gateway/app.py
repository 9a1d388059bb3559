"""The ASGI application of a gateway: one for each protocol, by the path of the request.

SQS gets all paths that no other application has: its SDKs post to ``/`` and to the URLs of queues.
"""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route

from quorumq.gateway.gateway import Gateway
from quorumq.gateway.jsonapi.app import JsonApp
from quorumq.gateway.sqs.app import SqsApp


def make_app(gateway: Gateway) -> Starlette:
    """Return the application of a running gateway."""

    async def ready(request: Request) -> Response:
        """Answer that requests are taken, for balancers: 503 once the gateway stops."""
        stopping = gateway.stopping.is_set()
        return PlainTextResponse("stopping\n" if stopping else "ready\n", 503 if stopping else 200)

    return Starlette(
        routes=[Route("/ready", ready), Mount("/v1", JsonApp(gateway)), Mount("/", SqsApp(gateway))]
    )
