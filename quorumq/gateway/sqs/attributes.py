"""Attributes and tags of queues: settings of the topic, or else its labels.

Retention is the topic's ``ttl`` with ``on_expiry="drop"``, and maxReceiveCount its ``max_deliveries``. Everything else
is a label, as a gateway keeps nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

import trio

from quorumq.client import Client
from quorumq.core.values.errors import NotFound
from quorumq.core.values.types import Topic
from quorumq.gateway.sqs.call import FIFO, Call, integer, queue_of_arn
from quorumq.gateway.sqs.errors import SqsError, unsupported

NEVER: Final = 1_000_000_000
"""Deliveries of a message in a queue without a redrive policy: it is a dead letter after none of them."""

RETENTION_S: Final = 345_600
CACHE_S: Final = 1.0
"""Seconds for which a gateway may go on with the attributes that a queue had. AWS takes up to 60."""
CACHED_MAX: Final = 10_000

LABEL: Final = "sqs."
TAG: Final = "sqs.tag."
SOURCE: Final = "sqs.source."
"""Label of a dead-letter queue for each queue whose dead letters it shows, by name."""
TAGS_MAX: Final = 50

NUMBERS: Final = {
    # default, lowest, highest
    "VisibilityTimeout": (30, 0, 43_200),
    "DelaySeconds": (0, 0, 900),
    "MaximumMessageSize": (1_048_576, 1_024, 1_048_576),
    "MessageRetentionPeriod": (RETENTION_S, 60, 1_209_600),
    "ReceiveMessageWaitTimeSeconds": (0, 0, 20),
}
"""Attributes that are integers."""

REFUSED: Final = {
    "Policy": "rights are in the nodes' clients file (`quorumq clients`)",
    "KmsMasterKeyId": "messages are not encrypted on the nodes' disks: encrypt the disks",
    "KmsDataKeyReusePeriodSeconds": "messages are not encrypted on the nodes' disks: encrypt the disks",
    "SqsManagedSseEnabled": "messages are not encrypted on the nodes' disks: encrypt the disks",
    "RedriveAllowPolicy": "who may change both queues may redrive from one to the other",
}
"""Attributes with a value that is not refused (empty, false or allowAll), and why any other value is."""


class RedrivePolicy(NamedTuple):
    """Queue that shows the dead letters of another one, and deliveries until a message is one."""

    target: str
    most: int

    @classmethod
    def parse(cls, text: str) -> RedrivePolicy | None:
        """Return a policy from JSON; None for an empty one. SqsError if it is none."""
        if not text.strip():
            return None
        try:
            values = json.loads(text)
            arn, most = str(values["deadLetterTargetArn"]), values["maxReceiveCount"]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise SqsError(
                "InvalidParameterValue",
                "Value for parameter RedrivePolicy is invalid. Reason: It is JSON with deadLetterTargetArn and "
                "maxReceiveCount.",
            ) from None
        return cls(queue_of_arn(arn), integer("maxReceiveCount", most, 1, 1_000))

    def text(self, given: str) -> str:
        """Return the policy in one form of JSON, with the ARN that the text ``given`` has."""
        values = {
            "deadLetterTargetArn": json.loads(given)["deadLetterTargetArn"],
            "maxReceiveCount": self.most,
        }
        return json.dumps(values)


class Attributes(NamedTuple):
    """Attributes of one queue as the cluster has them."""

    topic: Topic
    labels: Mapping[str, str]

    def number(self, name: str) -> int:
        default, low, high = NUMBERS[name]
        if name == "MessageRetentionPeriod":
            return int(self.topic.ttl_s) or high
        text = self.labels.get(LABEL + name, "")
        return min(max(int(text), low), high) if text.isascii() and text.isdigit() else default

    @property
    def redrive_policy(self) -> str:
        """The redrive policy as its JSON text; "" without one."""
        return self.labels.get(LABEL + "RedrivePolicy", "")

    @property
    def sources(self) -> list[str]:
        """Queues whose dead letters this one shows."""
        return sorted(name.removeprefix(SOURCE) for name in self.labels if name.startswith(SOURCE))

    @property
    def tags(self) -> dict[str, str]:
        return {
            name.removeprefix(TAG): text for name, text in sorted(self.labels.items()) if name.startswith(TAG)
        }

    def settable(self) -> dict[str, str]:
        """Return the attributes that users set, by name."""
        values = {name: str(self.number(name)) for name in NUMBERS}
        return {**values, "RedrivePolicy": self.redrive_policy} if self.redrive_policy else values


class AttributeCache:
    """Attributes of queues by user and queue, for `CACHE_S`: labels cost a request."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], tuple[float, Attributes]] = {}

    async def of(self, call: Call, queue: str) -> Attributes:
        """Return a queue's attributes; NotFound if there is no such queue that the user may see."""
        now = trio.current_time()
        at, attributes = self._known.get((call.user, queue), (0.0, None))
        if attributes is not None and now < at + CACHE_S:
            return attributes
        topic = await call.client.topic(queue)
        attributes = Attributes(topic, await call.client.labels(queue))
        if len(self._known) >= CACHED_MAX:
            self._known.clear()
        self._known[(call.user, queue)] = (now, attributes)
        return attributes

    async def sources(self, call: Call, queue: str) -> list[str]:
        """Return the queues whose dead letters a queue shows, and whose redrive policies still name it.

        Raises:
            NotFound: there is no such queue that the user may see.

        Why: the labels of a queue outlive its sources, which native clients delete and make anew without them.
        """
        sources: list[str] = []
        for source in (await self.of(call, queue)).sources:
            with suppress(NotFound):
                policy = RedrivePolicy.parse((await self.of(call, source)).redrive_policy)
                if policy is not None and policy.target == queue:
                    sources.append(source)
        return sources

    def drop(self, queue: str) -> None:
        """Drop what is known of a queue: it was changed here."""
        for key in [key for key in self._known if key[1] == queue]:
            del self._known[key]


