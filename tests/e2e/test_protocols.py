"""Clients of all protocols share one topic and one group, while nodes and gateways are killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import NamedTuple

import pytest

from quorumq.client.blocking import Client, connect
from quorumq.lab.local import LocalCluster
from tests.e2e.gateways import BOTO3, ROOT, gateways
from tests.e2e.protocols import GROUP
from tests.patience import PATIENCE_S, until

TOPIC = "shared"
KINDS = ("native", "kombu", "curl", "sqs-query", "boto3")
EVERY_S = 60.0
"""Seconds between two kills of a node, and of a gateway, at most."""
KILLS = 10


class Checked(NamedTuple):
    """Texts that break a promise, and numbers of events by protocol."""

    lost: list[str]
    late: list[str]
    counts: Counter[tuple[str, str]]
    repeated: int


def checked(records: dict[str, str]) -> Checked:
    """Check the records of protocol_worker.py, by protocol.

    A text is lost if it was stored and never shown, and late if it was fetched after it was settled.
    """
    sent: list[str] = []
    shown: dict[str, list[float]] = defaultdict(list)
    settled: dict[str, float] = {}
    counts: Counter[tuple[str, str]] = Counter()
    for protocol, record in records.items():
        for line in record.splitlines():
            event, text, at = line.split()
            counts[protocol, event] += 1
            if event == "sent":
                sent.append(text)
            elif event == "shown":
                shown[text].append(float(at))
            else:
                settled[text] = min(float(at), settled.get(text, float(at)))
    late = [text for text, times in shown.items() if max(times) > settled.get(text, max(times))]
    repeated = sum(len(times) - 1 for times in shown.values())
    return Checked([text for text in sent if text not in shown], late, counts, repeated)


def test_a_text_is_lost_if_no_client_has_shown_it_and_late_if_it_is_fetched_after_it_is_settled() -> None:
    records = {
        "a": "sent a.0 1.0\nsent a.1 1.0\nsent a.2 1.0\n",
        "b": "shown a.1 2.0\nsettled a.1 3.0\nshown a.2 2.0\nsettled a.2 3.0\n",
        "c": "shown a.1 2.9\nshown a.2 3.1\n",
    }
    state = checked(records)
    assert (state.lost, state.late, state.repeated) == (["a.0"], ["a.2"], 2)
    assert state.counts["b", "settled"] == 2


@contextmanager
def working(kind: str, nodes: list[str], urls: list[str], record: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [
        sys.executable, "-m", "tests.e2e.protocol_worker", kind, TOPIC, ",".join(nodes), ",".join(urls),
    ]  # fmt: skip
    apart = [str(BOTO3)] if kind == "boto3" else []
    path = os.pathsep.join([*apart, str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    with subprocess.Popen(
        [*command, str(record)], stdin=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def texts_of(records: dict[str, Path]) -> dict[str, str]:
    return {kind: path.read_text() for kind, path in records.items() if path.exists()}


def is_empty(client: Client) -> bool:
    """Return True if the group has settled all messages."""
    backlog = client.backlog(TOPIC, GROUP)
    assert not backlog.dead, "no client rejects messages"
    return not (backlog.ready or backlog.held or backlog.delayed)


@pytest.mark.soak
@pytest.mark.skipif(
    not (find_spec("hypercorn") and find_spec("celery") and (find_spec("boto3") or BOTO3.is_dir())),
    reason="needs quorumq[gateway], quorumq[celery], and boto3, here or in build/boto3 (make soak)",
)
def test_clients_share_a_topic_while_nodes_and_gateways_are_killed(
    own: LocalCluster, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Nothing is lost, and nothing is delivered after its delete, for the minutes of --mixed-seconds."""
    seconds = float(request.config.getoption("--mixed-seconds"))
    records = {kind: tmp_path / kind for kind in KINDS}
    with ExitStack() as stack:
        pair = stack.enter_context(gateways(own, 2))
        client = stack.enter_context(connect(own.addresses, timeout=PATIENCE_S))
        client.create_topic(TOPIC, partitions=3, max_deliveries=1000)
        client.create_group(TOPIC, GROUP)
        urls = [gateway.url for gateway in pair]
        workers = {
            kind: stack.enter_context(working(kind, own.addresses, urls, record))
            for kind, record in records.items()
        }

        def state() -> Checked:
            assert {kind: worker.poll() for kind, worker in workers.items()} == dict.fromkeys(workers), (
                "they run"
            )
            return checked(texts_of(records))

        until(lambda: all(state().counts[kind, "settled"] for kind in KINDS), state)
        rng, end = random.Random(7), time.monotonic() + seconds
        for turn in count():
            time.sleep(min(EVERY_S, seconds / KILLS))  # clients work undisturbed
            state()
            if time.monotonic() > end:
                break
            gateway, node = pair[turn % 2], rng.choice(own.nodes)
            gateway.end(signal.SIGKILL)
            own.kill(node)
            time.sleep(rng.uniform(0.2, 3.0))  # clients work without them
            gateway.start()
            own.start(node)
        for worker in workers.values():
            assert worker.stdin is not None
            worker.stdin.close()
        until(lambda: is_empty(client) and not state().lost, state)
        for worker in workers.values():
            worker.terminate()
        assert [worker.wait(PATIENCE_S) for worker in workers.values()] == [0] * len(KINDS)
    lost, late, counts, repeated = checked(texts_of(records))
    assert (lost, late) == ([], [])
    for kind in KINDS:
        assert all(counts[kind, event] for event in ("sent", "shown", "settled")), counts
    sent = sum(counts[kind, "sent"] for kind in KINDS)
    print(f"{sent} sent, {repeated} repeated, {turn} nodes and {turn} gateways killed in {seconds:g} s")
