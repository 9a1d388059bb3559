"""A channel of the transport of kombu when its worker stops."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

pytest.importorskip("kombu")

from kombu import Connection, Consumer, Producer, Queue

from quorumq.brokers.kombu import Channel, Transport
from quorumq.client import blocking
from quorumq.core.messages import RejectRequest
from tests.client.fake import FakeCluster
from tests.client.steps import in_a_thread
from tests.patience import PATIENCE_S, until

pytestmark = pytest.mark.soak  # the extra is installed there


@contextmanager
def with_messages() -> Iterator[tuple[FakeCluster, blocking.Client, Connection, Channel]]:
    """A channel of a connection, with three messages in its queue."""
    clusters: list[FakeCluster] = []
    with in_a_thread(clusters) as client:
        connection = Connection(transport=Transport, transport_options={"client": client})
        channel = connection.channel()
        producer = Producer(channel)
        for number in range(3):
            producer.publish(number, routing_key="jobs", declare=[Queue("jobs")])
        yield clusters[0], client, connection, channel


def test_a_recovery_gives_back_all_in_one_call_and_they_come_again() -> None:
    """Each was a call of its own, and 1,000 messages in hand took some seconds."""
    with with_messages() as (cluster, _, connection, channel):
        channel.basic_qos(prefetch_count=3)
        messages: list[Any] = []
        Consumer(channel, [Queue("jobs")], on_message=messages.append).consume()
        for _ in range(3):
            connection.drain_events(timeout=PATIENCE_S)
        messages[0].ack()
        Consumer(channel).recover(requeue=True)
        while len(messages) < 5:
            connection.drain_events(timeout=PATIENCE_S)
        assert {message.properties["delivery_info"]["redelivered"] for message in messages} == {False}
        assert [type(request) for _, request in cluster.asked].count(RejectRequest) == 1
        channel.close()


@pytest.mark.parametrize("consumes", [False, True])
def test_a_channel_that_is_closed_gives_back_all_in_one_call_and_fetches_none_again(consumes: bool) -> None:
    """A worker that stops may be killed after some seconds, and a call may take the client's timeout."""
    with with_messages() as (cluster, client, connection, channel):
        if consumes:
            Consumer(channel, [Queue("jobs")], on_message=lambda message: None).consume()
            for _ in range(3):
                connection.drain_events(timeout=PATIENCE_S)
            with pytest.raises(TimeoutError):  # the node goes on to wait for one
                connection.drain_events(timeout=1.0)
        else:
            for _ in range(3):
                until(lambda: channel.basic_get("jobs"), "a message comes")
            assert channel.basic_get("jobs") is None, "the node goes on to wait for one"
        channel.close()
        asked = [type(request) for _, request in cluster.asked]
        backlog = client.backlog("jobs", "celery")
    assert (backlog.ready, backlog.held) == (3, 0)
    assert asked.count(RejectRequest) == 1
    assert asked[-1] is RejectRequest, "nothing is fetched after it"


def test_a_connection_takes_the_shared_client_once_and_releases_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Taken at each use, it would never be closed."""
    events: list[str] = []

    class Client:
        def close(self) -> None:
            events.append("closed")

    def opened(nodes: object, **options: object) -> Client:
        events.append("opened")
        return Client()

    monkeypatch.setattr(blocking.Client, "open", opened)
    connection = Connection("quorumq://a:7401")
    transport = connection.transport
    assert transport.cluster is transport.cluster
    transport.close_connection(connection)
    assert events == ["opened", "closed"]
