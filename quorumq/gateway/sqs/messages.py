"""Messages of SQS as messages of quorumq: bodies, attributes, digests and ids."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
import struct
import uuid
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from quorumq.client import Message, MessageId, receipt_to_text
from quorumq.gateway.sqs.call import Params
from quorumq.gateway.sqs.errors import SqsError, invalid, unsupported
from quorumq.gateway.sqs.protocol import is_xml

TYPES: Final = "sqs:types"
"""Header with the types of attributes, as JSON by name, that are neither String nor Binary."""
TRACE: Final = "sqs:AWSTraceHeader"
TRACE_CHARS_MAX: Final = 500
ENCODING: Final = "quorumq-encoding"
"""Attribute of a message whose body is base64, because its payload is no text that SQS may have."""

CHARACTERS: Final = (
    "Invalid characters found. Valid unicode characters are #x9 | #xA | #xD | #x20 to #xD7FF | #xE000 to #xFFFD | "
    "#x10000 to #x10FFFF"
)
"""Text of the error of a text that XML cannot have."""

ATTRIBUTES_MAX: Final = 10
_NAME: Final = re.compile(r"(?!\.)(?!.*\.\.)[A-Za-z0-9_.\u00c0-\u017f-]{1,256}(?<!\.)")
_TYPE: Final = re.compile(r"(String|Number|Binary)(\.[^\x00-\x1f]{1,249})?")
NUMBER: Final = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
NUMBER_CHARS_MAX: Final = 256
_GROUP: Final = re.compile(r"[\x21-\x7e]{1,128}")

Headers = dict[str, Any]


class Outgoing(NamedTuple):
    """A message to be published, what the answer says of it, and the bytes that SQS counts."""

    payload: bytes
    headers: Headers
    key: str | None
    reply: dict[str, str]
    size: int


def outgoing(params: Params, size_max: int, trace: str = "") -> Outgoing:
    """Return the message of a SendMessage, or of an entry of a batch; SqsError if something in it cannot be.

    Args:
        size_max: bytes that it may have.
        trace: trace of the request, which the message has if it names none of its own.
    """
    body = params.text("MessageBody")
    if not body:
        raise SqsError("MissingParameter", "The request must contain the parameter MessageBody.")
    if not is_xml(body):
        raise SqsError("InvalidMessageContents", CHARACTERS)
    if params.has("MessageDeduplicationId"):
        raise invalid("MessageDeduplicationId is valid for FIFO queues only.")
    key = params.text("MessageGroupId") if params.has("MessageGroupId") else None
    if key is not None and not _GROUP.fullmatch(key):
        raise invalid(
            f"Value {key[:200]} for parameter MessageGroupId is invalid. Reason: MessageGroupId can only include "
            "alphanumeric and punctuation characters. 1 to 128 in length."
        )
    payload = body.encode()
    values = params.mapping("MessageAttributes")
    typed = {name: typed_value(name, value) for name, value in values.items()}
    if len(typed) > ATTRIBUTES_MAX:
        raise invalid(
            f"Number of message attributes [{len(typed)}] exceeds the allowed maximum [{ATTRIBUTES_MAX}]."
        )
    size = len(payload) + sum(len(name) + len(one.type) + len(one.raw) for name, one in typed.items())
    if size > size_max:
        raise invalid(
            f"One or more parameters are invalid. Reason: Message must be shorter than {size_max} bytes."
        )
    reply = {"MD5OfMessageBody": hashlib.md5(payload, usedforsecurity=False).hexdigest()}
    if typed:
        reply["MD5OfMessageAttributes"] = digest_of(typed)
    headers = headers_of(typed)
    system = {
        name: typed_value(name, value) for name, value in params.mapping("MessageSystemAttributes").items()
    }
    if set(system) - {"AWSTraceHeader"}:
        raise invalid("The only message system attribute is AWSTraceHeader.")
    if trace and len(trace) <= TRACE_CHARS_MAX and is_xml(trace):
        headers[TRACE] = trace
    if system:
        own = system["AWSTraceHeader"]
        if own.type != "String":
            raise invalid("The message system attribute AWSTraceHeader must be a String.")
        headers[TRACE] = own.value
        reply["MD5OfMessageSystemAttributes"] = digest_of(system)
    return Outgoing(payload, headers, key, reply, size)


class Typed(NamedTuple):
    """Value of one attribute with its type."""

    type: str
    value: str | bytes

    @property
    def raw(self) -> bytes:
        return self.value if isinstance(self.value, bytes) else self.value.encode()


def typed_value(name: str, value: Any) -> Typed:
    """Return an attribute from its form in a request; SqsError if its name, type or value cannot be."""
    if not _NAME.fullmatch(name) or name.lower().startswith(("aws.", "amazon.")):
        raise invalid(
            f"The message attribute name {name[:100]!r} is invalid. Attribute name can contain A-Z, a-z, 0-9, "
            "underscore (_), hyphen (-), and period (.) characters."
        )
    if not isinstance(value, dict):
        raise invalid(f"The message attribute {name!r} must be a mapping.")
    if value.get("StringListValues") or value.get("BinaryListValues"):
        raise unsupported("Message attribute list values in SendMessage operation are not supported.")
    kind = value.get("DataType")
    if not isinstance(kind, str) or not _TYPE.fullmatch(kind):
        raise invalid(
            f"The message attribute {name!r} has an invalid message attribute type, the set of supported type prefixes "
            "is Binary, Number, and String."
        )
    if kind.startswith("Binary"):
        return Typed(kind, binary_value(name, kind, value.get("BinaryValue")))
    text = value.get("StringValue")
    if not isinstance(text, str) or not text:
        raise no_value(name, kind)
    if not is_xml(text):
        raise invalid(CHARACTERS)
    if kind.startswith("Number") and not (len(text) <= NUMBER_CHARS_MAX and NUMBER.fullmatch(text)):
        raise invalid(f"Can't cast the value of message attribute {name!r} to a number.")
    return Typed(kind, text)


def no_value(name: str, kind: str) -> SqsError:
    """Return the error of an attribute without the value that its type has."""
    text = f"Message (user) attribute {name!r} must contain a non-empty value of type {kind.partition('.')[0]!r}."
    return invalid(text)


def binary_value(name: str, kind: str, value: Any) -> bytes:
    """Return the bytes of an attribute, which travel as base64."""
    try:
        data = base64.b64decode(value, validate=True)
    except (binascii.Error, TypeError, ValueError):
        data = b""
    if not data:
        raise no_value(name, kind)
    return data


def headers_of(attributes: Mapping[str, Typed]) -> Headers:
    """Return the headers that keep attributes. Native consumers get texts and bytes under the names."""
    headers: Headers = {name: one.value for name, one in attributes.items()}
    types = {name: one.type for name, one in attributes.items() if one.type not in ("String", "Binary")}
    if types:
        headers[TYPES] = json.dumps(types, separators=(",", ":"))
    return headers


def attributes_of(headers: Mapping[str, Any]) -> dict[str, Typed]:
    """Return the attributes of a message, of whichever client published it."""
    types: Any = {}
    if isinstance(headers.get(TYPES), str):
        try:
            types = json.loads(headers[TYPES])
        except (ValueError, RecursionError):
            types = {}
    attributes: dict[str, Typed] = {}
    for name, value in headers.items():
        if value is None or not _NAME.fullmatch(name):
            continue
        kind: Any = types.get(name) if isinstance(types, dict) else None
        if isinstance(value, bytes):
            attributes[name] = Typed(kind if _is_type(kind, "Binary") else "Binary", value)
        elif isinstance(value, str):
            attributes[name] = Typed(kind if _is_type(kind, "String", "Number") else "String", value)
        else:
            number = not isinstance(value, bool)
            attributes[name] = Typed(
                "Number" if number else "String", str(value) if number else str(value).lower()
            )
    return attributes


def _is_type(kind: Any, *prefixes: str) -> bool:
    return isinstance(kind, str) and _TYPE.fullmatch(kind) is not None and kind.startswith(prefixes)


def digest_of(attributes: Mapping[str, Typed]) -> str:
    """Return the MD5 of attributes, as SDKs compute it."""
    md5 = hashlib.md5(usedforsecurity=False)
    for name, one in sorted(attributes.items()):
        for part in (name.encode(), one.type.encode()):
            md5.update(struct.pack("!I", len(part)) + part)
        md5.update(b"\x02" if one.type.startswith("Binary") else b"\x01")
        md5.update(struct.pack("!I", len(one.raw)) + one.raw)
    return md5.hexdigest()


def message_id(name: MessageId) -> str:
    """Return the id of a message as SQS has ids: the same when it is sent and when it is received."""
    return str(uuid.UUID(bytes=hashlib.sha256(str(name).encode()).digest()[:16], version=5))


class Selection(NamedTuple):
    """Attributes that a ReceiveMessage asks for."""

    system: frozenset[str]
    names: tuple[str, ...]

    @classmethod
    def of(cls, params: Params) -> Selection:
        system = params.texts("AttributeNames") + params.texts("MessageSystemAttributeNames")
        return cls(frozenset(system), tuple(params.texts("MessageAttributeNames")))

    def has(self, name: str) -> bool:
        """Return True if a message attribute is asked for, by name or by the beginning of it."""
        return any(
            one in ("All", ".*") or one == name or (one.endswith(".*") and name.startswith(one[:-2]))
            for one in self.names
        )


def received(message: Message, selection: Selection, source_arn: str = "") -> dict[str, Any]:
    """Return a message as a ReceiveMessage answers it.

    Args:
        selection: attributes that were asked for.
        source_arn: queue in which it died; "" if it is no dead letter.
    """
    attributes = attributes_of(message.headers)
    try:
        body = message.payload.decode()
    except UnicodeDecodeError:
        body = ""
    shown = {name: one for name, one in attributes.items() if selection.has(name)}
    if (not body and message.payload) or not is_xml(body):
        body = base64.b64encode(message.payload).decode()
        shown[ENCODING] = Typed("String", "base64")
    answer: dict[str, Any] = {
        "MessageId": message_id(message.id),
        "ReceiptHandle": receipt_to_text(message.receipt),
        "MD5OfBody": hashlib.md5(body.encode(), usedforsecurity=False).hexdigest(),
        "Body": body,
    }
    system = system_attributes(message, source_arn)
    if picked := {name: text for name, text in system.items() if selection.system & {name, "All"}}:
        answer["Attributes"] = picked
    if shown:
        answer["MD5OfMessageAttributes"] = digest_of(shown)
        answer["MessageAttributes"] = {name: _as_sent(one) for name, one in shown.items()}
    return answer


def _as_sent(one: Typed) -> dict[str, str]:
    if isinstance(one.value, bytes):
        return {"BinaryValue": base64.b64encode(one.value).decode(), "DataType": one.type}
    return {"StringValue": one.value, "DataType": one.type}


def system_attributes(message: Message, source_arn: str) -> dict[str, str]:
    """Return what SQS says of a message itself. The time of the first of several deliveries is kept nowhere."""
    system = {
        "SentTimestamp": str(message.published_ms),
        "ApproximateReceiveCount": str(message.attempt),
    }
    if message.attempt == 1:
        system["ApproximateFirstReceiveTimestamp"] = str(message.delivery.delivered_ms)
    if message.key and _GROUP.fullmatch(key := message.key.decode("latin-1")):
        system["MessageGroupId"] = key
    if isinstance(trace := message.headers.get(TRACE), str):
        system["AWSTraceHeader"] = trace
    if source_arn:
        system["DeadLetterQueueSourceArn"] = source_arn
    return system


def outcome_lists(good: Iterable[dict[str, Any]], failed: Iterable[tuple[str, SqsError]]) -> dict[str, Any]:
    """Return the answer to a batch: entries that were carried out, and those that failed, each with its error."""
    errors = [
        {"Id": name, "SenderFault": error.is_sender, "Code": error.query_code, "Message": error.message}
        for name, error in failed
    ]
    answer: dict[str, Any] = {"Successful": list(good)}
    return {**answer, "Failed": errors} if errors else answer
