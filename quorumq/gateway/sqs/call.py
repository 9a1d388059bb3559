"""One call of an action: its parameters, checked as they are read, and the cluster as its user sees it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from quorumq.client import Client
from quorumq.gateway.gateway import Gateway
from quorumq.gateway.requests import Receive
from quorumq.gateway.sqs.errors import SqsError, invalid, no_queue, unsupported

ACCOUNT: Final = "000000000000"
REGION: Final = "quorumq"
"""Region of ARNs if a request is not signed for another one."""

QUEUE_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,80}")
FIFO: Final = "FIFO queues are not there: several consumers get messages in no order. Use a standard queue."


class Params:
    """Parameters of an action, or of an entry of a batch."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def has(self, name: str) -> bool:
        return self._values.get(name) is not None

    def text(self, name: str, default: str | None = None) -> str:
        """Return a text; SqsError if it is none, or not given and without a default."""
        value = self._values.get(name)
        if value is None:
            if default is None:
                raise SqsError("MissingParameter", f"The request must contain the parameter {name}.")
            return default
        if not isinstance(value, str):
            raise invalid(f"{name} must be text.")
        return value

    def number(self, name: str, low: int, high: int, default: int) -> int:
        """Return an integer within bounds; SqsError if it is none."""
        value = self._values.get(name)
        if value is None:
            return default
        return integer(name, value, low, high)

    def texts(self, name: str) -> list[str]:
        """Return a list of texts; [] if it is not given."""
        value = self._values.get(name)
        items = [] if value is None else value if isinstance(value, list) else [value]
        if not all(isinstance(item, str) for item in items):
            raise invalid(f"{name} must be a list of texts.")
        return items

    def mapping(self, name: str) -> dict[str, Any]:
        """Return a mapping; {} if it is not given."""
        value = self._values.get(name)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise invalid(f"{name} must be a mapping.")
        return value

    def text_mapping(self, name: str) -> dict[str, str]:
        """Return a mapping of texts to texts; {} if it is not given. Numbers become text."""
        values = self.mapping(name)
        if not all(isinstance(value, str | int) for value in values.values()):
            raise invalid(f"The values of {name} must be texts.")
        return {key: value if isinstance(value, str) else str(value) for key, value in values.items()}

    def entries(self, action: str) -> list[Params]:
        """Return the entries of a batch; SqsError unless they are 1 to 10, with ids that differ."""
        items = self._values.get("Entries")
        if items is None or items == []:
            text = f"There should be at least one {action}RequestEntry in the request."
            raise SqsError("EmptyBatchRequest", text)
        if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
            raise invalid("Entries must be a list of mappings.")
        if len(items) > BATCH_MAX:
            text = f"Maximum number of entries per request are {BATCH_MAX}. You have sent {len(items)}."
            raise SqsError("TooManyEntriesInBatchRequest", text)
        entries = [Params(item) for item in items]
        ids = [entry.text("Id") for entry in entries]
        for name in ids:
            if not QUEUE_NAME.fullmatch(name):
                text = "A batch entry id can only contain alphanumeric characters, hyphens and underscores. "
                raise SqsError("InvalidBatchEntryId", f"{text}It can be at most 80 characters long.")
        for at, name in enumerate(ids):
            if name in ids[:at]:
                raise SqsError("BatchEntryIdsNotDistinct", f"Id {name} repeated.")
        return entries


BATCH_MAX: Final = 10


def integer(name: str, value: Any, low: int, high: int) -> int:
    """Return an integer within bounds, from JSON or text; SqsError if it is none."""
    number = value if type(value) is int else None
    if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,18}", value):
        number = int(value)
    if number is None or not low <= number <= high:
        bounds = f">= {low} and <= {high}" if not low else f"between {low} and {high}"
        raise invalid(
            f"Value {str(value)[:40]} for parameter {name} is invalid. Reason: Must be {bounds}, if provided."
        )
    return number


@dataclass(eq=False)
class Call:
    """One call of an action.

    Attributes:
        user: name of the user, for the cache of attributes.
        base_url: scheme, host and port of queue URLs.
        receive: next message of ASGI: says that the client has left.
        trace: header by which AWS's X-Ray traces a request; "" without one.
    """

    gateway: Gateway
    client: Client
    user: str
    params: Params
    base_url: str
    region: str
    receive: Receive
    trace: str

    @property
    def group(self) -> str:
        """The group that reads topics as queues."""
        return self.gateway.settings.group

    def queue(self) -> str:
        """Return the name of the queue that QueueUrl names; SqsError if it is missing, or names none."""
        return queue_of_url(self.params.text("QueueUrl"))

    def url(self, queue: str) -> str:
        return f"{self.base_url}/{ACCOUNT}/{queue}"

    def arn(self, queue: str) -> str:
        return f"arn:aws:sqs:{self.region}:{ACCOUNT}:{queue}"


def queue_of_url(url: str) -> str:
    """Return the name at the end of a queue's URL, of any host and account; SqsError if no queue may have it."""
    try:
        name = unquote(urlsplit(url).path.rstrip("/").rpartition("/")[2])
    except ValueError:
        name = ""
    check_name(name, missing=True)
    return name


def queue_of_arn(arn: str) -> str:
    """Return the name at the end of a queue's ARN; SqsError if it is none."""
    parts = arn.split(":")
    if len(parts) != 6 or parts[2] != "sqs":
        raise invalid(f"{arn[:200]!r} is no ARN of a queue.")
    check_name(parts[5], missing=True)
    return parts[5]


def check_name(name: str, *, missing: bool = False) -> None:
    """Refuse a name that no queue may have; if ``missing``, as one that is not there."""
    if name.endswith(".fifo"):
        raise unsupported(FIFO)
    if not QUEUE_NAME.fullmatch(name):
        if missing:
            raise no_queue()
        raise invalid("Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length.")
