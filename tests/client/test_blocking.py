"""The client without async behaves as the async one, from any thread, and never hangs."""

from __future__ import annotations

import contextlib
import inspect
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import trio

import quorumq.client
from quorumq.client import HoldLost, NotFound, Outcome, OutcomeUnknown, TooFewReplicas, UsageError, blocking
from quorumq.client.blocking import Client, Consumer, Message, Pending, Producer
from quorumq.lab.local import LocalCluster
from tests.client.steps import in_a_thread
from tests.patience import PATIENCE_S, until


@pytest.fixture
def client() -> Iterator[Client]:
    with in_a_thread() as client:
        client.create_topic("jobs")
        yield client


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "quorumq"]


def test_published_messages_are_delivered_and_acked(client: Client) -> None:
    with client.producer("jobs") as producer:
        name = producer.publish(b"one", key=b"k", headers={"n": 1})
        more = producer.publish_many([b"two", b"three"], headers={"n": 2})
        assert len({name, *more}) == 3
    with client.consumer("jobs", "g") as consumer:
        first = next(consumer)
        assert (first.id, first.payload, first.key, first.headers) == (name, b"one", b"k", {"n": 1})
        assert (first.topic, first.group, first.partition, first.attempt) == ("jobs", "g", 0, 1)
        assert first.is_live
        assert first.death is None
        assert first.ack() is first.outcome is Outcome.ACKED
        (rest,) = consumer.batches(timeout=0.2)
        assert [message.payload for message in rest] == [b"two", b"three"]
        assert consumer.ack(rest) == [Outcome.ACKED] * 2
        assert consumer.next(timeout=0.05) is None
    assert {peek.peeked.state for peek in client.peek("jobs", "g", "all")} == {"acked"}


def test_rejected_dead_lettered_extended_and_redriven(client: Client) -> None:
    client.producer("jobs").publish_many([b"%d" % number for number in range(4)])
    a, b, c, d = client.fetch("jobs", "g")
    a.extend(20.0)
    a.reject(0)
    b.dead_letter(ValueError("no"), reason="b")
    client.dead_letter([c], reason="c")
    client.reject([d], delay=60.0)
    (again,) = client.fetch("jobs", "g")
    assert again.attempt == 2
    ticket = client.ticket(again.receipt)
    client.extend([again, ticket])
    assert client.ack([ticket]) == [Outcome.ACKED]
    with pytest.raises(HoldLost):
        a.extend()
    assert isinstance(a.failure, HoldLost)
    deaths = list(client.peek("jobs", "g", "dead"))
    assert client.redrive("jobs", "g", iter(deaths)).messages == 2
    assert set(client.lookup("jobs", "g", iter([a.id, b.id]))) == {a.id, b.id}
    (death,) = client.fetch("jobs", "g", max_messages=1)
    assert death.death is None
    assert death.fencing_token > b.fencing_token


def test_errors_are_those_of_the_async_client(client: Client) -> None:
    with pytest.raises(NotFound, match="nothing"):
        client.fetch("nothing", "g")
    with pytest.raises(UsageError):
        client.create_topic("with spaces")
    with pytest.raises(NotFound), client.producer("nothing", create=False) as producer:
        producer.send(b"")
    with pytest.raises(TooFewReplicas, match=r"127\.0\.0\.1:1"), blocking.connect("127.0.0.1:1", timeout=0.2):
        pytest.fail("nobody is there")
    with pytest.raises(UsageError), blocking.connect("no address"):
        pytest.fail("it is none")
    assert len(threads()) == 1, "only that of the fixture"


def test_many_threads_share_a_client_and_a_consumer(client: Client) -> None:
    seen: list[bytes] = []
    with client.producer("jobs") as producer, client.consumer("jobs", "g", prefetch=10) as consumer:

        def work(number: int) -> None:
            producer.publish(b"%d" % number)
            message = next(consumer)
            seen.append(message.payload)
            message.ack()

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(200)))
    assert sorted(seen, key=int) == [b"%d" % number for number in range(200)]
    assert {peek.peeked.state for peek in client.peek("jobs", "g", "all")} == {"acked"}


def test_a_long_listing_comes_whole_and_may_be_left(client: Client) -> None:
    with client.producer("jobs") as producer:
        for _ in range(3):
            producer.publish_many([b"x"] * 700)
    listing = client.peek("jobs", "g")
    assert next(listing).peeked.state == "ready"
    listing.close()
    assert sum(peek.peeked.span.size for peek in client.peek("jobs", "g")) == 2100


