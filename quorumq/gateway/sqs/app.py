"""The SQS protocol as an ASGI application: who asks, for what, and the answer in the form of its protocol."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from quorumq.core.values.errors import QuorumqError
from quorumq.gateway.gateway import Gateway
from quorumq.gateway.identity import ANYBODY, Owner, User
from quorumq.gateway.requests import Left, Receive, is_from_page, length_of, owner_of
from quorumq.gateway.shares import finish, turn
from quorumq.gateway.sqs import protocol
from quorumq.gateway.sqs.attributes import AttributeCache
from quorumq.gateway.sqs.call import REGION, Call, Params
from quorumq.gateway.sqs.errors import SqsError, sqs_error, unsupported
from quorumq.gateway.sqs.moving import MoveActions
from quorumq.gateway.sqs.queues import QueueActions
from quorumq.gateway.sqs.receiving import ReceiveActions
from quorumq.gateway.sqs.sending import SendActions
from quorumq.gateway.sqs.signature import Claim, HttpRequest, claim_of, verify

Send = Callable[[dict[str, Any]], Awaitable[None]]
Action = Callable[[Call], Awaitable[dict[str, Any]]]

_PERMISSIONS: Final = (
    "rights are in the nodes' clients file (`quorumq clients`), and are no permissions of a queue."
)

log = logging.getLogger("quorumq.gateway")


async def _no_permissions(call: Call) -> dict[str, Any]:
    raise unsupported(f"AddPermission and RemovePermission are not there: {_PERMISSIONS}")


class SqsApp:
    """The SQS protocol of a running gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        cache = AttributeCache()
        queues, sending = QueueActions(cache), SendActions(cache)
        receiving, moving = ReceiveActions(cache), MoveActions(cache)
        self.actions: dict[str, Action] = {
            "CreateQueue": queues.create_queue,
            "DeleteQueue": queues.delete_queue,
            "GetQueueUrl": queues.get_queue_url,
            "ListQueues": queues.list_queues,
            "GetQueueAttributes": queues.get_queue_attributes,
            "SetQueueAttributes": queues.set_queue_attributes,
            "PurgeQueue": queues.purge_queue,
            "TagQueue": queues.tag_queue,
            "UntagQueue": queues.untag_queue,
            "ListQueueTags": queues.list_queue_tags,
            "ListDeadLetterSourceQueues": queues.list_dead_letter_source_queues,
            "SendMessage": sending.send_message,
            "SendMessageBatch": sending.send_message_batch,
            "ReceiveMessage": receiving.receive_message,
            "DeleteMessage": receiving.delete_message,
            "DeleteMessageBatch": receiving.delete_message_batch,
            "ChangeMessageVisibility": receiving.change_message_visibility,
            "ChangeMessageVisibilityBatch": receiving.change_message_visibility_batch,
            "StartMessageMoveTask": moving.start_message_move_task,
            "ListMessageMoveTasks": moving.list_message_move_tasks,
            "CancelMessageMoveTask": moving.cancel_message_move_task,
            "AddPermission": _no_permissions,
            "RemovePermission": _no_permissions,
        }

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request_id = str(uuid.uuid4())
        headers = headers_of(scope)
        request = HttpRequest(
            scope["method"],
            (scope.get("raw_path") or scope["path"].encode()).decode("latin-1"),
            scope.get("query_string", b"").decode("latin-1"),
            headers,
            b"",
        )
        query, action = protocol.is_query(request), ""
        try:
            action, result = await self._answer(scope, request, receive)
            error = None
        except Left:
            return
        except SqsError as refusal:
            error = refusal
        except QuorumqError as failure:
            error = sqs_error(failure)
        except Exception:
            log.exception("SQS request %s met a bug", request_id)
            error = SqsError("InternalFailure", "The gateway met a bug; its log has it.", 500)
        more: list[tuple[bytes, bytes]] = []
        if error is not None:
            body = (
                protocol.encode_error_xml(error, request_id)
                if query
                else protocol.encode_json({"__type": error.json_type, "message": error.message})
            )
            side = "Sender" if error.is_sender else "Receiver"
            more.append((b"x-amzn-query-error", f"{error.query_code};{side}".encode()))
            if error.status == 405:
                more.append((b"allow", b"POST, GET"))
            if error.status == 503:
                more.append((b"retry-after", str(max(1, round(error.delay))).encode()))
        else:
            body = protocol.encode_xml(action, result, request_id) if query else protocol.encode_json(result)
        kind = protocol.XML_TYPE if query else protocol.JSON_TYPE
        await send({
            "type": "http.response.start",
            "status": 200 if error is None else error.status,
            "headers": [
                (b"content-type", kind.encode()),
                (b"content-length", str(len(body)).encode()),
                (b"x-amzn-requestid", request_id.encode()),
                *more,
            ],
        })  # fmt: skip
        await send({"type": "http.response.body", "body": body})

    async def _answer(
        self, scope: Mapping[str, Any], request: HttpRequest, receive: Receive
    ) -> tuple[str, dict[str, Any]]:
        """Return the action of a request, and its result."""
        if request.method not in ("POST", "GET"):
            raise SqsError("InvalidAction", f"{request.method} is no method of SQS: send a POST.", 405)
        if self._gateway.identities.is_open and (request.method == "GET" or is_from_page(request.headers)):
            raise SqsError(
                "AccessDenied", "Without a clients file pages in browsers may not ask: send a POST.", 403
            )
        claim = claim_of(request.headers)
        if claim is None and not self._gateway.identities.is_open:
            raise SqsError(
                "MissingAuthenticationToken",
                "The request is not signed: `quorumq clients key` has keys.",
                403,
            )
        # The claim is not verified yet: names of no client share one part of the space.
        is_known = claim is not None and self._gateway.identities.secrets_of(claim.name)
        owner = owner_of(scope, claim.name if claim is not None and is_known else "")
        length = length_of(scope["headers"])
        async with self._gateway.bodies.read(receive, owner, length=length) as body:
            request = request._replace(body=body)
            await turn()
            user = self._user(request, claim, owner)
            await self._gateway.shares.prove(owner, user)
            asked = await finish(protocol.parsing(request))
            action = self.actions.get(asked.action)
            if action is None:
                raise SqsError(
                    "InvalidAction", f"The action {asked.action[:100]} is not valid for this endpoint."
                )
            async with self._gateway.client(user) as client:
                call = Call(
                    self._gateway,
                    client,
                    user.name,
                    Params(asked.params),
                    self._base_url(scope, request.headers),
                    claim.region if claim is not None else REGION,
                    receive,
                    request.headers.get("x-amzn-trace-id", ""),
                )
                return asked.action, await action(call)

    def _user(self, request: HttpRequest, claim: Claim | None, owner: Owner) -> User:
        if claim is None or self._gateway.identities.is_open:
            return ANYBODY
        try:
            verify(request, claim, self._gateway.identities.secrets_of)
        except SqsError:
            self._gateway.shares.drop(owner)
            raise
        return User(claim.name)

    def _base_url(self, scope: Mapping[str, Any], headers: Mapping[str, str]) -> str:
        public = self._gateway.settings.public_url.rstrip("/")
        return (
            public or f"{scope.get('scheme', 'http')}://{headers.get('host', self._gateway.settings.listen)}"
        )


def headers_of(scope: Mapping[str, Any]) -> dict[str, str]:
    """Return the headers of a request, those of one name joined as they are signed."""
    headers: dict[str, str] = {}
    for name, value in scope["headers"]:
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        headers[key] = f"{headers[key]},{text}" if key in headers else text
    return headers
