"""The application under ``/v1``: finds the operation and the user, reads the request, and writes the answer."""

from __future__ import annotations

import logging
import re
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Final, cast

import msgspec
import trio
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from quorumq.client import QuorumqError, TooLarge
from quorumq.gateway.gateway import Gateway
from quorumq.gateway.identity import User
from quorumq.gateway.jsonapi.openapi import document
from quorumq.gateway.jsonapi.operations import OPERATIONS, Call, Operation
from quorumq.gateway.jsonapi.problems import TYPE, Refused, Stops, headers_of, problem_of, status_of
from quorumq.gateway.jsonapi.shapes import encoded
from quorumq.gateway.requests import (
    VALUES_MAX,
    Left,
    Stopping,
    has_more_values,
    length_of,
    owner_of,
    while_there,
)
from quorumq.gateway.shares import turn

JSON: Final = "application/json"
FORM: Final = "application/x-www-form-urlencoded"
"""The type that `curl -d` sends if nothing is said. Its body is JSON all the same."""
READS: Final = ("GET", "HEAD")
ALIVE_S: Final = 15.0
"""Seconds between two signs of life in a stream of events."""
STREAM_S: Final = 3600.0
"""Seconds after which a stream of events ends: browsers connect again."""

_NAMES: Final = re.compile(r"\{(\w+)(:path)?\}")

log = logging.getLogger("quorumq.gateway")