def test_a_closed_client_says_so_and_who_waits_hears_of_it() -> None:
    received: list[BaseException] = []
    entered: list[Consumer] = []

    def wait_for(client: Client) -> None:
        try:
            with client.consumer("jobs", "h") as mine:
                entered.append(mine)
                mine.next()
        except OutcomeUnknown as error:
            received.append(error)

    with in_a_thread() as client:
        client.create_topic("jobs")
        listing = client.peek("jobs", "g")
        waiter = threading.Thread(target=wait_for, args=(client,))
        waiter.start()
        until(lambda: entered and client.portal.call(waits, entered[0]), "it waits for a message")
    waiter.join(PATIENCE_S)
    assert [type(error) for error in received] == [OutcomeUnknown]
    with pytest.raises(blocking.Closed):
        client.topic("jobs")
    with pytest.raises(blocking.Closed):
        next(listing)
    assert not threads()


def test_a_pool_whose_client_is_closed_ends_by_one_error() -> None:
    started = threading.Event()
    with ThreadPoolExecutor(1) as threads:
        with in_a_thread() as client:
            client.create_topic("jobs")
            working = threads.submit(client.work, "jobs", "g", lambda message: started.set(), concurrency=2)
            client.publish("jobs", b"x")
            assert started.wait(PATIENCE_S)
        with pytest.raises(OutcomeUnknown, match="closed"):
            working.result(PATIENCE_S)


def test_threads_that_enter_while_the_client_is_closed_end() -> None:
    for _ in range(10):
        with in_a_thread() as client:
            client.create_topic("jobs")

            def loop(client: Client = client) -> None:
                with contextlib.suppress(OutcomeUnknown, blocking.Closed):
                    while True:
                        with client.producer("jobs"), client.consumer("jobs", "g"):
                            pass

            loops = [threading.Thread(target=loop, daemon=True) for _ in range(4)]
            for one in loops:
                one.start()
            time.sleep(0.02)  # a client that is left at any moment
        for one in loops:
            one.join(PATIENCE_S)
            assert not one.is_alive()


def test_a_background_task_that_fails_is_reported() -> None:
    async def fails() -> None:
        raise ZeroDivisionError

    with pytest.raises(ExceptionGroup) as caught, in_a_thread() as client:  # noqa: PT012
        client.portal.call(spawned, client, fails)
        with contextlib.suppress(OutcomeUnknown):
            client.portal.call(trio.sleep_forever)
    assert caught.group_contains(ZeroDivisionError)


async def spawned(client: Client, task: Callable[[], Awaitable[None]]) -> None:
    client.inner.nodes.spawn(task)


def test_ready_messages_are_taken_without_waiting(client: Client) -> None:
    client.producer("jobs").publish_many(b"%d" % number for number in range(10))
    with client.consumer("jobs", "g") as consumer:
        assert next(consumer).payload == b"0"
        payloads: list[bytes] = []
        end = time.monotonic() + PATIENCE_S
        while (
            len(payloads) < 9 and time.monotonic() < end
        ):  # a call that does not wait starts a fetch as well
            payloads += [
                message.payload for messages in consumer.batches(5, timeout=0) for message in messages
            ]
        # On a busy machine a round of holds may be lost, and younger messages are delivered first.
        assert sorted(payloads) == [b"%d" % number for number in range(1, 10)]
        assert consumer.next(timeout=0) is None


def test_payloads_are_made_in_the_caller_s_thread(client: Client) -> None:
    here = threading.current_thread()

    def payloads() -> Iterator[bytes]:
        for number in range(600):
            assert threading.current_thread() is here
            yield client.topic("jobs").name.encode() if number % 100 == 0 else b""

    with client.producer("jobs") as producer:
        assert len(producer.publish_many(payloads())) == 600


async def waits(consumer: Consumer) -> bool:
    return bool(consumer.inner._ahead.arrival.statistics().tasks_waiting)


def test_a_call_from_the_client_s_own_thread_is_refused(client: Client) -> None:
    async def inside() -> None:
        client.topic("jobs")

    with pytest.raises(UsageError, match="own thread"):
        client.portal.call(inside)


def test_every_call_of_the_async_client_is_here() -> None:
    """Options are the same in name and default; `publish` takes a message of this module."""
    pairs = [
        (quorumq.client.Client, Client, {"extend_quietly", "timeout"}),
        (quorumq.client.Producer, Producer, set()),
        (quorumq.client.Pending, Pending, set()),
        (
            quorumq.client.Consumer,
            Consumer,
            {"expired", "given_back", "let_go", "settled", "unsettled"},
        ),
        (quorumq.client.Message, Message, set()),
    ]
    for theirs, ours, left_out in pairs:
        names = {name for name in dir(theirs) if not name.startswith("_")}
        slots = {"delivery", "seq", "size", "deadline"}
        assert names - left_out - slots <= set(dir(ours)), theirs
        for name in names & set(vars(ours)):
            method = getattr(theirs, name)
            if callable(method):
                expected = {one.name: one.default for one in inspect.signature(method).parameters.values()}
                actual = {
                    one.name: one.default
                    for one in inspect.signature(getattr(ours, name)).parameters.values()
                }
                expected.pop("nursery", None)  # a thread of its own is in its place
                assert expected.items() <= actual.items(), name


