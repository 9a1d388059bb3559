"""Clients of different protocols that send, receive and settle the same messages of one topic.

A payload is a message of kombu whose body is a text, as kombu gives its consumers no others.
"""

from __future__ import annotations

import http.client
import json
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode
from xml.etree import ElementTree

from quorumq.client import QuorumqError, UsageError
from quorumq.client.blocking import Client

GROUP: Final = "sqs"
"""Group of all clients: the gateway's for SQS."""
BATCH: Final = 10
WAIT_S: Final = 1.0
"""Seconds that a receive waits for messages."""
ANSWER_S: Final = 30.0
XMLNS: Final = "{http://queue.amazonaws.com/doc/2012-11-05/}"


class Failed(Exception):
    """No answer, or one that says to try again."""


class Delivery(NamedTuple):
    """A text that was received, and the handle that settles it."""

    text: str
    handle: Any


class ProtocolClient:
    """A client of a topic.

    Args:
        topic: its name.
        nodes: addresses of nodes.
        urls: URLs of gateways.

    Attributes:
        shown_s: longest seconds from the moment when a message is fetched until it is returned by a `receive` that
            had not begun by then.
    """

    shown_s = 0.0

    def __init__(self, topic: str, nodes: Sequence[str], urls: Sequence[str]) -> None:
        self.topic, self.nodes, self.urls = topic, list(nodes), list(urls)
        self.hold_s = 3.0
        self.count = BATCH

    def reconnect(self) -> None:
        """Close connections that the other side may have closed for being idle."""

    def send(self, texts: Sequence[str]) -> list[str]:
        """Return the texts that are stored.

        Raises:
            Failed: it is not known which ones are.
        """
        raise NotImplementedError

    def receive(self) -> list[Delivery]:
        """Return up to ``count`` messages.

        Raises:
            Failed: no answer.
        """
        raise NotImplementedError

    def settle(self, deliveries: Sequence[Delivery]) -> list[bool]:
        """Ack or delete messages; return for each if that is confirmed.

        Raises:
            Failed: it is not known.
        """
        raise NotImplementedError


def wrapped(text: str) -> str:
    """Return a message of kombu."""
    properties = {
        "delivery_tag": text,
        "delivery_mode": 2,
        "delivery_info": {"exchange": "", "routing_key": ""},
    }
    types = {"content-type": "application/json", "content-encoding": "utf-8"}
    return json.dumps({"body": json.dumps(text), **types, "headers": {}, "properties": properties})


def unwrapped(payload: str | bytes) -> str:
    """Return the text in a message of kombu."""
    return str(json.loads(json.loads(payload)["body"]))


class Native(ProtocolClient):
    """The blocking client."""

    def __init__(self, topic: str, nodes: Sequence[str], urls: Sequence[str]) -> None:
        super().__init__(topic, nodes, urls)
        self.client = Client.open(self.nodes, timeout=ANSWER_S)
        self.producer = self.client.producer(topic)
        self.producer.open()

    def send(self, texts: Sequence[str]) -> list[str]:
        payloads = [wrapped(text).encode() for text in texts]
        if len(texts) == 1:
            _tried(lambda: self.producer.publish(payloads[0]))
        else:
            _tried(lambda: self.producer.publish_many(payloads))
        return list(texts)

    def receive(self) -> list[Delivery]:
        options: dict[str, Any] = {"max_messages": self.count, "hold_time": self.hold_s, "max_wait": WAIT_S}
        messages = _tried(lambda: self.client.fetch(self.topic, GROUP, **options))
        return [Delivery(unwrapped(message.payload), message) for message in messages]

    def settle(self, deliveries: Sequence[Delivery]) -> list[bool]:
        _tried(lambda: self.client.ack([one.handle for one in deliveries]))
        return [True] * len(deliveries)


