"""The ASGI application of a gateway: one for each protocol, by the path of the request.

SQS gets all paths that no other application has: its SDKs post to ``/`` and to the URLs of queues.
"""

from __future__ import annotations

import time
from contextlib import suppress

from starlette.applications import Starlette
from starlette.requests import Request, cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from quorumq.core.values.errors import Busy, Unauthorized
from quorumq.gateway.console.app import ConsoleApp
from quorumq.gateway.console.session import COOKIE, Sessions
from quorumq.gateway.gateway import Gateway
from quorumq.gateway.identity import Owner, User
from quorumq.gateway.jsonapi.app import JsonApp, refusal
from quorumq.gateway.requests import draining, owner_of
from quorumq.gateway.sites import why_refused
from quorumq.gateway.sqs.app import SqsApp, headers_of
from quorumq.gateway.sqs.errors import SqsError
from quorumq.gateway.sqs.signature import claim_of


def make_app(gateway: Gateway) -> ASGIApp:
    """Return the application of a running gateway."""

    async def ready(request: Request) -> Response:
        """Answer that requests are taken, for balancers: 503 once the gateway stops, or nodes refuse it or are away."""
        problem = "stopping" if gateway.stopping.is_set() else gateway.refused or gateway.unreachable
        return PlainTextResponse(f"{problem or 'ready'}\n", 503 if problem else 200)

    console = ConsoleApp(gateway)
    applications: dict[str, ASGIApp] = {"/v1": JsonApp(gateway), "/console": console}
    others = Starlette(routes=[Route("/ready", ready), Mount("/", SqsApp(gateway))])

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request in its user's turn."""
        if scope["type"] != "http":
            await answer(scope, receive, send)
            return
        owner, user = asking(gateway, console.sessions, scope)
        reader = owner if user is None else owner_of(scope, user.name)

        async def put(message: Message) -> None:
            with gateway.bodies.unread(reader, len(message.get("body", b""))):
                await send(message)

        try:
            async with gateway.shares.request(owner, user):
                await answer(scope, receive, put)
        except Busy as error:
            await refusal(error)(scope, receive, send)

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        """Give a request to its application. Patterns of routes do not match all characters that a path may have."""
        prefix = "/" + scope.get("path", "").removeprefix("/").partition("/")[0]
        refused = why_refused(scope, gateway.settings) if scope["type"] == "http" else None
        if refused is not None:
            status, text = refused
            await PlainTextResponse(text + "\n", status)(scope, receive, send)
        elif is_visit(scope):
            await RedirectResponse("/console/")(scope, receive, send)
        elif prefix in applications:
            await applications[prefix](
                {**scope, "root_path": scope.get("root_path", "") + prefix}, receive, send
            )
        else:
            await others(scope, receive, send)

    return draining(app)


def is_visit(scope: Scope) -> bool:
    """Return True if a person has typed the gateway's address: a GET of SQS has its action in the query."""
    if scope["type"] != "http" or (scope["method"], scope["path"], scope["query_string"]) != (
        "GET",
        "/",
        b"",
    ):
        return False
    return "text/html" in headers_of(scope).get("accept", "")


def asking(gateway: Gateway, sessions: Sessions, scope: Scope) -> tuple[Owner, User | None]:
    """Return the owner of a request, and the user if a token or a session shows it. A signature is verified later.

    Balancers that ask for ``/ready`` wait for no other request of their address.
    """
    identities = gateway.identities
    if scope["path"] == "/ready":
        return owner_of(scope, "/ready"), None
    if identities.is_open:
        return owner_of(scope), None
    headers = headers_of(scope)
    with suppress(SqsError, Unauthorized):
        kind, _, token = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            return owner_of(scope), identities.by_token(token.strip())
        if (claim := claim_of(headers)) is not None and identities.token_hash_of(claim.name):
            return owner_of(scope, claim.name), None
        cookies = cookie_parser(headers.get("cookie", ""))
        if (session := sessions.read(cookies.get(COOKIE, ""), time.time())) is not None:
            return owner_of(scope), User(session.name)
    return owner_of(scope), None
