"""Actions on queues: a queue is the topic of its name."""

from __future__ import annotations

import base64
import binascii
from contextlib import suppress
from typing import Any, Final

from quorumq.core.values.deadnames import DEAD_SUFFIX
from quorumq.core.values.errors import NotFound, QuorumqError
from quorumq.gateway.sqs.attributes import (
    LABEL,
    NEVER,
    NUMBERS,
    REFUSED,
    RETENTION_S,
    TAG,
    AttributeCache,
    Attributes,
    check_tags,
    checked,
    labels_for,
    link_dead_letters,
    settings_of,
)
from quorumq.gateway.sqs.call import FIFO, QUEUE_NAME, Call, check_name
from quorumq.gateway.sqs.errors import SqsError, unsupported

LISTED_MAX: Final = 1_000
CREATED: Final = LABEL + "CreatedTimestamp"
"""Label of queues that SQS has made, with their attributes."""

DEFAULTS: Final = {"ttl": float(RETENTION_S), "on_expiry": "drop", "max_deliveries": NEVER}
"""Settings of a topic that is made as a queue."""

_COUNTS: Final = {
    "ApproximateNumberOfMessages": "ready",
    "ApproximateNumberOfMessagesNotVisible": "held",
    "ApproximateNumberOfMessagesDelayed": "delayed",
}


