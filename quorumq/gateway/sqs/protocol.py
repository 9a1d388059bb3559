"""Requests and answers of both protocols of SQS: JSON 1.0, and the query protocol with XML answers.

Requests of either have the form of JSON from here on: the names of botocore's model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Mapping
from typing import Any, Final, NamedTuple
from xml.sax.saxutils import escape as escape_xml

from quorumq.gateway.requests import form_fields, has_more_values
from quorumq.gateway.sqs.errors import SqsError, invalid
from quorumq.gateway.sqs.signature import HttpRequest

TARGET: Final = "AmazonSQS."
JSON_TYPE: Final = "application/x-amz-json-1.0"
XML_TYPE: Final = "text/xml"
NAMESPACE: Final = "http://queue.amazonaws.com/doc/2012-11-05/"
FIELDS_MAX: Final = 2_000
"""Fields of a form, and values of JSON: a batch of 10 with 10 attributes each has some 450."""
DEPTH_MAX: Final = 7
"""Mappings and lists within each other: attributes in the entries of a batch need 5."""

_NOT_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_LISTS: Final = {
    "AttributeName": "AttributeNames",
    "MessageAttributeName": "MessageAttributeNames",
    "MessageSystemAttributeName": "MessageSystemAttributeNames",
    "TagKey": "TagKeys",
}
_MAPS: Final = {
    "Attribute": ("Attributes", "Name"),
    "MessageAttribute": ("MessageAttributes", "Name"),
    "MessageSystemAttribute": ("MessageSystemAttributes", "Name"),
    "Tag": ("Tags", "Key"),
}
_COLLECTIONS: Final = frozenset({*_LISTS.values(), *(target for target, _ in _MAPS.values()), "Entries"})
_ELEMENTS: Final = {
    "QueueUrls": "QueueUrl",
    "queueUrls": "QueueUrl",
    "Messages": "Message",
    "Failed": "BatchResultErrorEntry",
    "Results": "ListMessageMoveTasksResultEntry",
}
_WITHOUT_RESULT: Final = frozenset(
    {
        "ChangeMessageVisibility", "DeleteMessage", "DeleteQueue", "PurgeQueue", "SetQueueAttributes", "TagQueue",
        "UntagQueue",
    }
)  # fmt: skip
_PAIRS: Final = {
    "Attributes": ("Attribute", "Name"),
    "MessageAttributes": ("MessageAttribute", "Name"),
    "Tags": ("Tag", "Key"),
}


class SqsRequest(NamedTuple):
    """An action with its parameters, in the form of the JSON protocol."""

    action: str
    params: dict[str, Any]


def is_query(request: HttpRequest) -> bool:
    """Return True if a request is of the query protocol."""
    return not request.headers.get("x-amz-target", "").startswith(TARGET)


def parsing(request: HttpRequest) -> Generator[None, None, SqsRequest]:
    """Return the action of a request and its parameters, in steps of two milliseconds if it is a form; JSON is one.

    Raises:
        SqsError: it is malformed, or names no action.
    """
    if is_query(request):
        return (yield from _parse_query(request))
    return _parse_json(request)


def _parse_json(request: HttpRequest) -> SqsRequest:
    action = request.headers["x-amz-target"].removeprefix(TARGET)
    if has_more_values(request.body, FIELDS_MAX):
        raise SqsError("SerializationException", f"The body has more than {FIELDS_MAX} values.")
    try:
        params = json.loads(request.body or b"{}")
    except (ValueError, RecursionError):
        raise SqsError("SerializationException", "The body is not JSON.") from None
    if not isinstance(params, dict):
        raise SqsError("SerializationException", "The body is not a JSON object.")
    _check_tree(params)
    return SqsRequest(action, params)


def _check_tree(params: dict[str, Any]) -> None:
    """Refuse parameters nested too deeply, or with texts that no queue can keep, before they are looked at."""
    level: list[Any] = [params]
    for _ in range(DEPTH_MAX):
        inner: list[Any] = []
        for node in level:
            inner += [*node, *node.values()] if isinstance(node, dict) else node
        for text in (value for value in inner if isinstance(value, str)):
            if not text.isascii() and _SURROGATE.search(text):
                raise SqsError(
                    "SerializationException", f"The text {text[:100]!a} has half a character in it."
                )
        level = [value for value in inner if isinstance(value, dict | list)]
        if not level:
            return
    raise SqsError("SerializationException", f"The body has more than {DEPTH_MAX} levels.")


def _parse_query(request: HttpRequest) -> Generator[None, None, SqsRequest]:
    try:
        text = request.query if request.method == "GET" else request.body.decode("ascii")
        pairs = yield from form_fields(text, FIELDS_MAX)
    except ValueError:
        raise SqsError(
            "MalformedQueryString", f"The form is not URL-encoded UTF-8 with {FIELDS_MAX} fields at most."
        ) from None
    tree: dict[str, Any] = {}
    for key, value in pairs:
        parts = key.split(".", DEPTH_MAX)
        if len(parts) > DEPTH_MAX:
            raise SqsError(
                "MalformedQueryString", f"The field {key[:100]!r} has more than {DEPTH_MAX} parts."
            )
        node: Any = tree
        for part in parts[:-1]:
            node = node.setdefault(part, {}) if isinstance(node, dict) else None
        if not isinstance(node, dict) or isinstance(node.get(parts[-1]), dict):
            raise SqsError("MalformedQueryString", f"The field {key[:100]!r} contradicts another one.")
        node[parts[-1]] = value
    action = tree.pop("Action", "")
    if not isinstance(action, str) or not action:
        raise SqsError("MissingAction", "The request names no Action and no X-Amz-Target.")
    params = _shaped(tree)
    if "QueueUrl" not in params and request.path.strip("/"):
        params["QueueUrl"] = request.path
    return SqsRequest(action, params)


def _shaped(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields of a form as the JSON protocol has them.

    SDKs send an empty list or mapping as an empty text, under the name of the whole: it is left out.
    """
    shaped: dict[str, Any] = {}
    for name, value in tree.items():
        if value == "" and name in _COLLECTIONS:
            continue
        if name in _LISTS:
            shaped[_LISTS[name]] = _numbered(value)
        elif name.endswith("BatchRequestEntry"):
            shaped["Entries"] = [
                _shaped(item) if isinstance(item, dict) else item for item in _numbered(value)
            ]
        elif name in _MAPS:
            target, key = _MAPS[name]
            items = [value] if isinstance(value, dict) and key in value else _numbered(value)
            if not all(isinstance(item, dict) and isinstance(item.get(key), str) for item in items):
                raise invalid(f"Each {name} has a {key} and a Value.")
            shaped[target] = {item[key]: item.get("Value", "") for item in items}
        else:
            shaped[name] = value
    return shaped


