"""Gateways beside real nodes, with SDKs that nothing was changed in; gateways and nodes are killed meanwhile."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import pytest

from quorumq.client.blocking import connect
from quorumq.lab.local import LocalCluster
from tests.patience import PATIENCE_S, until

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(
        not (find_spec("boto3") and find_spec("hypercorn")),
        reason="needs quorumq[gateway], and boto3, which other extras contradict",
    ),
]

SECONDS = 20.0
"""Seconds for which clients send and receive while processes are killed."""


class GatewayProcess:
    """A gateway at one port, to be killed and started again."""

    def __init__(self, nodes: list[str], port: int) -> None:
        self.command = [sys.executable, "-m", "quorumq", "gateway", "--listen", f"127.0.0.1:{port}", "--json"]
        self.command += [word for node in nodes for word in ("--node", node)]
        self.url = f"http://127.0.0.1:{port}"
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start it, and wait until it serves."""
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, text=True, env={**os.environ})
        assert self.process.stdout is not None
        assert json.loads(self.process.stdout.readline())["url"] == self.url

    def end(self, number: signal.Signals) -> int:
        """Send a signal, and return the exit code."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@contextmanager
def gateways(cluster: LocalCluster, count: int = 1) -> Iterator[list[GatewayProcess]]:
    nodes = [cluster.address(name) for name in cluster.nodes]
    running = [GatewayProcess(nodes, free_port()) for _ in range(count)]
    try:
        for gateway in running:
            gateway.start()
        yield running
    finally:
        for gateway in running:
            if gateway.process is not None and gateway.process.poll() is None:
                gateway.end(signal.SIGKILL)


def sdk(url: str) -> Any:
    import boto3
    from botocore.config import Config

    config = Config(retries={"total_max_attempts": 2, "mode": "standard"}, read_timeout=30, connect_timeout=2)
    return boto3.client(
        "sqs",
        endpoint_url=url,
        region_name="r",
        aws_access_key_id="a",
        aws_secret_access_key="b",
        config=config,
    )


def test_nothing_is_lost_and_nothing_comes_after_its_delete_while_gateways_and_nodes_are_killed(
    own: LocalCluster,
) -> None:
    from botocore.exceptions import BotoCoreError, ClientError

    confirmed: Counter[str] = Counter()
    received: Counter[str] = Counter()
    deleted: dict[str, float] = {}
    late: list[str] = []
    over = threading.Event()
    lock = threading.Lock()
    with gateways(own, 2) as pair:
        queue = sdk(pair[0].url).create_queue(QueueName="jobs")["QueueUrl"].rpartition("/")[2]

        def through_any(action: str, turn: int, **params: Any) -> Any:
            """Call an action through one gateway after the other until one answers."""
            end = time.monotonic() + PATIENCE_S
            while True:
                url = pair[turn % 2].url
                turn += 1
                try:
                    return getattr(sdk_of[url], action)(QueueUrl=f"{url}/000000000000/{queue}", **params)
                except (BotoCoreError, ClientError) as error:
                    response = getattr(error, "response", {}).get("ResponseMetadata", {})
                    if response.get("HTTPStatusCode", 503) < 500 or time.monotonic() > end:
                        raise
                    time.sleep(0.1)

        sdk_of = {gateway.url: sdk(gateway.url) for gateway in pair}

        def produce(who: int) -> None:
            for number in range(100_000):
                if over.is_set():
                    return
                bodies = [f"{who}.{number}.{n}" for n in range(10)]
                entries = [{"Id": str(n), "MessageBody": body} for n, body in enumerate(bodies)]
                answer = through_any("send_message_batch", number, Entries=entries)
                with lock:
                    confirmed.update(bodies[int(one["Id"])] for one in answer["Successful"])

        def consume(who: int) -> None:
            empty, asked = 0, {"MaxNumberOfMessages": 10, "VisibilityTimeout": 3, "WaitTimeSeconds": 1}
            for number in range(100_000):
                if over.is_set() and empty > 3:
                    return
                answer = through_any("receive_message", who + number, **asked)
                began = time.monotonic()
                messages = answer.get("Messages", [])
                empty = 0 if messages else empty + 1
                with lock:
                    received.update(message["Body"] for message in messages)
                    late.extend(
                        message["Body"]
                        for message in messages
                        if deleted.get(message["MessageId"], began) < began - 2
                    )
                entries = [
                    {"Id": str(n), "ReceiptHandle": one["ReceiptHandle"]} for n, one in enumerate(messages)
                ]
                if entries:
                    answer = through_any("delete_message_batch", who + number, Entries=entries)
                    with lock:
                        for one in answer["Successful"]:
                            deleted.setdefault(messages[int(one["Id"])]["MessageId"], time.monotonic())

        failures: list[BaseException] = []

        def guarded(do: Callable[[int], None], who: int) -> None:
            try:
                do(who)
            except BaseException as error:
                failures.append(error)
                over.set()

        threads = [
            threading.Thread(target=guarded, args=(do, who)) for do in (produce, consume) for who in range(2)
        ]
        for thread in threads:
            thread.start()
        rng = random.Random(7)
        end = time.monotonic() + SECONDS
        kills = 0
        while time.monotonic() < end and not failures:
            gateway = pair[kills % 2]
            gateway.end(signal.SIGKILL)
            time.sleep(rng.uniform(0.2, 1.0))
            gateway.start()
            node = rng.choice(list(own.nodes))
            own.kill(node)
            time.sleep(rng.uniform(0.2, 1.0))
            own.start(node)
            own.wait_ready()
            kills += 1
        over.set()
        for thread in threads:
            thread.join(2 * PATIENCE_S)
        assert not failures, failures[0]
        assert kills
        assert confirmed
        with connect([own.address(name) for name in own.nodes]) as client:
            until(lambda: not client.backlog("jobs", "sqs").ready, "all that is ready is received")
        assert not set(confirmed) - set(received), "nothing is lost"
        assert not late, "nothing comes after its delete"
        print(
            f"{len(confirmed)} sent, {sum(received.values()) - len(received)} twice, {kills} kills of each kind"
        )


def test_a_long_poll_whose_client_hangs_up_takes_no_message_with_it(shared: LocalCluster) -> None:
    with gateways(shared) as (gateway,):
        client = sdk(gateway.url)
        url = client.create_queue(QueueName="left")["QueueUrl"]
        body = json.dumps({"QueueUrl": url, "WaitTimeSeconds": 20, "VisibilityTimeout": 60})
        host, _, port = gateway.url.removeprefix("http://").partition(":")
        for _ in range(3):
            with socket.create_connection((host, int(port))) as connection:
                head = f"POST / HTTP/1.1\r\nHost: {host}\r\nX-Amz-Target: AmazonSQS.ReceiveMessage\r\n"
                connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
                time.sleep(1)
            time.sleep(0.5)
            client.send_message(QueueUrl=url, MessageBody="x")
            began = time.monotonic()
            answer = client.receive_message(QueueUrl=url, WaitTimeSeconds=5, AttributeNames=["All"])
            (message,) = answer["Messages"]
            assert time.monotonic() - began < 3
            assert message["Attributes"]["ApproximateReceiveCount"] == "1"
            client.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])


def test_a_gateway_that_is_stopped_answers_its_long_polls_and_exits_with_0(shared: LocalCluster) -> None:
    with gateways(shared) as (gateway,):
        client = sdk(gateway.url)
        url = client.create_queue(QueueName="stopped")["QueueUrl"]
        answers: list[Any] = []
        poll = threading.Thread(
            target=lambda: answers.append(client.receive_message(QueueUrl=url, WaitTimeSeconds=20))
        )
        poll.start()
        time.sleep(1)
        began = time.monotonic()
        code = gateway.end(signal.SIGTERM)
        poll.join(PATIENCE_S)
        assert (code, [answer.get("Messages") for answer in answers]) == (0, [None])
        assert time.monotonic() - began < 10
