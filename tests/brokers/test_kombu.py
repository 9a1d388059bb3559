"""The transport of kombu with kombu's producers and consumers and Celery's worker, on a cluster in this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("celery")

from celery import Celery, chain, chord, group
from celery.contrib.testing.worker import start_worker
from kombu import Connection, Consumer, Exchange, Producer, Queue
from kombu.asynchronous import Hub
from kombu.exceptions import ChannelError

from quorumq.brokers import kombu as transport
from quorumq.brokers import kombu_calls, kombu_source
from quorumq.brokers.kombu_calls import certified_by, delay_of, nodes_of, topic_name
from quorumq.client import UsageError
from quorumq.testing import blocking
from tests.patience import PATIENCE_S, until

pytestmark = pytest.mark.soak  # the extra is installed there

QUIET_S = 0.5
"""Seconds in which a message that must not be delivered would have been."""


@pytest.fixture
def nodes() -> Iterator[blocking.Cluster]:
    with (cluster := blocking.cluster(real_time=True, hold_time_max=5.0)):
        yield cluster


@pytest.fixture
def connection(nodes: blocking.Cluster) -> Iterator[Connection]:
    with Connection("quorumq://", transport_options={"client": nodes.client, "hold_time": 2}) as connected:
        yield connected


@contextmanager
def consuming(
    connection: Connection, *queues: Queue, prefetch: int = 0, **options: Any
) -> Iterator[list[Any]]:
    """Consume on a channel of its own; yield the list that messages are added to."""
    channel = connection.channel()
    channel.basic_qos(prefetch_count=prefetch)
    messages: list[Any] = []
    with Consumer(channel, queues, callbacks=[lambda body, message: messages.append(message)], **options):
        yield messages
    channel.close()


def drain(connection: Connection, messages: list[Any], count: int) -> None:
    """Hand messages over until the list has ``count`` of them."""
    end = time.monotonic() + PATIENCE_S
    while len(messages) < count:
        connection.drain_events(timeout=max(0.0, end - time.monotonic()))


def nothing_comes(connection: Connection) -> bool:
    try:
        connection.drain_events(timeout=QUIET_S)
    except TimeoutError:
        return True
    return False


def publish(connection: Connection, queue: Queue, *bodies: Any, **options: Any) -> None:
    with connection.channel() as channel:
        producer = Producer(channel)
        for body in bodies:
            producer.publish(
                body, exchange=queue.exchange, routing_key=queue.routing_key, declare=[queue], **options
            )


JOBS = Queue("jobs", Exchange("jobs"), routing_key="jobs")


def test_a_message_is_acked_rejected_or_a_dead_letter(
    connection: Connection, nodes: blocking.Cluster
) -> None:
    publish(connection, JOBS, 1, 2, 3)
    with consuming(connection, JOBS) as messages:
        drain(connection, messages, 3)
        first, second, third = sorted(messages, key=lambda message: message.payload)
        first.ack()
        second.requeue()
        third.reject()
        drain(connection, messages, 4)
        assert (messages[3].payload, messages[3].delivery_info["redelivered"]) == (2, True)
        messages[3].ack()
    backlog = nodes.client.backlog("jobs", "celery")
    assert (backlog.ready, backlog.held, backlog.dead) == (0, 0, 1)


def test_bytes_and_texts_are_kept(connection: Connection) -> None:
    queue = connection.SimpleQueue("any: name@host")
    for body in (b"\x00\xff", "text", {"a": [1]}):
        queue.put(body)
        message = queue.get(timeout=PATIENCE_S)
        assert message.payload == body
        message.ack()
    queue.close()


def test_a_channel_holds_at_most_its_prefetch_count(connection: Connection, nodes: blocking.Cluster) -> None:
    publish(connection, JOBS, *range(5))
    with consuming(connection, JOBS, prefetch=2) as messages:
        drain(connection, messages, 2)
        assert nothing_comes(connection)
        messages[0].ack()
        drain(connection, messages, 3)
        assert nothing_comes(connection)
        messages[0].channel.basic_qos(prefetch_count=3)
        drain(connection, messages, 4)
    backlog = nodes.client.backlog("jobs", "celery")
    assert (backlog.ready, backlog.held) == (4, 0), "the rest is given back at once"
    assert {message.attempt for message in nodes.client.fetch("jobs", "celery")} == {1}


def test_a_message_that_is_being_handed_over_counts_as_in_hand(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the next one is fetched meanwhile, and waits here while another worker has nothing to do."""
    seen: list[bool] = []
    payload_of = transport.Channel.payload_of

    def looked(channel: transport.Channel, *args: Any) -> Any:
        seen.append(channel.qos.has_capacity())
        return payload_of(channel, *args)

    monkeypatch.setattr(transport.Channel, "payload_of", looked)
    publish(connection, JOBS, 1)
    with consuming(connection, JOBS, prefetch=1) as messages:
        drain(connection, messages, 1)
    assert seen == [False]


