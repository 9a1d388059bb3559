"""Writes to disk and their times, and the spread of a message that reached one disk only."""

from __future__ import annotations

import time
import urllib.request
from contextlib import ExitStack

import pytest

from quorumq.core import messages as m
from quorumq.lab.local import LocalCluster
from quorumq.lab.ports import free_ports
from quorumq.node.metrics import FRESH_S
from tests.e2e.raw import Raw, publish, receipts, size_of
from tests.patience import PATIENCE_S, until

HOLD_S = 900.0
"""No hold of these tests ends by itself: that would be journalled."""


def measured() -> tuple[LocalCluster, dict[str, str]]:
    """Return a cluster that is not started, and the address of each node's metrics."""
    cluster = LocalCluster(3, hold_time_max=HOLD_S)
    metrics = dict(zip(cluster.nodes, (f"127.0.0.1:{port}" for port in free_ports(3)), strict=True))
    for name, address in metrics.items():
        path = cluster.config_path(name)
        path.write_text(f'http_listen = "{address}"\n{path.read_text()}')
    return cluster, metrics


def commits(metrics: dict[str, str]) -> dict[str, int]:
    """Return the number of commits, of one fsync each, that every node has made."""
    time.sleep(FRESH_S)  # until then a node gives an earlier page again
    counts = {}
    for name, address in metrics.items():
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=PATIENCE_S) as page:
            lines = [line.split() for line in page.read().decode().splitlines()]
        (counts[name],) = (int(float(line[1])) for line in lines if line[0] == "quorumq_fsync_seconds_count")
    return counts


def test_concurrent_publishes_share_fsyncs_and_a_fetch_takes_none() -> None:
    """docs/protocol.md, section 7: PUBLISH costs one group-committed fsync, FETCH no disk."""
    cluster, metrics = measured()
    with cluster as own, Raw(own.addresses[0]) as raw:
        topic = raw.topic("disk")
        publishes = [publish(topic, raw.session(), 0, [b"x" * 100]) for _ in range(64)]
        before = commits(metrics)
        with ExitStack() as stack:
            clients = [stack.enter_context(Raw(address)) for address in own.addresses]
            numbers = [client.send_together(publishes[at::3]) for at, client in enumerate(clients)]
            for client, sent in zip(clients, numbers, strict=True):
                for number in sent:
                    assert isinstance(client.receive(number), m.PublishReply)
        spent = {name: count - before[name] for name, count in commits(metrics).items()}
        assert all(0 < count < 64 for count in spent.values()), spent

        raw.take("disk", "g", 1, hold_time=HOLD_S)  # makes the group, which is durable
        for attempt in range(3):  # a reserve of the clock may be journalled in between
            before = commits(metrics)
            for _ in range(15):
                raw.take("disk", "g", 1, hold_time=HOLD_S)
            spent = {name: count - before[name] for name, count in commits(metrics).items()}
            if not any(spent.values()):
                return
            assert all(count <= 3 for count in spent.values()), f"try {attempt}: 15 FETCHes cost {spent}"
        pytest.fail(f"every 15 FETCHes cost fsyncs: {spent}")


def test_a_message_on_one_replica_reaches_all(own: LocalCluster) -> None:
    """docs/protocol.md, PUBLISH: a batch at fewer than a majority is finished by anti-entropy, never aborted."""
    with Raw(own.addresses[0]) as raw:
        topic = raw.topic("alone")
        producer_id = raw.session()
        assert isinstance(raw.publish(topic, producer_id, 0, [b"before"]), m.PublishReply)
        own.pause("n2")
        own.pause("n3")
        alone = publish(topic, producer_id, 1, [b"alone"])
        number = raw.send(alone)
        until(lambda: messages_at(own, "n1", "alone") == 2, "n1 has stored it; the others will never read it")
        own.kill("n2")
        own.kill("n3")
        reply = raw.receive(number)
        assert isinstance(reply, m.Failed), reply
        assert reply.code == "outcome-unknown", reply
        assert (reply.needed, reply.answered) == (2, 1)
        # Without peers a publish is refused before anything is stored.
        refused = raw.publish(topic, producer_id, 2, [b"never"])
        assert isinstance(refused, m.Failed)
        assert refused.code == "not-stored"
        own.start("n2")
        own.start("n3")
        until(
            lambda: stored(own, "alone") == [2, 2, 2],
            lambda: f"messages on n1, n2, n3: {stored(own, 'alone')}",
        )
        got: list[bytes] = []
        while len(got) < 2:
            reply = raw.fetch("alone", "g", max_wait=0.2)
            if isinstance(reply, m.FetchReply):  # until a majority is out of quarantine there is an error
                got += [message.payload for part in reply.slices for message in part.messages()]
                raw.ack(*receipts(reply))
        assert sorted(got) == [b"alone", b"before"]
        # The retry that the client would make is recognised, through a node that only heard of it later.
        with Raw(own.address("n3")) as other:
            assert isinstance(other.ask(alone), m.PublishReply)
            assert stored(own, "alone") == [2, 2, 2]
            assert size_of(other.fetch("alone", "g")) == 0


def stored(cluster: LocalCluster, topic: str) -> list[int]:
    """Return the number of a topic's messages on each node's disk."""
    return [messages_at(cluster, name, topic) for name in cluster.nodes]


def messages_at(cluster: LocalCluster, name: str, topic: str) -> int:
    """Return the number of messages of a topic on one node's disk."""
    return sum(part["messages"] for part in cluster.status(name)["partitions"] if part["topic"] == topic)
