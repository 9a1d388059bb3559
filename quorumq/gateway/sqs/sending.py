"""Actions that publish."""

from __future__ import annotations

from typing import Any, Final
from weakref import WeakKeyDictionary

import trio

from quorumq.client import Client
from quorumq.client.produce.publishing import PublishCalls
from quorumq.core.values.errors import QuorumqError
from quorumq.gateway.sqs.attributes import AttributeCache, Attributes
from quorumq.gateway.sqs.call import Call, Params
from quorumq.gateway.sqs.errors import SqsError, no_queue, sqs_error
from quorumq.gateway.sqs.messages import Outgoing, message_id, outcome_lists, outgoing

BATCH_BYTES_MAX: Final = 1_048_576
PRODUCERS_MAX: Final = 200
"""Queues that one user's client keeps producers to."""


class Producers:
    """Producers by client and topic. Unlike `Client.publish` they never create a topic."""

    def __init__(self) -> None:
        self._by_client: WeakKeyDictionary[Client, PublishCalls] = WeakKeyDictionary()

    async def publish(self, client: Client, topic: str, message: Outgoing, delay: int) -> str:
        """Publish one message, and return its SQS id once it is durable; raises as `Producer.publish` does."""
        calls = self._by_client.get(client)
        if calls is None:
            calls = PublishCalls(client.context, create=False, kept_max=PRODUCERS_MAX)
            self._by_client[client] = calls
        name = await calls.publish(
            topic, message.payload, headers=message.headers, key=message.key, delay=delay or None
        )
        return message_id(name)


class SendActions:
    """Actions that publish."""

    def __init__(self, cache: AttributeCache) -> None:
        self._cache = cache
        self._producers = Producers()

    async def send_message(self, call: Call) -> dict[str, Any]:
        queue = call.queue()
        attributes = await self._cache.of(call, queue)
        message, delay = self._message(call.params, attributes, call.trace)
        name = await self._producers.publish(call.client, queue, message, delay)
        return {"MessageId": name, **message.reply}

    @staticmethod
    def _message(params: Params, attributes: Attributes, trace: str) -> tuple[Outgoing, int]:
        message = outgoing(params, attributes.number("MaximumMessageSize"), trace)
        return message, params.number("DelaySeconds", 0, 900, attributes.number("DelaySeconds"))

    async def send_message_batch(self, call: Call) -> dict[str, Any]:
        queue, entries = call.queue(), call.params.entries("SendMessageBatch")
        refuse_long(sum(len(entry.text("MessageBody", "").encode(errors="replace")) for entry in entries))
        attributes = await self._cache.of(call, queue)
        failed: list[tuple[str, SqsError]] = []
        messages: dict[str, tuple[Outgoing, int]] = {}
        for entry in entries:
            try:
                messages[entry.text("Id")] = self._message(entry, attributes, call.trace)
            except SqsError as error:
                failed.append((entry.text("Id"), error))
        refuse_long(sum(message.size for message, _ in messages.values()))
        names: dict[str, str] = {}

        async def publish(entry_id: str, message: Outgoing, delay: int) -> None:
            try:
                names[entry_id] = await self._producers.publish(call.client, queue, message, delay)
            except QuorumqError as error:
                failed.append((entry_id, sqs_error(error)))

        async with trio.open_nursery() as nursery:  # messages that are published at a time share a batch
            for entry_id, (message, delay) in messages.items():
                nursery.start_soon(publish, entry_id, message, delay)
        if not names and failed:
            self._raise_common(failed, queue)
        order = list(messages)
        good = [
            {"Id": one, "MessageId": names[one], **messages[one][0].reply} for one in order if one in names
        ]
        return outcome_lists(good, failed)

    @staticmethod
    def _raise_common(failed: list[tuple[str, SqsError]], queue: str) -> None:
        """Raise the error that all entries have, if it is the queue's or the cluster's: SDKs repeat requests whole."""
        codes = {error.code for _, error in failed}
        if codes == {"QueueDoesNotExist"}:
            raise no_queue()
        if all(not error.is_sender for _, error in failed):
            raise failed[0][1]


def refuse_long(size: int) -> None:
    """Refuse a batch if bodies and attributes of its messages have too many bytes together."""
    if size > BATCH_BYTES_MAX:
        text = f"Batch requests cannot be longer than {BATCH_BYTES_MAX} bytes. You have sent {size} bytes."
        raise SqsError("BatchRequestTooLong", text)