def _tried(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except UsageError:
        raise
    except QuorumqError as error:
        raise Failed(str(error)) from error


class Kombu(ProtocolClient):
    """Kombu's producer and consumer. A message may be shown a moment after it was settled elsewhere."""

    shown_s = 2.0

    def __init__(self, topic: str, nodes: Sequence[str], urls: Sequence[str]) -> None:
        super().__init__(topic, nodes, urls)
        import kombu

        import quorumq.brokers.kombu  # noqa: F401  makes quorumq:// known

        options = {"nodes": self.nodes, "group": GROUP, "hold_time": self.hold_s, "timeout": ANSWER_S}
        self.connection = kombu.Connection("quorumq://", transport_options=options)
        self.queue = kombu.Queue(topic, routing_key=topic)
        self.producer = kombu.Producer(self.connection.default_channel, serializer="json")
        self.messages: list[Delivery] = []
        self.consumer: Any = None

    def send(self, texts: Sequence[str]) -> list[str]:
        try:
            for text in texts:
                self.producer.publish(text, routing_key=self.topic, declare=[self.queue])
        except QuorumqError as error:
            raise Failed(str(error)) from error
        return list(texts)

    def receive(self) -> list[Delivery]:
        if self.consumer is None:
            channel = self.connection.channel()
            channel.basic_qos(prefetch_count=BATCH)
            self.consumer = self.connection.Consumer(
                [self.queue], channel=channel, on_message=self.messages.append
            )
            self.consumer.consume()
        with suppress(TimeoutError):
            wait = WAIT_S
            while len(self.messages) < self.count:
                self.connection.drain_events(timeout=wait)
                wait = 0.001
        taken, self.messages[:] = list(self.messages), []
        return [Delivery(str(message.payload), message) for message in taken]

    def settle(self, deliveries: Sequence[Delivery]) -> list[bool]:
        confirmed = []
        for one in deliveries:
            message = one.handle.channel.qos.delivered[one.handle.delivery_tag]
            one.handle.ack()
            confirmed.append(message.outcome is not None)
        return confirmed


class Gateways(ProtocolClient):
    """A client of gateways: another one after each failure."""

    def __init__(self, topic: str, nodes: Sequence[str], urls: Sequence[str]) -> None:
        super().__init__(topic, nodes, urls)
        self.turn = 0
        self.connections: dict[str, http.client.HTTPConnection] = {}

    @property
    def url(self) -> str:
        """URL of the gateway to ask."""
        return self.urls[self.turn % len(self.urls)]

    def reconnect(self) -> None:
        for connection in self.connections.values():
            connection.close()

    def post(self, path: str, body: bytes, headers: dict[str, str]) -> bytes:
        """Return the body of an answer whose status is 200.

        Raises:
            Failed: there is none, or its status says to try again.
        """
        host = self.url.removeprefix("http://")
        connection = self.connections.setdefault(host, http.client.HTTPConnection(host, timeout=ANSWER_S))
        try:
            connection.request("POST", path, body, headers)
            answer = connection.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            self.turn += 1
            raise Failed(repr(error)) from error
        return self.checked(answer.status, content)

    def checked(self, status: int, content: bytes) -> bytes:
        """Return the content of an answer.

        Raises:
            Failed: its status says to try again.
        """
        if status >= 500:
            self.turn += 1
            raise Failed(f"{status} {content!r}")
        assert status in (200, 201), f"{status} {content!r}"
        return content


class Json(Gateways):
    """JSON over HTTP."""

    def ask(self, path: str, body: dict[str, Any]) -> Any:
        """Return the answer to a request."""
        return json.loads(
            self.post(f"/v1{path}", json.dumps(body).encode(), {"Content-Type": "application/json"})
        )

    def send(self, texts: Sequence[str]) -> list[str]:
        messages = [{"payload": wrapped(text)} for text in texts]
        path = f"/topics/{self.topic}/messages"
        if len(texts) == 1:
            self.ask(path, messages[0])
            return list(texts)
        results = self.ask(f"{path}/batch", {"messages": messages})["results"]
        return [text for text, result in zip(texts, results, strict=True) if result.get("id")]

    def receive(self) -> list[Delivery]:
        body = {"max_messages": self.count, "max_wait": WAIT_S, "hold_time": self.hold_s}
        messages = self.ask(f"/topics/{self.topic}/groups/{GROUP}/fetch", body)["messages"]
        return [Delivery(unwrapped(message["payload"]), message["receipt"]) for message in messages]

    def settle(self, deliveries: Sequence[Delivery]) -> list[bool]:
        answer = self.ask("/receipts/ack", {"receipts": [one.handle for one in deliveries]})
        return [bool(result.get("outcome")) for result in answer["results"]]


class Curl(Json):
    """JSON over HTTP by curl, a process for each request."""

    def ask(self, path: str, body: dict[str, Any]) -> Any:
        command = [
            "curl",
            "-s",
            "-m",
            str(ANSWER_S),
            "-w",
            "\n%{http_code}",
            f"{self.url}/v1{path}",
            "-d",
            "@-",
        ]
        done = subprocess.run(command, input=json.dumps(body).encode(), capture_output=True, check=False)
        content, _, status = done.stdout.rpartition(b"\n")
        if done.returncode:
            self.turn += 1
            raise Failed(f"curl ended with {done.returncode}")
        return json.loads(self.checked(int(status), content))


class SqsJson(Gateways):
    """SQS's JSON protocol, without an SDK."""

    def ask(self, action: str, **params: Any) -> Any:
        """Return the answer to an action on the queue."""
        headers = {"X-Amz-Target": f"AmazonSQS.{action}", "Content-Type": "application/x-amz-json-1.0"}
        body = {"QueueUrl": f"{self.url}/000000000000/{self.topic}", **params}
        return json.loads(self.post("/", json.dumps(body).encode(), headers) or b"{}")

    def send(self, texts: Sequence[str]) -> list[str]:
        if len(texts) == 1:
            self.ask("SendMessage", MessageBody=wrapped(texts[0]))
            return list(texts)
        entries = [{"Id": str(n), "MessageBody": wrapped(text)} for n, text in enumerate(texts)]
        answer = self.ask("SendMessageBatch", Entries=entries)
        return [texts[int(one["Id"])] for one in answer["Successful"]]

    def receive(self) -> list[Delivery]:
        params = {"VisibilityTimeout": int(self.hold_s), "WaitTimeSeconds": int(WAIT_S)}
        answer = self.ask("ReceiveMessage", MaxNumberOfMessages=self.count, **params)
        messages = answer.get("Messages") or []
        return [Delivery(unwrapped(one["Body"]), one["ReceiptHandle"]) for one in messages]

    def settle(self, deliveries: Sequence[Delivery]) -> list[bool]:
        if len(deliveries) == 1:
            self.ask("DeleteMessage", ReceiptHandle=deliveries[0].handle)
            return [True]
        entries = [{"Id": str(n), "ReceiptHandle": one.handle} for n, one in enumerate(deliveries)]
        answer = self.ask("DeleteMessageBatch", Entries=entries)
        confirmed = {int(one["Id"]) for one in answer["Successful"]}
        return [number in confirmed for number in range(len(deliveries))]


class Boto3(SqsJson):
    """The SDK, unchanged and without repetitions of its own: a text is sent once."""

    def __init__(self, topic: str, nodes: Sequence[str], urls: Sequence[str]) -> None:
        super().__init__(topic, nodes, urls)
        import boto3
        from botocore.config import Config

        config = Config(retries={"total_max_attempts": 1}, read_timeout=ANSWER_S, connect_timeout=2)
        keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "region_name": "r"}
        self.clients = {
            url: boto3.client("sqs", endpoint_url=url, config=config, **keys) for url in self.urls
        }

    def ask(self, action: str, **params: Any) -> Any:
        from botocore import xform_name
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            call = getattr(self.clients[self.url], xform_name(action))
            return call(QueueUrl=f"{self.url}/000000000000/{self.topic}", **params)
        except BotoCoreError as error:
            self.turn += 1
            raise Failed(str(error)) from error
        except ClientError as error:
            status = error.response["ResponseMetadata"]["HTTPStatusCode"]
            self.checked(status, str(error).encode())
            raise


class SqsQuery(SqsJson):
    """SQS's query protocol: forms, answered in XML."""

    def ask(self, action: str, **params: Any) -> Any:
        form = {"Action": action, "Version": "2012-11-05"}
        entries = params.pop("Entries", [])
        for number, entry in enumerate(entries, 1):
            form |= {f"{action}RequestEntry.{number}.{name}": value for name, value in entry.items()}
        form |= {name: str(value) for name, value in params.items()}
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        content = self.post(f"/000000000000/{self.topic}", urlencode(form).encode(), headers)
        tree = ElementTree.fromstring(content)
        return {
            "Successful": [_fields(one) for one in tree.iter(f"{XMLNS}{action}ResultEntry")],
            "Messages": [_fields(one) for one in tree.iter(f"{XMLNS}Message")],
        }


def _fields(element: ElementTree.Element) -> dict[str, str]:
    return {child.tag.removeprefix(XMLNS): child.text or "" for child in element}


PROTOCOLS: Final[dict[str, type[ProtocolClient]]] = {
    "native": Native, "kombu": Kombu, "json": Json, "curl": Curl, "sqs-json": SqsJson, "sqs-query": SqsQuery,
    "boto3": Boto3,
}  # fmt: skip