class QueueActions:
    """Actions on queues."""

    def __init__(self, cache: AttributeCache) -> None:
        self._cache = cache

    async def create_queue(self, call: Call) -> dict[str, Any]:
        """Create a queue, or confirm that there is one with these attributes."""
        name = call.params.text("QueueName")
        given = call.params.text_mapping("Attributes")
        if name.endswith(".fifo"):
            raise unsupported(FIFO)
        check_name(name)
        values = checked(given)
        tags = call.params.text_mapping("tags") or call.params.text_mapping("Tags")
        check_tags(name, tags, ())
        settings = settings_of(values)
        is_new = False
        try:
            topic = await call.client.topic(name)
        except NotFound:
            await link_dead_letters(call.client, name, "", values.get("RedrivePolicy", ""))  # may be refused
            topic = await call.client.create_topic(name, **{**DEFAULTS, **settings})
            settings, is_new = {}, True
        there = Attributes(topic, await call.client.labels(name))
        if (is_new or values or tags) and CREATED not in there.labels:
            await self._adopt(call, name, settings, values, tags)
        elif differing := [one for one, text in values.items() if there.settable().get(one, "") != text]:
            raise SqsError(
                "QueueNameExists",
                f"A queue already exists with the same name and a different value for attribute {differing[0]}",
            )
        await call.client.create_group(name, call.group)
        return {"QueueUrl": call.url(name)}

    async def _adopt(
        self, call: Call, name: str, settings: dict[str, Any], values: dict[str, str], tags: dict[str, str]
    ) -> None:
        """Make a queue of a topic that is none yet.

        It is new, or a native client made it, or another gateway is creating the same queue, or has ended before it
        had. So a creation that ended half way is completed by the next CreateQueue.
        """
        if settings:
            await call.client.alter_topic(name, **settings)
        await link_dead_letters(call.client, name, "", values.get("RedrivePolicy", ""))
        labels = {**labels_for(values), **{TAG + key: text for key, text in tags.items()}}
        created = str(call.client.wall_ms() // 1000)
        await call.client.set_labels(name, {CREATED: created, **labels})
        self._cache.drop(name)

    async def delete_queue(self, call: Call) -> dict[str, Any]:
        name = call.queue()
        self._cache.drop(name)
        policy = (await self._cache.of(call, name)).redrive_policy
        await call.client.delete_topic(name)
        self._cache.drop(name)
        with suppress(QuorumqError):  # readers pass over a label whose queue is gone
            await link_dead_letters(call.client, name, policy, "")
        return {}

    async def get_queue_url(self, call: Call) -> dict[str, Any]:
        name = call.params.text("QueueName")
        check_name(name, missing=True)
        await call.client.topic(name)
        return {"QueueUrl": call.url(name)}

    async def list_queues(self, call: Call) -> dict[str, Any]:
        """List queues by name: topics that the user may see, with names that queues may have."""
        prefix = call.params.text("QueueNamePrefix", "")
        topics = (await call.client.metadata()).topics
        names = [
            topic.name
            for topic in topics
            if QUEUE_NAME.fullmatch(topic.name) and topic.name.startswith(prefix)
        ]
        page, token = paged(call, sorted(names))
        answer: dict[str, Any] = {"QueueUrls": [call.url(name) for name in page]} if page else {}
        return {**answer, "NextToken": token} if token else answer

    async def get_queue_attributes(self, call: Call) -> dict[str, Any]:
        """Return attributes of a queue, counts of its messages among them."""
        name = call.queue()
        self._cache.drop(name)  # counts are of now, and so is all else
        attributes = await self._cache.of(call, name)
        names = call.params.texts("AttributeNames")
        values = attributes.settable()
        values["QueueArn"] = call.arn(name)
        modified = attributes.topic.stamp.time >> 16  # milliseconds
        values["CreatedTimestamp"] = attributes.labels.get(CREATED, str(modified // 1000))
        values["LastModifiedTimestamp"] = str(modified // 1000)
        values["SqsManagedSseEnabled"] = "false"
        known = {*values, *_COUNTS, *NUMBERS, *REFUSED, "RedrivePolicy", "All"}
        for one in names:
            if one not in known:
                raise SqsError("InvalidAttributeName", f"Unknown Attribute {one[:100]}.")
        if {"All", *_COUNTS} & set(names):
            values |= await self._counts(call, name)
        picked = {one: text for one, text in values.items() if "All" in names or one in names}
        return {"Attributes": picked} if picked else {}

    async def _counts(self, call: Call, name: str) -> dict[str, str]:
        """Return the counts of messages; dead letters that the queue shows are visible ones."""
        sums = dict.fromkeys(_COUNTS, 0)
        for topic in (name, *await self._cache.sources(call, name)):
            try:
                backlog = await call.client.backlog(topic, call.group)
            except NotFound:
                continue  # the group was never created, or the source was deleted meanwhile
            if topic == name:
                for attribute, field in _COUNTS.items():
                    sums[attribute] += getattr(backlog, field)
            else:
                sums["ApproximateNumberOfMessages"] += backlog.dead
        return {attribute: str(count) for attribute, count in sums.items()}

    async def set_queue_attributes(self, call: Call) -> dict[str, Any]:
        name = call.queue()
        values = checked(call.params.text_mapping("Attributes"))
        self._cache.drop(name)
        before = await self._cache.of(call, name)
        labels = labels_for(values)
        if settings := settings_of(values):
            if "RedrivePolicy" in values:
                await link_dead_letters(call.client, name, before.redrive_policy, values["RedrivePolicy"])
            await call.client.alter_topic(name, **settings)
        if labels:
            await call.client.set_labels(name, labels)
        self._cache.drop(name)
        return {}

    async def purge_queue(self, call: Call) -> dict[str, Any]:
        """Settle all messages of a queue unread, and the dead letters that it shows."""
        name = call.queue()
        self._cache.drop(name)
        sources = await self._cache.sources(call, name)
        try:
            await call.client.purge(name, call.group)
        except NotFound:  # nothing has read the queue yet
            await call.client.create_group(name, call.group)
            await call.client.purge(name, call.group)
        for source in sources:
            with suppress(NotFound):  # it was deleted meanwhile, or never had the group
                await call.client.purge(source, call.group + DEAD_SUFFIX)
        return {}

    async def tag_queue(self, call: Call) -> dict[str, Any]:
        name, tags = call.queue(), call.params.text_mapping("Tags")
        if not tags:
            raise SqsError("MissingParameter", "The request must contain the parameter Tags.")
        self._cache.drop(name)
        attributes = await self._cache.of(call, name)
        check_tags(name, tags, attributes.tags)
        await call.client.set_labels(name, {TAG + key: text for key, text in tags.items()})
        self._cache.drop(name)
        return {}

    async def untag_queue(self, call: Call) -> dict[str, Any]:
        name, keys = call.queue(), call.params.texts("TagKeys")
        if not keys:
            raise SqsError(
                "InvalidParameterValue", "Tag keys must be between 1 and 128 characters in length."
            )
        self._cache.drop(name)
        attributes = await self._cache.of(call, name)
        there = [TAG + key for key in keys if key in attributes.tags]
        if there:
            await call.client.set_labels(name, dict.fromkeys(there))
        self._cache.drop(name)
        return {}

    async def list_queue_tags(self, call: Call) -> dict[str, Any]:
        name = call.queue()
        self._cache.drop(name)
        tags = (await self._cache.of(call, name)).tags
        return {"Tags": tags} if tags else {}

    async def list_dead_letter_source_queues(self, call: Call) -> dict[str, Any]:
        name = call.queue()
        self._cache.drop(name)
        page, token = paged(call, await self._cache.sources(call, name))
        answer: dict[str, Any] = {"queueUrls": [call.url(source) for source in page]}
        return {**answer, "NextToken": token} if token else answer


def paged(call: Call, names: list[str]) -> tuple[list[str], str]:
    """Return the requested page of sorted names, and the next one's token or ""; SqsError for a wrong token."""
    most = call.params.number("MaxResults", 1, LISTED_MAX, LISTED_MAX)
    token = call.params.text("NextToken", "")
    try:
        after = base64.b64decode(token.encode(), altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        raise SqsError("InvalidParameterValue", "NextToken is none that ListQueues gave.") from None
    remaining = [name for name in names if name > after]
    page = remaining[:most]
    # As with AWS there is a token only if the request says how many it takes.
    more = len(remaining) > most and call.params.has("MaxResults")
    return page, base64.urlsafe_b64encode(page[-1].encode()).decode() if more else ""
