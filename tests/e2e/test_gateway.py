"""A gateway beside real nodes that is stopped."""

from __future__ import annotations

import signal
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


def test_a_gateway_that_is_stopped_answers_its_long_polls_and_exits_with_0(shared: LocalCluster) -> None:
    with gateways(shared) as (gateway,):
        client = SqsJson("stopped", [], [gateway.url])
        client.ask("CreateQueue", QueueName="stopped")
        answers: list[Any] = []
        poll = threading.Thread(
            target=lambda: answers.append(client.ask("ReceiveMessage", WaitTimeSeconds=20))
        )
        poll.start()
        time.sleep(1)  # the poll waits there by then
        began = time.monotonic()
        code = gateway.end(signal.SIGTERM)
        poll.join(PATIENCE_S)
        assert (code, [answer.get("Messages") for answer in answers]) == (0, [None])
        assert time.monotonic() - began < 10