@pytest.mark.e2e
def test_ctrl_c_ends_a_program_that_waits_and_gives_back_what_it_holds() -> None:
    program = """
import sys
from quorumq.client.blocking import connect
with connect(sys.argv[1:]) as client:
    with client.consumer("jobs", "g", hold_time=60.0) as consumer:
        next(consumer).ack()
        print("acked", flush=True)
        with client.consumer("empty", "g") as other:
            next(other)
"""
    with LocalCluster(3, hold_time_max=60.0) as cluster, blocking.connect(cluster.addresses) as client:
        client.create_topic("jobs")
        client.create_topic("empty")
        client.producer("jobs").publish_many([b"x"] * 20)
        command = [sys.executable, "-c", program, *cluster.addresses]
        with subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(os.environ),
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"acked\n"
            time.sleep(0.3)  # it waits for more by then, as a rule
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=PATIENCE_S)
        assert b"KeyboardInterrupt" in err
        assert b"exception ignored" not in err.lower()
        assert process.returncode == -signal.SIGINT
        end = time.monotonic() + PATIENCE_S
        while len(client.fetch("jobs", "g", max_wait=1.0)) == 0:
            assert time.monotonic() < end, "what it had fetched ahead was not given back"


def test_holds_are_extended_while_the_program_computes(client: Client) -> None:
    with client.producer("jobs") as producer:
        producer.send(b"x")
    with client.consumer("jobs", "g", hold_time=0.5) as consumer:
        message = next(consumer)
        time.sleep(1.0)  # as a handler that computes
        assert message.is_live
        assert message.ack() is Outcome.ACKED


class Interrupted(Exception):
    """Exception raised by a signal handler."""


@contextmanager
def interrupting(monkeypatch: pytest.MonkeyPatch, answered: bool) -> Iterator[None]:
    """The next call is interrupted, before or after its answer is there."""
    result = Future.result

    def interrupted(self: Future[object], timeout: float | None = None) -> object:
        monkeypatch.setattr(Future, "result", result)
        if answered:
            self.result(timeout)
        raise Interrupted

    monkeypatch.setattr(Future, "result", interrupted)
    with pytest.raises(Interrupted):
        yield


def test_a_call_that_is_interrupted_is_cancelled(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []

    async def slow() -> None:
        try:
            await trio.sleep_forever()
        finally:
            log.append("cancelled")

    began = time.monotonic()
    with interrupting(monkeypatch, answered=False):
        client.portal.call(slow)
    assert log == ["cancelled"]
    assert time.monotonic() - began < blocking.INTERRUPTED_S / 2


@pytest.mark.parametrize("answered", [False, True])
def test_interruption_loses_nothing(client: Client, monkeypatch: pytest.MonkeyPatch, answered: bool) -> None:
    with client.producer("jobs") as producer:
        producer.publish_many([b"x"] * 10)
        with interrupting(monkeypatch, answered=answered):
            client.fetch("jobs", "g", max_messages=4)
        with interrupting(monkeypatch, answered=answered), client.consumer("jobs", "g"):
            pytest.fail("it was not entered")
        with client.consumer("jobs", "g", prefetch=1) as consumer:
            with interrupting(monkeypatch, answered=answered):
                consumer.next()
            messages: list[Message] = []
            batches = consumer.batches(timeout=PATIENCE_S)
            while len(messages) < 10:
                messages += next(batches)
            assert [message.attempt for message in messages] == [
                1
            ] * 10  # the expired one is delivered as the second
            assert consumer.inner.unsettled == 10


def test_many_outputs_of_one_message_are_numbered_and_published_once(client: Client) -> None:
    client.create_topic("parts")
    client.publish("jobs", b"input")
    (message,) = client.fetch("jobs", "g")
    for _ in range(2):  # as after a crash before the ack
        with client.producer("parts") as producer:
            names = producer.publish_many([b"a", b"b"], derived_from=message)
            (last,) = producer.publish_many([b"c"], derived_from=message, index=2)
            assert len({*names, last}) == 3
    assert sorted(one.payload for one in client.fetch("parts", "g")) == [b"a", b"b", b"c"]


def test_in_the_child_of_a_fork_it_says_so_instead_of_waiting_for_ever(client: Client) -> None:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            client.status()
        except blocking.Closed as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as said:
        assert "before a fork" in said.read()
    os.waitpid(child, 0)
    assert client.metadata("jobs").topics