def test_no_queue_keeps_a_message_for_which_the_channel_has_no_capacity(
    connection: Connection, nodes: blocking.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another worker may have it at once, though this one's task takes hours."""
    monkeypatch.setattr(kombu_source, "KEEP_S", 0.1)
    others = [Queue(name, Exchange(name), routing_key=name) for name in ("a", "b", "c")]
    for queue in others:
        publish(connection, queue, 1, 2)

    def held() -> list[int]:
        return sorted(nodes.client.backlog(queue.name, "celery").held for queue in others)

    with consuming(connection, *others, prefetch=1) as messages:
        drain(connection, messages, 1)
        until(lambda: held() == [0, 0, 1], held)
        messages[0].ack()
        drain(connection, messages, 2)
        until(lambda: held() == [0, 0, 1], held)
    rest = [message for queue in others for message in nodes.client.fetch(queue.name, "celery", max_wait=1)]
    assert [(message.attempt, message.interruptions) for message in rest if message.interruptions] == [(1, 1)]
    assert {message.attempt for message in rest} == {1}


def test_two_channels_of_a_connection_share_a_queue(connection: Connection, nodes: blocking.Cluster) -> None:
    publish(connection, JOBS, *range(4))
    with consuming(connection, JOBS, prefetch=2) as one, consuming(connection, JOBS, prefetch=2) as two:
        while len(one) + len(two) < 4:
            connection.drain_events(timeout=PATIENCE_S)
        for message in (*one, *two):
            message.ack()
        backlog = nodes.client.backlog("jobs", "celery")
        assert (len(one), len(two), backlog.ready, backlog.held) == (2, 2, 0, 0)


def test_channels_of_a_connection_take_turns(connection: Connection) -> None:
    other = Queue("other", Exchange("other"), routing_key="other")
    for queue in (JOBS, other):
        publish(connection, queue, 1, 2)
    with consuming(connection, JOBS) as one, consuming(connection, other) as two:

        def has_arrived() -> bool:
            channels = [channel for channel in connection.transport.channels if channel._sources]
            sources = [source for channel in channels for source in channel._sources.values()]
            return len(sources) == 2 and all(source.message is not None for source in sources)

        for _ in range(2):
            until(has_arrived, "a message of each queue")
            connection.drain_events(timeout=PATIENCE_S)
        assert (len(one), len(two)) == (1, 1)


def test_a_message_longer_than_its_hold_comes_once(connection: Connection) -> None:
    publish(connection, JOBS, 1)
    options = connection.transport_options
    with (
        Connection("quorumq://", transport_options=options) as other,
        consuming(other, JOBS) as elsewhere,
        consuming(connection, JOBS) as messages,
    ):
        until(lambda: not (nothing_comes(connection) and nothing_comes(other)), "it is delivered")
        time.sleep(5.0)  # longer than its hold
        assert nothing_comes(connection)
        assert nothing_comes(other)
        (message,) = [*messages, *elsewhere]
        message.ack()


def test_an_event_loop_hands_over_what_has_come(connection: Connection) -> None:
    loop = Hub()
    connection.register_with_event_loop(loop)
    turns = loop.create_loop()
    with consuming(connection, JOBS, prefetch=1) as messages:
        for number in range(3):
            publish(connection, JOBS, number)
            while len(messages) == number:
                next(turns)
            messages[number].ack()
    assert [message.payload for message in messages] == [0, 1, 2]
    connection.close()
    assert not loop.readers


def test_several_queues_are_waited_for_at_once(connection: Connection) -> None:
    others = [Queue(name, Exchange(name), routing_key=name) for name in ("a", "b", "c")]
    with consuming(connection, *others) as messages:
        for queue in others:
            publish(connection, queue, queue.name)
        drain(connection, messages, 3)
        assert sorted(message.payload for message in messages) == ["a", "b", "c"]
        for message in messages:
            message.ack()


def test_each_queue_of_a_fanout_gets_each_message_from_its_beginning(
    connection: Connection, nodes: blocking.Cluster
) -> None:
    exchange = Exchange("news", type="fanout")
    first, second = (Queue(name, exchange, auto_delete=True) for name in ("first", "second"))
    with Connection("quorumq://", transport_options=connection.transport_options) as early:
        publish(early, first, "too early")
    with consuming(connection, first) as one, consuming(connection, second) as two:
        publish(connection, first, "hello")
        drain(connection, one, 1)
        drain(connection, two, 1)
        assert [message.payload for message in (*one, *two)] == ["hello", "hello"]
        for message in (*one, *two):
            message.ack()
        assert len(groups_of(nodes, "exchange.news")) == 3
    assert groups_of(nodes, "exchange.news") == ["unread"], "queues end with their consumers"


def groups_of(nodes: blocking.Cluster, topic: str) -> list[str]:
    return sorted(
        group.name for group in nodes.client.metadata(topic).groups if not getattr(group, "deleted", False)
    )


def test_groups_of_ended_processes_are_deleted(
    connection: Connection, nodes: blocking.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that was killed leaves its group, and each message is kept for it until it expires."""
    monkeypatch.setattr(transport, "UNREAD_S", 0.2)
    exchange = Exchange("news", type="fanout")
    publish(connection, Queue("any", exchange, auto_delete=True), "creates the topic")
    nodes.client.create_group("exchange.news", "q7", start="latest")
    nodes.client.create_group("exchange.news", "q8", start="latest")
    publish(connection, Queue("any", exchange, auto_delete=True), "unread")
    time.sleep(0.4)  # longer than `UNREAD_S`
    with consuming(connection, Queue("mine", exchange, auto_delete=True)):
        assert len(groups_of(nodes, "exchange.news")) == 2


def test_the_group_of_a_process_that_is_at_work_stays(
    connection: Connection, nodes: blocking.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task of more than a minute keeps its worker from fetching: a node then names no consumer of the group."""
    monkeypatch.setattr(transport, "UNREAD_S", 0.2)
    busy, mine = (Queue(name, Exchange("news", type="fanout"), auto_delete=True) for name in ("busy", "mine"))
    with consuming(connection, busy, prefetch=1) as messages:
        publish(connection, busy, 1, 2)
        drain(connection, messages, 1)
        time.sleep(0.4)
        with consuming(connection, mine):
            assert len(groups_of(nodes, "exchange.news")) == 3


def test_a_reply_by_the_anonymous_exchange_goes_to_its_queue_alone(
    connection: Connection, nodes: blocking.Cluster
) -> None:
    mine, other = (Queue(name, auto_delete=True) for name in ("mine", "other"))
    with consuming(connection, mine, other, no_ack=True) as messages:
        options = {"client": nodes.client}
        with Connection("quorumq://", transport_options=options) as elsewhere, elsewhere.channel() as channel:
            Producer(channel).publish("x", routing_key="mine", delivery_mode=1)
        drain(connection, messages, 1)
        assert nothing_comes(connection)


def test_events_and_replies_go_to_queues_that_their_publisher_does_not_know(
    connection: Connection, nodes: blocking.Cluster
) -> None:
    events = Exchange("celeryev", type="topic")
    replies = Exchange("reply", type="direct", durable=False)
    workers = Queue("events", events, routing_key="worker.#", auto_delete=True)
    mine, other = (Queue(name, replies, routing_key=name, auto_delete=True) for name in ("mine", "other"))
    with consuming(connection, workers, mine, no_ack=True) as messages:
        options = {"client": nodes.client}
        with Connection("quorumq://", transport_options=options) as elsewhere, elsewhere.channel() as channel:
            producer = Producer(channel)
            for key in ("task.sent", "worker.online"):
                producer.publish(key, exchange=events, routing_key=key, declare=[events], delivery_mode=1)
            for queue in (other, mine):
                producer.publish(
                    queue.name, exchange=replies, routing_key=queue.routing_key, declare=[replies]
                )
        drain(connection, messages, 2)
        assert nothing_comes(connection)
    assert sorted(message.payload for message in messages) == ["mine", "worker.online"]


def test_a_reply_of_the_anonymous_exchange_reaches_its_queue(connection: Connection) -> None:
    queue = Queue("a-client", Exchange(""), routing_key="a-client", auto_delete=True, durable=False)
    with consuming(connection, queue, no_ack=True) as messages:
        with connection.channel() as channel:
            Producer(channel).publish("result", exchange="", routing_key="a-client", delivery_mode=1)
        drain(connection, messages, 1)
    assert messages[0].payload == "result"


def test_other_bytes_are_dead_letters_and_priorities_are_refused(
    connection: Connection, nodes: blocking.Cluster
) -> None:
    publish(connection, JOBS, 1)
    nodes.client.publish("jobs", b"not of kombu")
    with consuming(connection, JOBS) as messages:
        drain(connection, messages, 1)
        assert nothing_comes(connection)
        messages[0].ack()
    assert nodes.client.backlog("jobs", "celery").dead == 1
    with pytest.raises(UsageError, match=r"'jobs'.*no priorities"):
        publish(connection, JOBS, 1, priority=3)


def test_a_message_to_an_exchange_that_is_not_declared_is_refused(connection: Connection) -> None:
    with connection.channel() as channel, pytest.raises(ChannelError, match="no exchange 'none'"):
        Producer(channel).publish(1, exchange="none", routing_key="jobs")


def test_a_queue_that_ends_with_its_consumers_fits_no_durable_exchange(connection: Connection) -> None:
    queue = Queue("short", Exchange("jobs"), routing_key="short", auto_delete=True, durable=False)
    with pytest.raises(UsageError, match="queue 'short' ends with its consumers"):
        publish(connection, queue, 1)


def test_a_message_that_no_queue_would_get_is_refused(connection: Connection) -> None:
    publish(connection, JOBS, 1)
    with connection.channel() as channel, pytest.raises(UsageError, match=r"'jobs'.*routing key 'other'"):
        Producer(channel).publish(1, exchange="jobs", routing_key="other")


@pytest.mark.parametrize(
    ("queue", "text"),
    [
        (Queue("jobs", Exchange("jobs", type="headers")), "'headers'.*direct, fanout, topic"),
        (Queue("jobs", Exchange("jobs"), message_ttl=1.0), "x-message-ttl.*expiration"),
        (Queue("jobs", Exchange("jobs"), max_priority=3), "x-max-priority"),
        (Queue("jobs", Exchange("jobs"), max_length=3), "x-max-length"),
        (Queue("jobs", queue_arguments={"x-dead-letter-exchange": "dead"}), "x-dead-letter-exchange.*dead letters"),
    ],
)  # fmt: skip
def test_queues_and_exchanges_with_other_rules_are_refused_by_name(
    connection: Connection, queue: Queue, text: str
) -> None:
    with connection.channel() as channel, pytest.raises(UsageError, match=text):
        queue(channel).declare()


def test_arguments_of_queues_without_such_effect_are_accepted(connection: Connection) -> None:
    with connection.channel() as channel:
        Queue("jobs", Exchange("jobs"), queue_arguments={"x-queue-type": "quorum"})(channel).declare()
        Queue("short", Exchange(""), auto_delete=True, message_ttl=1.0)(channel).declare()


def test_a_passive_declaration_creates_nothing(connection: Connection, nodes: blocking.Cluster) -> None:
    with connection.channel() as channel:
        with pytest.raises(ChannelError, match="no queue 'jobs'"):
            channel.queue_declare("jobs", passive=True)
        assert not [topic for topic in nodes.client.metadata().topics if topic.name == "jobs"]
        publish(connection, JOBS, 1, 2)
        assert channel.queue_declare("jobs", passive=True).message_count == 2


def test_a_topic_that_was_deleted_is_created_anew_by_the_next_publish() -> None:
    with (nodes := blocking.cluster(real_time=True, auto_create_topics=False)):
        options = {"client": nodes.client}
        with Connection("quorumq://", transport_options=options) as connection:
            publish(connection, JOBS, 1)
            nodes.client.delete_topic("jobs")
            publish(connection, JOBS, 2)
            with consuming(connection, JOBS, no_ack=True) as messages:
                drain(connection, messages, 1)
    assert [message.payload for message in messages] == [2]


class Slow:
    """A consumer whose message is delivered while it is stopped."""

    inner: Any

    def __init__(self) -> None:
        self.asked, self.stopped = threading.Event(), threading.Event()

    def open(self) -> None:
        """Begin nothing."""

    def next(self, timeout: float) -> Any:
        """Return a message once the consumer is stopped."""
        del timeout
        self.asked.set()
        assert self.stopped.wait(PATIENCE_S)
        return self

    def drain(self) -> None:
        """Stop."""
        self.stopped.set()


def test_a_message_for_a_stopped_consumer_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    given_back: list[Any] = []
    monkeypatch.setattr(kombu_source, "release", lambda client, consumer, message: given_back.append(message))
    consumer = Slow()
    consumer.inner = SimpleNamespace()
    channel: Any = SimpleNamespace(
        connection=SimpleNamespace(changed=threading.Condition(), wake=lambda: None),
        qos=SimpleNamespace(prefetch_count=1, has_capacity=lambda: True),
        source_of=lambda queue: ("jobs", "celery"), option=lambda name: None,
        client=SimpleNamespace(consumer=lambda *args, **options: consumer),
    )  # fmt: skip
    source = kombu_source.Source(channel, "jobs", False)
    source.start()
    assert consumer.asked.wait(PATIENCE_S)
    source.stop()
    until(lambda: given_back, "the message is still held")
    assert (given_back, source.message) == ([consumer], None)


def test_an_expired_message_is_a_dead_letter(connection: Connection, nodes: blocking.Cluster) -> None:
    publish(connection, JOBS, 1, expiration=0.2)
    time.sleep(0.4)  # it has expired
    with consuming(connection, JOBS):
        assert nothing_comes(connection)
    assert nodes.client.backlog("jobs", "celery").dead == 1


def test_a_purge_and_a_get_find_what_is_there(connection: Connection) -> None:
    publish(connection, JOBS, 1, 2, 3)
    bound = JOBS(connection.channel())
    assert bound.queue_declare(passive=False).message_count == 3
    assert bound.get(no_ack=True).payload in (1, 2, 3)
    until(lambda: bound.queue_declare().message_count == 2, "the message is acked")
    bound.channel.close()
    assert JOBS(connection.channel()).purge() == 2


def test_a_consumer_waits_for_a_deleted_topic(connection: Connection, nodes: blocking.Cluster) -> None:
    with consuming(connection, JOBS, no_ack=True) as messages:
        publish(connection, JOBS, 1)
        drain(connection, messages, 1)
        nodes.client.delete_topic("jobs")
        assert nothing_comes(connection)
        publish(connection, JOBS, 2)
        drain(connection, messages, 2)


def test_a_deleted_group_ends_the_connection(connection: Connection, nodes: blocking.Cluster) -> None:
    with consuming(connection, JOBS) as messages:
        nodes.client.delete_group("jobs", "celery")
        with pytest.raises(connection.connection_errors, match="celery"):
            drain(connection, messages, 1)


# ----------------------------------------------------------------------------------- Celery


@pytest.fixture
def app(nodes: blocking.Cluster) -> Celery:
    application = Celery("tasks", broker="quorumq://", backend="cache+memory://", set_as_current=False)
    application.conf.broker_transport_options = {"client": nodes.client}

    @application.task(name="add", shared=False)
    def add(a: int, b: int) -> int:
        return a + b

    @application.task(name="total", shared=False)
    def total(numbers: list[int]) -> int:
        return sum(numbers)

    @application.task(name="flaky", shared=False, bind=True, max_retries=3)
    def flaky(self: Any) -> int:
        if self.request.retries < 2:
            raise self.retry(countdown=0.1)
        return int(self.request.retries)

    return application


@contextmanager
def working(app: Celery) -> Iterator[Any]:
    with start_worker(app, pool="threads", concurrency=4, perform_ping_check=False) as worker:
        yield worker


def test_canvas_retries_and_control_work(app: Celery) -> None:
    add, total, flaky = (app.tasks[name] for name in ("add", "total", "flaky"))
    with working(app):
        assert chain(add.s(1, 2), add.s(3)).delay().get(timeout=PATIENCE_S) == 6
        assert group(add.s(n, n) for n in range(4)).delay().get(timeout=PATIENCE_S) == [0, 2, 4, 6]
        assert chord([add.s(n, n) for n in range(4)], total.s()).delay().get(timeout=PATIENCE_S) == 12
        assert flaky.delay().get(timeout=PATIENCE_S) == 2
        (pong,) = app.control.inspect(timeout=5, limit=1).ping().values()
        assert pong == {"ok": "pong"}


def test_an_eta_waits_in_the_cluster_and_a_revoked_task_never_runs(
    app: Celery, nodes: blocking.Cluster
) -> None:
    add = app.tasks["add"]
    with working(app) as worker:
        began = time.monotonic()
        late = add.apply_async((1, 2), countdown=2)
        revoked = add.apply_async((3, 4), countdown=2)
        assert nodes.client.backlog("celery", "celery").delayed == 2
        revoked.revoke()
        assert late.get(timeout=PATIENCE_S) == 3
        assert time.monotonic() - began >= 2.0
        until(lambda: revoked.state == "REVOKED", lambda: revoked.state)
        assert not worker.stats()["total"].get("never")


def test_a_worker_goes_on_when_its_group_was_deleted(app: Celery, nodes: blocking.Cluster) -> None:
    add = app.tasks["add"]
    with working(app):
        assert add.delay(1, 2).get(timeout=PATIENCE_S) == 3
        nodes.client.delete_group("celery", "celery")
        assert add.delay(3, 4).get(timeout=PATIENCE_S) == 7


def test_a_task_that_has_expired_is_revoked_by_its_worker(app: Celery, nodes: blocking.Cluster) -> None:
    """Celery gives its message an expiration too. A dead letter would leave those waiting who ask for the result."""
    result = app.tasks["add"].apply_async((1, 2), expires=0.5)
    time.sleep(1.0)  # it has expired
    with working(app):
        until(lambda: result.state == "REVOKED", lambda: result.state)
    backlog = nodes.client.backlog("celery", "celery")
    assert (backlog.ready, backlog.held, backlog.dead) == (0, 0, 0)


# --------------------------------------------------------------------------- names and times


def test_names_of_topics_are_those_of_queues_as_far_as_they_can_be() -> None:
    assert topic_name("low.priority-1") == "low.priority-1"
    names = {topic_name(name) for name in ("a:b", "a_b", "a@b", "x" * 300, "x" * 301)}
    assert len(names) == 5
    assert max(map(len, names)) < 200


def test_only_an_eta_to_come_delays() -> None:
    now = datetime.now(UTC)
    soon = now + timedelta(minutes=1)
    for eta in (soon.isoformat(), soon.replace(tzinfo=None).isoformat()):
        delay = delay_of({"headers": {"eta": eta}})
        assert delay is not None
        assert 0 < delay <= 60
    for past in ((now - timedelta(minutes=1)).isoformat(), None, "tomorrow", 7):
        assert delay_of({"headers": {"eta": past}}) is None
    assert delay_of({}) is None


def test_nodes_are_those_of_all_urls() -> None:
    urls = "quorumq://:secret@a.example:7401/x;quorumq://:secret@b.example:7402/x"
    assert nodes_of(Connection(urls)) == ("a.example:7401", "b.example:7402")
    assert nodes_of(Connection("quorumq://")) == ()
    assert nodes_of(Connection("quorumq://[::1]:7401")) == ("[::1]:7401",)
    for url in ("quorumq://a.example", "quorumq://a.example:7401;quorumq://b.example"):
        with pytest.raises(UsageError, match=r"'[ab]\.example' without a port"):
            nodes_of(Connection(url))


def test_an_option_without_effect_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(kombu_calls.log, "warning", lambda text, *args: lines.append(text % args))
    for _ in range(2):
        options = {"nodes": ["a.example:7401"], "hold_time": 5, "visibility_timeout": 60}
        assert Connection("quorumq://", transport_options=options).transport
    assert lines == ["transport options without effect on quorumq://: visibility_timeout"]


def test_tls_is_never_left_out() -> None:
    def ca_of(ssl: Any, tls_ca: str | None = None) -> str | None:
        return certified_by(Connection("quorumq://", ssl=ssl), tls_ca)

    assert ca_of(False) is None
    assert ca_of({"ca_certs": "ca.pem"}) == ca_of(True, "ca.pem") == "ca.pem"
    with pytest.raises(UsageError, match=r"broker_use_ssl is True.*tls_ca"):
        ca_of(True)