def _numbered(value: Any) -> list[Any]:
    """Return the items of a list, whose names are numbers, in their order; one alone may have none."""
    if not isinstance(value, dict):
        return [value]
    if not all(name.isascii() and name.isdigit() and len(name) <= 6 for name in value):
        raise SqsError("MalformedQueryString", "The items of a list have numbers.")
    return [value[name] for name in sorted(value, key=int)]


def encode_json(result: Mapping[str, Any]) -> bytes:
    return json.dumps(result, separators=(",", ":")).encode()


def encode_xml(action: str, result: Mapping[str, Any], request_id: str) -> bytes:
    """Return an answer as XML. An empty result has its element too, which SDKs look for."""
    inner = _elements(action, result)
    body = "" if action in _WITHOUT_RESULT else f"<{action}Result>{inner}</{action}Result>"
    metadata = f"<ResponseMetadata><RequestId>{request_id}</RequestId></ResponseMetadata>"
    return f'<?xml version="1.0"?><{action}Response xmlns="{NAMESPACE}">{body}{metadata}</{action}Response>'.encode()


def encode_error_xml(error: SqsError, request_id: str) -> bytes:
    side = "Sender" if error.is_sender else "Receiver"
    text = error.message
    if error.code == "QueueDoesNotExist":
        text = text.rstrip(".") + " for this wsdl version."
    inner = (
        f"<Type>{side}</Type><Code>{_text(error.query_code)}</Code><Message>{_text(text)}</Message><Detail/>"
    )
    return (
        f'<?xml version="1.0"?><ErrorResponse xmlns="{NAMESPACE}"><Error>{inner}</Error>'
        f"<RequestId>{request_id}</RequestId></ErrorResponse>"
    ).encode()


def _elements(action: str, fields: Mapping[str, Any]) -> str:
    parts: list[str] = []
    for name, value in fields.items():
        if name in _PAIRS and isinstance(value, dict):
            element, key = _PAIRS[name]
            parts += [
                f"<{element}><{key}>{_text(one)}</{key}><Value>{_value(action, content)}</Value></{element}>"
                for one, content in value.items()
            ]
        elif isinstance(value, list):
            element = f"{action}ResultEntry" if name == "Successful" else _ELEMENTS[name]
            parts += [f"<{element}>{_value(action, item)}</{element}>" for item in value]
        else:
            parts.append(f"<{name}>{_value(action, value)}</{name}>")
    return "".join(parts)


def _value(action: str, value: Any) -> str:
    if isinstance(value, dict):
        return _elements(action, value)
    return _text(str(value).lower() if isinstance(value, bool) else str(value))


def _text(text: str) -> str:
    return escape_xml(_NOT_XML.sub("\ufffd", text), {"\r": "&#13;"})


def is_xml(text: str) -> bool:
    """Return True if XML, and so SQS, may have all characters of a text."""
    return _NOT_XML.search(text) is None
