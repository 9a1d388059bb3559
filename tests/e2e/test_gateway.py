"""Gateways beside real nodes: clients that hang up, and gateways that are stopped."""

from __future__ import annotations

import json
import signal
import socket
import threading
import time
from importlib.util import find_spec
from typing import Any

import pytest

from quorumq.lab.local import LocalCluster
from tests.e2e.gateways import gateways
from tests.e2e.protocols import SqsJson
from tests.patience import PATIENCE_S

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(not find_spec("hypercorn"), reason="needs quorumq[gateway]"),
]


def test_a_long_poll_whose_client_hangs_up_takes_no_message_with_it(shared: LocalCluster) -> None:
    with gateways(shared) as (gateway,):
        client = SqsJson("left", [], [gateway.url])
        url = client.ask("CreateQueue", QueueName="left")["QueueUrl"]
        body = json.dumps({"QueueUrl": url, "WaitTimeSeconds": 20, "VisibilityTimeout": 60})
        host, _, port = gateway.url.removeprefix("http://").partition(":")
        for _ in range(3):
            with socket.create_connection((host, int(port))) as connection:
                head = f"POST / HTTP/1.1\r\nHost: {host}\r\nX-Amz-Target: AmazonSQS.ReceiveMessage\r\n"
                connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
                time.sleep(1)
            time.sleep(0.5)
            client.ask("SendMessage", MessageBody="x")
            began = time.monotonic()
            answer = client.ask("ReceiveMessage", WaitTimeSeconds=5, AttributeNames=["All"])
            (message,) = answer["Messages"]
            assert time.monotonic() - began < 3
            assert message["Attributes"]["ApproximateReceiveCount"] == "1"
            client.ask("DeleteMessage", ReceiptHandle=message["ReceiptHandle"])


def test_a_gateway_that_is_stopped_answers_its_long_polls_and_exits_with_0(shared: LocalCluster) -> None:
    with gateways(shared) as (gateway,):
        client = SqsJson("stopped", [], [gateway.url])
        client.ask("CreateQueue", QueueName="stopped")
        answers: list[Any] = []
        poll = threading.Thread(
            target=lambda: answers.append(client.ask("ReceiveMessage", WaitTimeSeconds=20))
        )
        poll.start()
        time.sleep(1)
        began = time.monotonic()
        code = gateway.end(signal.SIGTERM)
        poll.join(PATIENCE_S)
        assert (code, [answer.get("Messages") for answer in answers]) == (0, [None])
        assert time.monotonic() - began < 10