def checked(attributes: Mapping[str, str]) -> dict[str, str]:
    """Return attributes to be set, as text in one form; SqsError if one is unknown, or cannot be as it is."""
    values: dict[str, str] = {}
    for name, text in ((name.strip(), text) for name, text in attributes.items()):
        if name == "FifoQueue" and text.lower() == "true":
            raise unsupported(FIFO)
        if name in NUMBERS:
            _, low, high = NUMBERS[name]
            try:
                values[name] = str(integer(name, text, low, high))
            except SqsError as error:
                raise SqsError("InvalidAttributeValue", error.message) from None
        elif name == "RedrivePolicy":
            policy = RedrivePolicy.parse(text)
            values[name] = "" if policy is None else policy.text(text)
        elif name in REFUSED:
            if text.strip().lower() not in ("", "false", '{"redrivepermission":"allowall"}'):
                raise unsupported(f"{name} cannot be set: {REFUSED[name]}.")
        else:
            raise SqsError("InvalidAttributeName", f"Unknown Attribute {name[:100]}.")
    return values


def settings_of(values: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings of a topic among checked attributes, as `Client.alter_topic` takes them."""
    settings: dict[str, Any] = {}
    if "MessageRetentionPeriod" in values:
        settings |= {"ttl": float(values["MessageRetentionPeriod"]), "on_expiry": "drop"}
    if "RedrivePolicy" in values:
        policy = RedrivePolicy.parse(values["RedrivePolicy"])
        settings["max_deliveries"] = NEVER if policy is None else policy.most
    return settings


def labels_for(values: Mapping[str, str]) -> dict[str, str | None]:
    """Return the labels that keep checked attributes. A value that is the default needs none."""
    labels: dict[str, str | None] = {}
    for name, text in values.items():
        if name != "MessageRetentionPeriod":
            default = str(NUMBERS[name][0]) if name in NUMBERS else ""
            labels[LABEL + name] = None if text == default else text
    return labels


async def link_dead_letters(client: Client, queue: str, before: str, after: str) -> None:
    """Let the target of a redrive policy show the dead letters of a queue, and the target of the one before not.

    Args:
        client: client of the user, who needs ``admin`` of both queues.
        before, after: texts of its policies; "" for none.

    Raises:
        SqsError: there is no such target.
    """
    old, new = RedrivePolicy.parse(before), RedrivePolicy.parse(after)
    if new is not None:
        try:
            await client.set_labels(new.target, {SOURCE + queue: "1"})
        except NotFound:
            text = f"Value {after[:200]} for parameter RedrivePolicy is invalid. Reason: Dead letter target does not"
            raise SqsError("InvalidParameterValue", f"{text} exist.") from None
    if old is not None and (new is None or new.target != old.target):
        with suppress(NotFound):
            await client.set_labels(old.target, {SOURCE + queue: None})


def check_tags(queue: str, tags: Mapping[str, str], there: Iterable[str]) -> None:
    """Refuse tags that are too long or too many, by the limit, and keys that AWS keeps for itself."""
    for key, text in tags.items():
        if key.lower().startswith("aws:"):
            raise SqsError("InvalidParameterValue", "System tags cannot be added/updated by requester.")
        if not 1 <= len(key) <= 128 or len(text) > 256:
            raise SqsError(
                "InvalidParameterValue", "A tag has a key of 1 to 128 characters and a value of at most 256."
            )
    if len({*tags, *there}) > TAGS_MAX:
        raise SqsError("InvalidParameterValue", f"Too many tags added for queue {queue}.")
