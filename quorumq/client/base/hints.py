"""Errors with a hint, for names that users of other queues try first."""

from __future__ import annotations

from typing import Final, NoReturn, TypeVar

T = TypeVar("T")

COUNTERPARTS: Final = {
    "Message": {
        "body": "payload", "data": "payload", "value": "payload", "content": "payload",
        "nack": "reject()", "nak": "reject()", "requeue": "reject()", "delete": "ack()", "term": "dead_letter()",
        "delivery_tag": "receipt", "receipt_handle": "receipt", "message_id": "id", "attributes": "headers",
        "properties": "headers", "redelivered": "attempt", "retries": "attempt", "timestamp": "published_ms",
        "touch": "extend()", "in_progress": "extend()", "change_visibility": "extend()",
    },
    "Client": {
        "send": "publish()", "put": "publish()", "enqueue": "publish()", "basic_publish": "publish()",
        "publish_many": "producer(topic).publish_many()", "send_many": "producer(topic).publish_many()",
        "subscribe": "consumer(topic, group)", "consume": "consumer(topic, group)", "receive": "fetch()",
        "get": "fetch()", "poll": "fetch()", "nack": "reject()", "delete": "ack()", "aclose": "close()",
        "produce": "publish()", "send_message": "publish()", "send_task": "publish()", "apply_async": "publish()",
        "receive_message": "fetch()", "receive_messages": "fetch()", "basic_get": "fetch()", "pull": "fetch()",
        "basic_consume": "consumer(topic, group)", "commit": "ack()", "basic_ack": "ack()", "delete_message": "ack()",
        "change_message_visibility": "extend()", "seek": "rewind()", "purge_queue": "purge()",
        "create_queue": "create_topic()", "queue_declare": "create_topic()", "delete_queue": "delete_topic()",
    },
    "Consumer": {
        "poll": "take()", "receive": "take()", "fetch": "take()", "commit": "ack()", "nack": "reject()",
        "aclose": "close()",
    },
    "Producer": {"produce": "send()", "send_many": "publish_many()", "put": "send()", "aclose": "close()"},
}  # fmt: skip
"""Attributes of other queues' objects, by class, with their counterparts here."""

ELSEWHERE: Final = {
    "Message": "send receipt_to_text(message.receipt) there, and ack client.ticket(receipt_from_text(text))"
}
"""Remedies for objects that are wanted in another process, by class."""


def hinted(cls: type[T]) -> type[T]:
    """Give a class a hint for an attribute that it does not have, and refuse to pickle its objects.

    Why no base class: an object changes its class (client/aio.py), and all its bases must have the same layout then.
    """
    for name, method in (("__getattr__", _miss), ("__reduce__", _stay)):
        setattr(cls, name, method)
    return cls


def _miss(self: object, name: str) -> NoReturn:
    kind = type(self).__name__
    meant = COUNTERPARTS.get(kind, {}).get(name)
    hint = f": here it is {meant}" if meant else ""
    raise AttributeError(f"{kind!r} object has no attribute {name!r}{hint}", name=name, obj=self)


def _stay(self: object) -> NoReturn:
    kind = type(self).__name__
    remedy = ELSEWHERE.get(kind, "make one in each process")
    raise TypeError(f"a {kind} belongs to its process, and is neither pickled nor copied: {remedy}")
