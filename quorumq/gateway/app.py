"""The ASGI application of a gateway: one application for each door, by the path of the request.

The last one gets all paths that no other door has, as SDKs of SQS post to ``/`` and to the URLs of queues.
"""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from quorumq.gateway.gateway import Gateway


def make_app(gateway: Gateway) -> Starlette:
    """Return the application of a running gateway."""

    async def ready(request: Request) -> Response:
        """Answer that requests are taken, for balancers: 503 once the gateway stops."""
        stopping = gateway.stopping.is_set()
        return PlainTextResponse("stopping\n" if stopping else "ready\n", 503 if stopping else 200)

    return Starlette(routes=[Route("/ready", ready)])