class JsonApp:
    """JSON over HTTP."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.routes = [(re.compile(_NAMES.sub(_pattern, one.path)), one) for one in OPERATIONS]
        self.document = encoded(document(gateway.identities.is_open))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            response = await self.answer(Request(scope, receive))
        except Left:
            return
        except Stopping:
            response = refusal(Stops())
        except QuorumqError as error:
            response = refusal(error)
        except Exception:
            log.exception("%s %s", scope["method"], scope["path"])
            response = refusal(QuorumqError("the gateway failed: its log has the cause"))
        await response(scope, receive, send)

    async def answer(self, request: Request) -> Response:
        """Return the answer to a request.

        Raises:
            QuorumqError: it is refused, or failed.
            Left: the client has left.
        """
        if (
            request.method in READS
            and request.scope["path"].removeprefix(request.scope["root_path"]) == "/openapi.json"
        ):
            return Response(self.document, media_type=JSON)
        operation, names = self.find(request.scope)
        user = self.user_of(request)
        owner, length = owner_of(request.scope, user.name), length_of(request.scope["headers"])
        async with self.gateway.bodies.read(request.receive, owner, length=length) as data:
            return await self.carry_out(request, operation, names, user, data)

    async def carry_out(
        self, request: Request, operation: Operation, names: dict[str, str], user: User, data: bytearray
    ) -> Response:
        """Return the answer to a request whose body is ``data``."""
        await turn()
        body = self.decoded(request, operation, data)
        query = self.query_of(request, operation)

        async def work() -> Any:
            async with self.gateway.client(user) as client:
                return await operation.handler(Call(client, names, query, body))

        async def undo(value: Any) -> None:
            if operation.undo is not None:
                async with self.gateway.client(user) as client:
                    await operation.undo(client, value)

        if operation.streams:
            return await self.stream(user, operation, Call(None, names, query, body))  # type: ignore[arg-type]
        if operation.waits:
            stopping = self.gateway.stopping
            value = await while_there(request.receive, work, stopping=stopping, undo=undo)
        else:
            value = await work()
        await turn()
        return Response(encoded(value), operation.status, media_type=JSON)

    def find(self, scope: Scope) -> tuple[Operation, dict[str, str]]:
        """Return the operation of a path and a method, with the names in the path; Refused if there is none.

        HEAD is GET, whose body the server leaves out: HTTP asks that of each path that has GET (RFC 9110, 9.1).
        """
        methods: list[str] = []
        path, method = scope["path"].removeprefix(scope["root_path"]), scope["method"]
        for pattern, operation in self.routes:
            match = pattern.fullmatch(path)
            if match is None:
                continue
            taken = READS if operation.method == "GET" else (operation.method,)
            if method in taken:
                return operation, match.groupdict()
            methods += taken
        if methods:
            allow = ", ".join(methods)
            raise Refused(f"{path} takes {allow}", value=method, status=405, allow=allow)
        raise Refused("there is no such path: /v1/openapi.json lists them", value=path, status=404)

    def user_of(self, request: Request) -> User:
        """Return who asks, by the bearer token; Refused if no client has it."""
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme and scheme.lower() != "bearer":
            raise Refused("the authorization is no bearer token: send Authorization: Bearer NAME.SECRET",
                          value=scheme, status=401)  # fmt: skip
        try:
            return self.gateway.identities.by_token(token.strip())
        except QuorumqError as error:
            raise Refused(str(error), status=401) from None

    def decoded(self, request: Request, operation: Operation, data: bytearray) -> Any:
        """Return the contents of a request's body.

        Raises:
            Refused: it is no body of the operation; names the field.
            TooLarge: it has too many values.
        """
        if operation.body is None:
            return None
        kind = request.headers.get("content-type", JSON).partition(";")[0].strip().lower()
        if kind not in (JSON, FORM):
            raise Refused(f"the body is of another type: send Content-Type: {JSON}", value=kind, status=415)
        if has_more_values(data):
            raise TooLarge(
                f"a body of more than {VALUES_MAX} values: send less at once, or JSON as the text of a payload"
            )
        try:
            return msgspec.json.decode(data or b"{}", type=operation.body)
        except (
            msgspec.DecodeError,
            ValueError,
            RecursionError,
        ) as error:  # its text has the path of the field
            raise Refused(f"the body cannot be read: {error}", value=shown(data)) from None

    def query_of(self, request: Request, operation: Operation) -> Any:
        """Return the parameters of a request; Refused if one is unknown, repeated or invalid."""
        given: dict[str, str] = {}
        for name, value in request.query_params.multi_items():
            if name in given:
                raise Refused(f"the parameter {name} comes twice", value=value)
            given[name] = value
        if operation.query is None:
            if given:
                raise Refused("this request takes no parameters", value=next(iter(given)))
            return None
        try:
            return msgspec.convert(given, type=operation.query, strict=False)
        except msgspec.ValidationError as error:
            raise Refused(f"the parameters cannot be read: {error}", value=request.url.query[:200]) from None

    async def stream(self, user: User, operation: Operation, call: Call) -> Response:
        """Return a stream of events, after a first look whether there can be any."""
        async with self.gateway.client(user) as client:
            await operation.handler(replace(call, client=client))
        return cast("Response", EventStream(self.gateway, user, operation, call))


@dataclass(eq=False)
class EventStream:
    """Answer of server-sent events: messages, and comments while there are none, until the client leaves."""

    gateway: Gateway
    user: User
    operation: Operation
    call: Call

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        if scope["method"] == "HEAD":
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            return
        sending = trio.Lock()

        async def put(text: bytes) -> None:
            async with sending:
                await send({"type": "http.response.body", "body": text, "more_body": True})

        async def look() -> None:
            try:
                async with (
                    self.gateway.client(self.user) as client,
                    aclosing(await self.operation.handler(replace(self.call, client=client))) as values,
                ):
                    async for value in values:
                        text = b"id: %b\nevent: message\ndata: %b\n\n"
                        await put(text % (value.id.encode(), encoded(value)))
            except QuorumqError as error:
                await put(b"event: problem\ndata: " + encoded(problem_of(error)) + b"\n\n")
            nursery.cancel_scope.cancel()

        async def live() -> None:
            while True:
                await put(b": alive\n\n")
                await trio.sleep(ALIVE_S)

        async def until_gone() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            nursery.cancel_scope.cancel()

        async def until_stopped() -> None:
            await self.gateway.stopping.wait()
            nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.cancel_scope.deadline = trio.current_time() + STREAM_S
            for task in (look, live, until_gone, until_stopped):
                nursery.start_soon(task)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def refusal(error: QuorumqError) -> Response:
    return Response(encoded(problem_of(error)), status_of(error), headers=headers_of(error), media_type=TYPE)


def shown(data: bytearray) -> str:
    """Return the beginning of a body for an error."""
    return data[:200].decode(errors="backslashreplace")


def _pattern(name: re.Match[str]) -> str:
    """Return the pattern of one name in a path; the id of a message has slashes."""
    return f"(?P<{name[1]}>{'(?s:.+)' if name[2] else '[^/]+'})"
