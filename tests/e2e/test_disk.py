"""What reaches the disk, when, and how a message that reached one disk only reaches the others."""

from __future__ import annotations

import time

import pytest

from quorumq.core import messages as m
from quorumq.lab.local import LocalCluster
from tests.e2e.raw import Raw, publish, receipts, size_of
from tests.patience import until


def commits(cluster: LocalCluster) -> dict[str, int]:
    """How many commits, of one fsync each, every node has made in the last minute: all, on a young cluster."""
    return {name: cluster.status(name)["fsync_ms"]["count"] for name in cluster.nodes}


def test_concurrent_publishes_share_fsyncs_and_a_fetch_takes_none(own: LocalCluster) -> None:
    """docs/protocol.md, section 7: PUBLISH costs one group-committed fsync, FETCH no disk."""
    with Raw(own.addresses[0]) as raw:
        topic = raw.topic("disk")
        clients = [Raw(own.addresses[index % 3]) for index in range(64)]
        producer_ids = [client.session() for client in clients]
        before = commits(own)
        numbers = [
            client.send(publish(topic, producer_id, 0, [b"x" * 100]))
            for client, producer_id in zip(clients, producer_ids, strict=True)
        ]
        for client, number in zip(clients, numbers, strict=True):
            assert isinstance(client.receive(number), m.PublishReply)
            client.sock.close()
        spent = {name: count - before[name] for name, count in commits(own).items()}
        assert all(0 < count < 64 for count in spent.values()), spent

        assert size_of(raw.fetch("disk", "g", most=1)) == 1  # makes the group, which is durable
        for attempt in range(3):  # a reserve of the clock, or an ended hold, may be journalled in between
            before = commits(own)
            for _ in range(15):
                assert size_of(raw.fetch("disk", "g", most=1, hold_time=3.0)) == 1
            spent = {name: count - before[name] for name, count in commits(own).items()}
            if not any(spent.values()):
                return
            assert all(count <= 3 for count in spent.values()), f"try {attempt}: 15 FETCHes cost {spent}"
        pytest.fail(f"every 15 FETCHes cost fsyncs: {spent}")


def test_a_message_on_one_replica_reaches_all(own: LocalCluster) -> None:
    """docs/protocol.md, PUBLISH: what reached fewer than a majority is finished by anti-entropy, never aborted."""
    with Raw(own.addresses[0]) as raw:
        topic = raw.topic("alone")
        producer_id = raw.session()
        assert isinstance(raw.publish(topic, producer_id, 0, [b"before"]), m.PublishReply)
        own.pause("n2")
        own.pause("n3")
        alone = publish(topic, producer_id, 1, [b"alone"])
        number = raw.send(alone)
        time.sleep(0.3)  # stored by n1, and sent to two that will never read it
        own.kill("n2")
        own.kill("n3")
        reply = raw.receive(number)
        assert isinstance(reply, m.Failed), reply
        assert reply.code == "outcome-unknown", reply
        assert (reply.needed, reply.answered) == (2, 1)
        # With nobody to send to, a publish is refused before anything is stored.
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
    """How many messages of a topic are on each node's disk."""
    return [
        sum(part["messages"] for part in cluster.status(name)["partitions"] if part["topic"] == topic)
        for name in cluster.nodes
    ]
