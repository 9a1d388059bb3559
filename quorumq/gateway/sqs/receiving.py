"""Actions that deliver messages and settle them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import trio

from quorumq.client import Message, receipt_from_text
from quorumq.client.admin.show import Seen, seen
from quorumq.client.base.message import Settleable
from quorumq.core import messages as m
from quorumq.core.values.deadnames import DEAD_SUFFIX
from quorumq.core.values.errors import AlreadySettled, HoldLost, NotFound, QuorumqError
from quorumq.gateway.requests import Stopping, while_there
from quorumq.gateway.sqs.attributes import AttributeCache
from quorumq.gateway.sqs.call import BATCH_MAX, Call, Params
from quorumq.gateway.sqs.errors import SqsError, invalid, sqs_error
from quorumq.gateway.sqs.messages import Selection, outcome_lists, received

WAIT_MAX_S: Final = 20
VISIBILITY_MAX_S: Final = 43_200
SHORTEST_HOLD_S: Final = 1.0
"""Hold of messages that are visible again at once."""

SLACK_S: Final = 0.25
"""Seconds by which a new end of a hold has to be earlier to count as earlier."""

GIVE_BACK_S: Final = 2.0

Readable = tuple[str, str]
"""A topic, and a group of it."""


class ReceiveActions:
    """Actions that deliver messages and settle them."""

    def __init__(self, cache: AttributeCache) -> None:
        self._cache = cache

    async def receive_message(self, call: Call) -> dict[str, Any]:
        """Deliver messages; wait for some if the request or the queue says so, as long as the client is there."""
        queue = call.queue()
        attributes = await self._cache.of(call, queue)
        most = call.params.number("MaxNumberOfMessages", 1, BATCH_MAX, 1)
        wait = call.params.number(
            "WaitTimeSeconds", 0, WAIT_MAX_S, attributes.number("ReceiveMessageWaitTimeSeconds")
        )
        visibility = call.params.number(
            "VisibilityTimeout", 0, VISIBILITY_MAX_S, attributes.number("VisibilityTimeout")
        )
        sources: list[Readable] = [(queue, call.group)]
        sources += [(source, call.group + DEAD_SUFFIX) for source in await self._cache.sources(call, queue)]
        hold = max(float(visibility), SHORTEST_HOLD_S)

        try:
            messages = await while_there(
                call.receive,
                lambda: fetch(call, sources, most, wait, hold),
                stopping=call.gateway.stopping,
                undo=partial(give_back, call),
            )
        except Stopping:
            return {}
        if not visibility and messages:
            await call.client.reject(messages, delay=0)
        selection = Selection.of(call.params)
        answers = []
        for message in messages:
            source = call.arn(message.topic) if message.group.endswith(DEAD_SUFFIX) else ""
            answers.append(received(message, selection, source))
        return {"Messages": answers} if answers else {}

    async def delete_message(self, call: Call) -> dict[str, Any]:
        """Ack a message, or purge a dead letter. One that is settled already is deleted."""
        await self._of_queue(call, self._delete_entry)
        return {}

    async def _of_queue(self, call: Call, do: Callable[[Call, Params], Awaitable[None]]) -> None:
        """Do something with one message of a queue. If the handle is none, the queue may be none either."""
        queue = call.queue()
        try:
            await settled(call, call.params, do)
        except SqsError as error:
            if error.code == "ReceiptHandleIsInvalid":
                await call.client.topic(queue)
            raise

    async def delete_message_batch(self, call: Call) -> dict[str, Any]:
        return await self._each(call, "DeleteMessageBatch", self._delete_entry)

    async def _delete_entry(self, call: Call, entry: Params) -> None:
        ticket = ticket_of(call, entry)
        with suppress(AlreadySettled):
            await call.client.ack([ticket])

    async def change_message_visibility(self, call: Call) -> dict[str, Any]:
        """Make a message visible later than it would be, or sooner."""
        await self._of_queue(call, self._change)
        return {}

    async def change_message_visibility_batch(self, call: Call) -> dict[str, Any]:
        return await self._each(call, "ChangeMessageVisibilityBatch", self._change)

    async def _change(self, call: Call, params: Params) -> None:
        ticket = ticket_of(call, params)
        if not params.has("VisibilityTimeout"):
            raise SqsError("MissingParameter", "The request must contain the parameter VisibilityTimeout.")
        seconds = params.number("VisibilityTimeout", 0, VISIBILITY_MAX_S, 0)
        try:
            await self._hide(call, ticket, seconds)
        except HoldLost:
            if any(one.state in ("acked", "purged") for one in await self._states(call, ticket)):
                raise AlreadySettled("the message was deleted") from None
            raise

    async def _hide(self, call: Call, ticket: Settleable, seconds: int) -> None:
        """Have a message redelivered after a number of seconds. A hold can be extended, and not shortened.

        Why: replicas know its end. A time of day in the handle misses extensions, and clocks of gateways differ.
        """
        states = await self._states(call, ticket) if seconds else []
        ends = sorted(one.remaining for one in states if one.state == "held")
        # Not the latest end: one replica alone may have the hold of another delivery.
        end = ends[(len(ends) - 1) // 2] if ends else 0.0
        if not seconds or seconds < end - SLACK_S:
            await call.client.reject([ticket], delay=seconds)
        else:
            await call.client.extend([ticket], seconds)

    async def _states(self, call: Call, ticket: Settleable) -> list[Seen]:
        """Return the state of a receipt's message in its group on the replicas of a majority, or on those that answer.

        Why: a replica that hangs would cost 3 s, and a consumer extends a short hold more often than that.
        """
        receipt, queue = ticket.delivery.receipt, call.queue()
        partition, span = receipt.partition, receipt.span
        request = m.ShowRequest(partition, span._replace(start=ticket.seq, stop=ticket.seq + 1), False)
        with suppress(QuorumqError):
            is_dead = receipt.group.endswith(DEAD_SUFFIX)
            names = await self._cache.sources(call, queue) if is_dead else [queue]
            for topic in [(await self._cache.of(call, name)).topic for name in names]:
                if topic.id == partition.topic and partition.number < topic.partitions:
                    members = topic.replicas[partition.number]
                    replies, _ = await call.client.context.ask_each(
                        members, request, "show a message", None, enough=len(members) // 2 + 1
                    )
                    groups = [seen(one) for reply in replies.values() for one in reply.groups]
                    return [one for one in groups if one.group == receipt.group]
        return []

    async def _each(
        self, call: Call, action: str, do: Callable[[Call, Params], Awaitable[None]]
    ) -> dict[str, Any]:
        """Do something with each entry of a batch, all at a time, and return the outcomes in their order."""
        queue = call.queue()
        entries = call.params.entries(action)
        errors: dict[str, SqsError] = {}

        async def one(entry: Params) -> None:
            try:
                await settled(call, entry, do)
            except SqsError as error:
                errors[entry.text("Id")] = error

        async with trio.open_nursery() as nursery:  # acks at a time go as one request
            for entry in entries:
                nursery.start_soon(one, entry)
        ids = [entry.text("Id") for entry in entries]
        if any(error.code == "ReceiptHandleIsInvalid" for error in errors.values()):
            await call.client.topic(queue)
        if errors and len(errors) == len(ids) and all(not error.is_sender for error in errors.values()):
            raise errors[ids[0]]  # SDKs repeat it whole
        good = [{"Id": name} for name in ids if name not in errors]
        return outcome_lists(good, [(name, errors[name]) for name in ids if name in errors])


def ticket_of(call: Call, params: Params) -> Settleable:
    """Return what a receipt handle settles; BadReceipt if it is none."""
    return call.client.ticket(receipt_from_text(params.text("ReceiptHandle")))


async def settled(call: Call, params: Params, do: Callable[[Call, Params], Awaitable[None]]) -> None:
    """Do something with the message that a handle names. SqsError if that fails, with the handle if it is wrong."""
    try:
        await do(call, params)
    except AlreadySettled:  # deleted, or a dead letter
        handle = params.text("ReceiptHandle")
        raise invalid(
            f"Value {handle} for parameter ReceiptHandle is invalid. Reason: Message does not exist or is not "
            "available for visibility timeout change."
        ) from None
    except (SqsError, QuorumqError) as raised:
        error = raised if isinstance(raised, SqsError) else sqs_error(raised)
        if error.code == "ReceiptHandleIsInvalid":
            handle = params.text("ReceiptHandle")[:100]
            error.message = f'The input receipt handle "{handle}" is not a valid receipt handle.'
        raise error from None


async def fetch(
    call: Call, sources: Sequence[Readable], most: int, wait: float, hold: float
) -> list[Message]:
    """Fetch messages from a queue or from the dead letters that it shows; cancelled, they are given back uncounted.

    Args:
        sources: the queue itself, then the dead letters.
    """
    timeout = wait + call.client.timeout  # nodes may park a request for as long as it waits
    options: dict[str, Any] = {"max_messages": most, "max_wait": wait, "hold_time": hold, "timeout": timeout}
    try:
        if len(sources) == 1:
            return await first_alone(call, await call.client.fetch(*sources[0], **options))
        return await first_alone(call, await call.client.fetch_any(sources, **options))
    except NotFound:
        present = [source for source in sources if await is_there(call, source[0])]
        if sources[0] not in present or len(present) == len(sources):
            raise
    return await fetch(call, present, most, wait, hold)


async def is_there(call: Call, topic: str) -> bool:
    """Return True if a topic is there: a queue whose dead letters another one shows may have been deleted."""
    try:
        await call.client.topic(topic)
    except NotFound:
        return False
    return True


async def first_alone(call: Call, messages: list[Message]) -> list[Message]:
    """Return the messages, or the first one by itself if they are suspects; the others are given back uncounted.

    A consumer that such a message kills shall have no other one in hand. If the others cannot be given back, they are
    delivered again after their holds. If the client hangs up meanwhile, all of them are given back.
    """
    if len(messages) < 2 or not messages[0].suspect:
        return messages
    given_back = messages
    try:
        with suppress(QuorumqError):
            await call.client.reject(messages[1:], interrupted=True)
        given_back = []
    finally:
        if given_back:
            await give_back(call, given_back)
    return messages[:1]


async def give_back(call: Call, messages: list[Message]) -> None:
    """Give messages back uncounted, also in a task that is cancelled."""
    with trio.move_on_after(GIVE_BACK_S, shield=True), suppress(QuorumqError):
        await call.client.reject(messages, interrupted=True)
