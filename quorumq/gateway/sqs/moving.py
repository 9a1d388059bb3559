"""Message move tasks: a redrive of the dead letters that a queue shows, to the queues in which they died.

A task is done before it is answered, as a gateway keeps nothing. One that takes longer than a request may says how far
it got, and is repeated by SDKs: a dead letter is redriven once, however often that is asked for.
"""

from __future__ import annotations

import secrets
from contextlib import aclosing
from typing import Any, Final

import trio

from quorumq.client.admin.selection import Selection, chosen, chunked
from quorumq.core.values.printable import plural
from quorumq.gateway.sqs.attributes import AttributeCache
from quorumq.gateway.sqs.call import Call, queue_of_arn
from quorumq.gateway.sqs.errors import SqsError, unsupported

TASK_S: Final = 15.0
"""Seconds after which a task has to be repeated."""
REDRIVEN_AT_ONCE: Final = 500


class MoveActions:
    """Message move tasks."""

    def __init__(self, cache: AttributeCache) -> None:
        self._cache = cache

    async def start_message_move_task(self, call: Call) -> dict[str, Any]:
        """Redrive the dead letters that a queue shows, each to its own queue, and none twice."""
        queue = queue_of_arn(call.params.text("SourceArn"))
        self._cache.drop(queue)
        sources = await self._cache.sources(call, queue)
        if not sources:
            raise SqsError("InvalidParameterValue", f"{queue!r} is the dead-letter queue of no other queue.")
        if call.params.has("DestinationArn"):
            target = queue_of_arn(call.params.text("DestinationArn"))
            if target not in sources:
                raise unsupported(
                    f"Dead letters go back to the queue in which they died, which {target!r} is not: it is one of "
                    f"{', '.join(sources)[:200]}."
                )
            sources = [target]
        moved = 0
        until = trio.current_time() + TASK_S
        for source in sources:
            dead_letters = chosen(call.client, Selection(source, call.group))
            async with aclosing(chunked(dead_letters, REDRIVEN_AT_ONCE)) as chunks:
                async for items in chunks:
                    moved += (await call.client.redrive(source, call.group, items)).messages
                    if trio.current_time() >= until:
                        text = f"{plural(moved, 'message')} moved so far: repeat the request for the others."
                        raise SqsError("ServiceUnavailable", text, 503)
        return {"TaskHandle": f"{queue}.{moved}.{secrets.token_hex(8)}"}

    async def list_message_move_tasks(self, call: Call) -> dict[str, Any]:
        """List no tasks: each has ended before it was answered."""
        await self._cache.of(call, queue_of_arn(call.params.text("SourceArn")))
        return {"Results": []}

    async def cancel_message_move_task(self, call: Call) -> dict[str, Any]:
        """Refuse to cancel a task: it has ended."""
        call.params.text("TaskHandle")
        raise SqsError(
            "ResourceNotFoundException",
            "No such task is running: a task has ended before StartMessageMoveTask answers.",
        )
