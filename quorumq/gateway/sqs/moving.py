"""Message move tasks: a redrive of the dead letters that a queue shows, to the queues in which they died.

A task is done before it is answered, as a gateway keeps nothing. One that takes longer than a request may says how far
it got, and is repeated by SDKs: a dead letter is redriven once, however often that is asked for.
"""

from __future__ import annotations

import re
import secrets
from contextlib import aclosing, suppress
from typing import Any, Final

import trio

from quorumq.client.admin.selection import Selection, chosen, redriven
from quorumq.core.values.errors import NotFound, QuorumqError
from quorumq.core.values.printable import plural
from quorumq.gateway.sqs.attributes import LABEL, AttributeCache
from quorumq.gateway.sqs.call import Call, queue_of_arn
from quorumq.gateway.sqs.errors import SqsError, invalid, no_resource, unsupported

TASK_S: Final = 15.0
"""Seconds after which a task has to be repeated."""
RATE_MAX: Final = 500
TASK: Final = LABEL + "MoveTask"
"""Label of a dead-letter queue with its last task: milliseconds since 1970, messages, and destination if it had one."""

_TASK: Final = re.compile(r"([0-9]{1,15}) ([0-9]{1,15}) ([A-Za-z0-9_-]{0,80})")
_HANDLE: Final = re.compile(r"[A-Za-z0-9_-]{1,80}\.[0-9]+\.[0-9a-f]{16}")


TASKS_MAX: Final = 10
"""Tasks that SQS lists at most; here a queue has one."""


class MoveActions:
    """Message move tasks."""

    def __init__(self, cache: AttributeCache) -> None:
        self._cache = cache

    async def start_message_move_task(self, call: Call) -> dict[str, Any]:
        """Redrive the dead letters that a queue shows, each to its own queue, none twice, at a rate if it is given."""
        queue, sources = await self._of_source(call)
        if not sources:
            raise invalid("Source queue must be configured as a Dead Letter Queue.")
        rate = call.params.number("MaxNumberOfMessagesPerSecond", 1, RATE_MAX, 0)
        started, target, moved = call.client.wall_ms(), "", 0
        if call.params.has("DestinationArn"):
            target = await self._target(call, sources)
            sources = [target]
        until = trio.current_time() + TASK_S
        for source in sources:
            dead_letters = chosen(call.client, Selection(source, call.group))
            results = redriven(call.client, source, call.group, dead_letters, rate=rate or None)
            async with aclosing(results):
                async for done, _ in results:
                    moved += done
                    if trio.current_time() >= until:
                        text = f"{plural(moved, 'message')} moved so far: repeat the request for the others."
                        raise SqsError("ServiceUnavailable", text, 503)
        with suppress(QuorumqError):  # it is done, also if that is not kept
            await call.client.set_labels(queue, {TASK: f"{started} {moved} {target}"})
        self._cache.drop(queue)
        return {"TaskHandle": f"{queue}.{moved}.{secrets.token_hex(8)}"}

    async def _of_source(self, call: Call) -> tuple[str, list[str]]:
        """Return the queue of SourceArn, and those whose dead letters it shows; SqsError if there is no such queue."""
        queue = queue_of_arn(call.params.text("SourceArn"))
        self._cache.drop(queue)
        try:
            return queue, await self._cache.sources(call, queue)
        except NotFound:
            raise no_resource("SourceArn") from None

    async def _target(self, call: Call, sources: list[str]) -> str:
        """Return the queue of DestinationArn; SqsError if it is none of the sources."""
        target = queue_of_arn(call.params.text("DestinationArn"))
        if target in sources:
            return target
        try:
            await call.client.topic(target)
        except NotFound:
            raise no_resource("DestinationArn") from None
        raise unsupported(
            f"Dead letters go back to the queue in which they died, which {target!r} is not: it is one of "
            f"{', '.join(sources)[:200]}."
        )

    async def list_message_move_tasks(self, call: Call) -> dict[str, Any]:
        """List the last task of a queue, which is completed."""
        queue, _ = await self._of_source(call)
        call.params.number("MaxResults", 1, TASKS_MAX, 1)
        task = _TASK.fullmatch((await self._cache.of(call, queue)).labels.get(TASK, ""))
        if task is None:
            return {"Results": []}
        started, moved, target = int(task[1]), int(task[2]), task[3]
        counts = {f"ApproximateNumberOfMessages{name}": moved for name in ("Moved", "ToMove")}
        result = {"Status": "COMPLETED", "SourceArn": call.arn(queue), "StartedTimestamp": started, **counts}
        return {"Results": [{**result, "DestinationArn": call.arn(target)} if target else result]}

    async def cancel_message_move_task(self, call: Call) -> dict[str, Any]:
        """Refuse to cancel a task: it has ended."""
        if not _HANDLE.fullmatch(call.params.text("TaskHandle")):
            raise invalid("Value for parameter TaskHandle is invalid.")
        raise SqsError(
            "ResourceNotFoundException",
            "No such task is running: a task has ended before StartMessageMoveTask answers.",
            404,
        )
