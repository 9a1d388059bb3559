"""Settling: acks sent together, one result for each verdict, retries that promise no more than is true."""

from __future__ import annotations

import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from quorumq.client import (
    AlreadySettled,
    BadReceipt,
    Client,
    HoldLost,
    Message,
    NotStored,
    Outcome,
    OutcomeUnknown,
    QuorumqError,
    StorageFull,
    UsageError,
    receipt_from_text,
    receipt_to_text,
)
from quorumq.client.admin import peek as peek_module
from quorumq.client.base.message import Delivery, Settleable
from quorumq.client.consume import settle as settle_module
from quorumq.client.consume.prefetch import spans_named
from quorumq.client.consume.settle import Failures, Item, Settling, chunks, items_of, most_retryable, spans_of
from quorumq.core import messages as m
from quorumq.core.messages.diskroom import Shortage
from quorumq.core.messages.effects import DiskFull
from quorumq.core.values.types import Incarnation, Kind, Owner, PartitionId, ProducerId, Receipt, Span, Stamp
from quorumq.wire.values import SignedNamed
from tests.client.fake import FakeCluster, connected, failing, fake_cluster
from tests.client.steps import jobs, publish
from tests.core.steps import fetch, receipts

PRODUCER_ID = ProducerId("a", 1, 2, 3)


async def fetched(cluster: FakeCluster, client: Client, count: int, **more: object) -> list[Message]:
    await client.create_topic("jobs")
    await publish(client, count)
    messages = await client.fetch("jobs", "g", max_messages=count, **more)  # type: ignore[arg-type]
    assert len(messages) == count
    return messages


@asynccontextmanager
async def held(count: int, **more: object) -> AsyncIterator[tuple[FakeCluster, Client, list[Message]]]:
    """A cluster, a client of it, and ``count`` messages that it holds."""
    async with fake_cluster() as cluster, connected(cluster) as client:
        yield cluster, client, await fetched(cluster, client, count, **more)


# -------------------------------------------------------------------------------- coalescing


async def test_many_acks_are_one_request_and_each_hears_its_own_verdict() -> None:
    async with held(100) as (cluster, _, messages):
        outcomes: list[Outcome] = []

        async def ack(message: Message) -> None:
            outcomes.append(await message.ack())

        async with trio.open_nursery() as nursery:
            for message in messages:
                nursery.start_soon(ack, message)
        assert outcomes == [Outcome.ACKED] * 100
        (asked,) = cluster.of(m.AckRequest)
        # One receipt for each stored batch, as one span.
        assert all(len(item.spans) == 1 for item in asked[1].items)


async def test_an_ack_alone_does_not_wait_and_what_comes_meanwhile_goes_together() -> None:
    async with held(50) as (cluster, _, messages):
        began = trio.current_time()
        for message in messages[:10]:
            await message.ack()
        assert trio.current_time() == began
        assert len(cluster.of(m.AckRequest)) == 10
        cluster.asked.clear()
        cluster.mute.update("abc")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(messages[10].ack)
            await trio.testing.wait_all_tasks_blocked()
            for message in messages[11:]:
                nursery.start_soon(message.ack)
            await trio.testing.wait_all_tasks_blocked()
            assert len(cluster.of(m.AckRequest)) == 1
            await trio.sleep(0.006)
            assert len(cluster.of(m.AckRequest)) == 2, "after its linger it goes beside the first"
            cluster.wake("a")
        assert {message.outcome for message in messages} == {Outcome.ACKED}


async def test_a_retryable_failure_is_raised_before_a_final_one() -> None:
    """An application that handles a lost hold as final would else take the other message as rejected."""
    async with held(2) as (cluster, client, (lost, kept)):
        await lost.reject(60.0)

        def silent_about_kept(node: str, request: object) -> object:
            if not isinstance(request, m.RejectRequest):
                return None
            spans = [(index, span) for index, item in enumerate(request.items) for span in spans_named(item)]
            verdicts = [
                m.Verdict(
                    index,
                    Span(span.producer_id, seq, seq + 1),
                    "hold-lost" if seq == lost.seq else "outcome-unknown",
                )
                for index, span in spans
                for seq in range(span.start, span.stop)
            ]
            return m.SettleReply(tuple(verdicts))

        cluster.answer = silent_about_kept
        for call in (client.reject, client.dead_letter):
            with pytest.raises(OutcomeUnknown):
                await call([lost, kept], timeout=1.0)
            assert (type(lost.failure), type(kept.failure)) == (HoldLost, OutcomeUnknown)


def test_the_foremost_failure() -> None:
    lost, unknown, other = HoldLost("a"), OutcomeUnknown("b"), NotStored("c")
    assert most_retryable([]) is None
    assert most_retryable([lost]) is lost
    assert most_retryable([lost, unknown, other]) is unknown
    assert most_retryable([lost, AlreadySettled("d")]) is lost


async def test_one_refused_receipt_refuses_no_other() -> None:
    async with held(5) as (_, client, messages):
        signed = bytearray(messages[0].receipt.signed)
        signed[5] ^= 1
        forged = client.ticket(messages[0].receipt._replace(signed=bytes(signed)))
        results: dict[str, object] = {}

        async def ack(name: str, tickets: list[Settleable]) -> None:
            try:
                results[name] = await client.ack(tickets)
            except BadReceipt as exc:
                results[name] = exc

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ack, "good", messages[:3])
            nursery.start_soon(ack, "forged", [forged])
            nursery.start_soon(ack, "other", messages[3:])
        assert results["good"] == [Outcome.ACKED] * 3
        assert results["other"] == [Outcome.ACKED] * 2
        assert isinstance(results["forged"], BadReceipt)


# ----------------------------------------------------------------------------------- retries


async def test_a_lost_answer_is_asked_for_again_and_promises_no_more() -> None:
    async with held(5) as (cluster, client, messages):
        lost = iter([True, True, False])
        cluster.lose = lambda node, request: isinstance(request, m.AckRequest) and next(lost)
        assert await client.ack(messages) == [Outcome.ACKED] * 5
        assert [node for node, _ in cluster.of(m.AckRequest)] == ["a", "b", "c"] or len(
            cluster.of(m.AckRequest)
        ) == 3


async def test_an_ack_after_the_hold_says_so() -> None:
    async with held(1, hold_time=2.0) as (_, client, first):
        await trio.sleep(2.5)
        again = await client.fetch("jobs", "g", hold_time=2.0)
        assert again[0].fencing_token > first[0].fencing_token
        assert await first[0].ack() is Outcome.ACKED_AFTER_EXPIRY
        assert await again[0].ack() is Outcome.ACKED


async def test_only_what_is_unknown_is_asked_again() -> None:
    async with held(10) as (cluster, client, messages):
        done = messages[0].delivery.receipt.span

        def answer(node: str, request: object) -> m.SettleReply | None:
            if not isinstance(request, m.AckRequest) or len(cluster.of(m.AckRequest)) > 1:
                return None
            said = []
            for index, item in enumerate(request.items):
                for span in item.spans:  # the first message of each is done
                    said.append(m.Verdict(index, Span(span.producer_id, span.start, span.start + 1), "acked"))
                    if span.size > 1:
                        rest = Span(span.producer_id, span.start + 1, span.stop)
                        said.append(m.Verdict(index, rest, "outcome-unknown", "needed 2"))
            return m.SettleReply(tuple(said))

        cluster.answer = answer
        assert await client.ack(messages) == [Outcome.ACKED] * 10
        _, second = cluster.of(m.AckRequest)
        asked = [span for item in second[1].items for span in item.spans]
        assert sum(span.size for span in asked) == 10 - len({message.delivery for message in messages})
        assert done.start not in {span.start for span in asked}


async def test_giving_up_says_whether_it_may_have_happened() -> None:
    async with fake_cluster() as cluster, connected(cluster, attempt_timeout=0.5) as client:
        messages = await fetched(cluster, client, 3)
        await cluster.cut_off()
        with pytest.raises(NotStored, match="ack of 1 message of jobs"):
            await messages[0].ack(timeout=2.0)
        cluster.refuse.clear()
        cluster.mute.update("abc")
        with pytest.raises(OutcomeUnknown, match="repeat it"):
            await messages[0].ack(timeout=2.0)
        assert isinstance(messages[0].failure, OutcomeUnknown)
        cluster.mute.clear()
        assert await messages[0].ack() is Outcome.ACKED
        assert messages[0].failure is None


async def test_a_node_that_does_not_know_the_topic_is_not_the_last_word() -> None:
    async with held(1) as (cluster, _, messages):
        cluster.answer = failing("not-found", times=1, of=m.AckRequest)
        assert await messages[0].ack() is Outcome.ACKED


# ------------------------------------------------------------------------------ cancellation


async def test_a_cancelled_ack_may_happen_and_hangs_no_one() -> None:
    async with held(3) as (cluster, _, messages):
        with trio.CancelScope() as scope:
            scope.cancel()
            await messages[0].ack()
        assert cluster.of(m.AckRequest) == []
        with trio.move_on_after(0.5):
            cluster.mute.update("abc")
            await messages[1].ack()
        cluster.wake("a")
        assert await messages[2].ack() is Outcome.ACKED
        assert await messages[1].ack() is Outcome.ACKED
        assert await messages[0].ack() is Outcome.ACKED


# ---------------------------------------------------------------------------- reject, dead letters


async def test_waiters_get_an_error_when_the_client_is_closed() -> None:
    received: dict[str, BaseException | None] = {}

    async def wait(name: str, call: Callable[[], Awaitable[object]]) -> None:
        try:
            await call()
            received[name] = None
        except (QuorumqError, StopAsyncIteration) as exc:
            received[name] = exc

    async with fake_cluster() as cluster, trio.open_nursery() as nursery:
        async with connected(cluster) as client:
            messages = await fetched(cluster, client, 2)
            producer = await client.producer("jobs").__aenter__()
            await client.create_topic("silent")
            consumer = await client.consumer("silent", "g").__aenter__()
            await producer.publish(b"0")
            nursery.start_soon(wait, "next", consumer.__anext__)
            await trio.testing.wait_all_tasks_blocked()
            cluster.mute.update("abc")
            pending = await producer.send(b"1")
            nursery.start_soon(wait, "publish", pending.wait)
            nursery.start_soon(wait, "first ack", messages[0].ack)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(wait, "queued ack", messages[1].ack)
            await trio.testing.wait_all_tasks_blocked()
        with trio.fail_after(1.0):
            while len(received) < 4:
                await trio.sleep(0.01)
    assert {name: type(error) for name, error in received.items()} == {
        "publish": OutcomeUnknown,
        "next": StopAsyncIteration,
        "first ack": OutcomeUnknown,
        "queued ack": OutcomeUnknown,
    }


async def test_reject_requeues_after_its_delay() -> None:
    async with held(3) as (cluster, client, messages):
        await messages[0].reject()
        assert messages[0].outcome is Outcome.REQUEUED
        (again,) = await client.fetch("jobs", "g")
        assert (again.payload, again.attempt) == (messages[0].payload, 2)
        await client.reject(messages[1:], delay=5.0)
        assert len(cluster.of(m.RejectRequest)) == 2
        assert await client.fetch("jobs", "g") == []
        await trio.sleep(5.1)
        assert len(await client.fetch("jobs", "g")) == 2
        await trio.sleep(25.0)
        with pytest.raises(
            HoldLost, match=r"hold on .* is over: it is not certain whether it was rejected, and"
        ):
            await again.reject()
        with pytest.raises(
            HoldLost, match="not certain whether it was dead-lettered, and another delivery may"
        ):
            await again.dead_letter(reason="too late")
        with pytest.raises(UsageError, match="delay"):
            await messages[0].reject(-1.0)


async def test_a_reject_that_names_no_delay_takes_the_topics_backoff() -> None:
    async with jobs(1, backoff=(2.0, 7.0), max_deliveries=50) as (_, client):
        for wait in (2.0, 7.0, 7.0):
            (message,) = await client.fetch("jobs", "g")
            rejected = trio.current_time()
            await message.reject()
            while not (again := await client.fetch("jobs", "g")):
                await trio.sleep(0.05)
            assert wait - 0.001 < trio.current_time() - rejected < wait + 0.5
            await again[0].reject(timedelta(0))


async def test_a_reject_does_not_wait_for_space_and_an_ack_does() -> None:
    """An ack that is given up has its message worked on again. After a reject that is given up, the hold runs out."""
    async with held(3) as (cluster, _, messages):
        for name in cluster.names:
            cluster.feed(name, DiskFull(Shortage.FULL))
        began = trio.current_time()
        for refused in (messages[0].reject(), messages[1].dead_letter(reason="no")):
            with pytest.raises(StorageFull, match="have no room: let consumers ack"):
                await refused
        assert trio.current_time() - began < 0.5
        async with trio.open_nursery() as nursery:
            nursery.start_soon(messages[2].ack)
            await trio.sleep(5.0)
            assert messages[2].outcome is None
            for name in cluster.names:
                cluster.feed(name, DiskFull(Shortage.NONE))
        assert messages[2].outcome is Outcome.ACKED


async def test_a_rejects_lost_answer_is_asked_for_again() -> None:
    async with held(2) as (cluster, _, messages):
        lost = iter([True, False])
        cluster.lose = lambda node, request: isinstance(request, m.RejectRequest) and next(lost)
        await messages[0].reject(60.0)
        lost = iter([True, False])
        await messages[1].dead_letter(reason="no")
        assert [message.outcome for message in messages] == [Outcome.REQUEUED, Outcome.DEAD_LETTERED]


@pytest.mark.parametrize("dead", [False, True])
async def test_a_repeated_reject_that_comes_too_late_does_not_say_that_nothing_was_done(dead: bool) -> None:
    """The first attempt took effect, and its answer was lost; before the second, others were done with the message."""
    async with held(1) as (cluster, client, (message,)):

        def meanwhile(node: str, request: object) -> bool:
            if not isinstance(request, m.RejectRequest) or len(cluster.of(m.RejectRequest)) > 1:
                return False
            if dead:
                (item,) = cluster.ask("b", m.PeekRequest("jobs", 0, "g", "dead", (0, 0), 1)).items  # type: ignore[union-attr]
                cluster.ask("b", m.RedriveRequest("jobs", 0, "g", (m.SpanRecord(item.span, item.record),)))
            else:
                cluster.ask("b", m.AckRequest(receipts(cluster.ask("b", fetch()))))
            return True

        cluster.lose = meanwhile
        with pytest.raises(HoldLost, match="it is not certain whether it was"):
            await (message.dead_letter(reason="no") if dead else message.reject())
        assert len(cluster.of(m.RejectRequest)) == 2
        cluster.lose = lambda node, request: False
        (item,) = [item async for item in client.peek("jobs", "g", "all", complete=True)]
        assert item.peeked.record.kind == (Kind.OPEN if dead else Kind.ACKED)
        assert item.peeked.record.n == int(dead), "it was rejected, and what followed stands"


async def test_a_repeated_ack_of_a_dead_letter_that_was_redriven_does_not_say_that_nothing_was_done() -> None:
    async with held(1) as (cluster, client, (message,)):
        await message.dead_letter(reason="no")
        (death,) = await client.fetch("jobs", "g!dead")
        (item,) = cluster.ask("b", m.PeekRequest("jobs", 0, "g", "dead", (0, 0), 1)).items  # type: ignore[union-attr]

        def meanwhile(node: str, request: object) -> bool:
            if not isinstance(request, m.AckRequest) or len(cluster.of(m.AckRequest)) > 1:
                return False
            cluster.ask("b", m.RedriveRequest("jobs", 0, "g", (m.SpanRecord(item.span, item.record),)))
            return True

        cluster.lose = meanwhile
        with pytest.raises(AlreadySettled, match="no dead letter any more") as raised:
            await death.ack()
        assert "nothing was done" not in str(raised.value)


async def test_a_repeated_extend_keeps_the_hold() -> None:
    async with held(1, hold_time=4.0) as (cluster, client, (message,)):
        await trio.sleep(2.0)
        lost = iter([True, False])
        cluster.lose = lambda node, request: isinstance(request, m.ExtendRequest) and next(lost)
        await message.extend(10.0)
        assert message.deadline > client.clock() + 9.0
        assert await client.fetch("jobs", "g") == []


async def test_a_dead_letter_keeps_its_history_and_comes_back_by_redrive() -> None:
    async with jobs(2) as (_, client):
        async with client.consumer("jobs", "g", name="worker 7", version="1.2.3") as consumer:
            async for message in consumer:
                try:
                    int("x" + message.payload.decode())
                except ValueError as exc:
                    await message.dead_letter(exc)
                if message.payload == b"1":
                    break
        listed = [item async for item in client.peek("jobs", "g", "dead", bodies=True)]
        assert sum(item.peeked.span.size for item in listed) == 2
        death = listed[0].peeked.record.death
        assert death is not None
        assert death.error_class == "ValueError"
        assert death.message == "invalid literal for int() with base 10: 'x0'"
        assert "test_settle.py" in death.stack
        assert (death.consumer, death.consumer_version) == ("worker 7", "1.2.3")
        assert (death.reason, death.attempts, death.host) == ("rejected", 1, client.context.host)
        assert death.died_ms >= death.last_delivered_ms >= death.published_ms > 0
        assert death.fingerprint == listed[-1].peeked.record.death.fingerprint  # type: ignore[union-attr]
        assert [parts.payload for item in listed for parts in item.bodies.values()] == [b"0", b"1"]
        assert await client.fetch("jobs", "g") == []

        done = await client.redrive("jobs", "g", listed)
        assert (done.messages, done.refused) == (2, ())
        assert (await client.redrive("jobs", "g", listed)).messages == 2, "done twice, it is done once"
        again = await client.fetch("jobs", "g")
        assert [message.attempt for message in again] == [1, 1]
        await client.ack(again)
        done = await client.redrive("jobs", "g", listed)
        assert done.messages == 0
        assert sum(span.size for span, _ in done.refused) == 2
        with pytest.raises(UsageError, match="not a dead letter"):
            await client.redrive("jobs", "g", [item async for item in client.peek("jobs", "g", "acked")])


async def test_extend_moves_the_deadline_and_revives_nothing() -> None:
    async with held(2, hold_time=4.0) as (cluster, client, messages):
        await trio.sleep(3.0)
        await client.extend(messages[:1], 10.0)
        assert messages[0].deadline == pytest.approx(trio.current_time() + 9.8)
        await trio.sleep(2.0)
        assert [message.is_live for message in messages] == [True, False]
        with pytest.raises(HoldLost):
            await client.extend(messages)
        assert messages[0].failure is None
        assert isinstance(messages[1].failure, HoldLost)
        (_, first), *_ = cluster.of(m.ExtendRequest)
        assert first.sent_at == pytest.approx(3.0, abs=0.01)


async def test_a_failed_extension_does_not_change_a_simultaneous_ack() -> None:
    async with held(1) as (cluster, _, (message,)):
        cluster.mute.add("a")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(message.ack)
            await trio.sleep(0.1)
            with pytest.raises(OutcomeUnknown):
                await message.extend(timeout=0.2)
            assert message.outcome is None, "the ack is under way"
        assert message.outcome is Outcome.ACKED


async def test_an_extension_takes_away_no_failure_of_an_ack_at_the_same_time() -> None:
    async with held(2) as (cluster, client, messages):
        wrong = client.ticket(messages[0].receipt)
        wrong.delivery.signed = wrong.delivery.signed[:-1] + bytes((wrong.delivery.signed[-1] ^ 1,))
        received: list[BaseException] = []

        async def ack(ticket: Settleable, timeout: float) -> None:
            try:
                await client.ack([ticket], timeout=timeout)
            except QuorumqError as error:
                received.append(error)

        async with trio.open_nursery() as nursery:
            # One request that is refused, then one for each of them; the good one is not answered.
            cluster.answer = lambda node, request: (
                m.Failed("outcome-unknown", "maybe", 2, 1)
                if isinstance(request, m.AckRequest)
                and len(cluster.of(m.AckRequest)) > 1
                and len(request.items) == 1
                else None
            )
            nursery.start_soon(ack, messages[1], 1.0)
            nursery.start_soon(ack, wrong, 2.0)
            for _ in range(20):
                await trio.sleep(0.1)
                await messages[1].extend()
        assert sorted(type(error).__name__ for error in received) == ["OutcomeUnknown", "OutcomeUnknown"], (
            received
        )
        assert not [error for error in received if "closed" in str(error)], received


async def test_an_extension_counts_from_before_it_was_sent() -> None:
    """docs/protocol.md, EXTEND: the client's stamp on this request, not the time of the answer."""
    async with fake_cluster() as cluster:
        skew = 0.0
        async with connected(cluster, clock=lambda: trio.current_time() + skew) as client:
            messages = await fetched(cluster, client, 1, hold_time=4.0)

            def answer(node: str, request: object) -> None:
                nonlocal skew
                if isinstance(request, m.ExtendRequest):
                    skew = 1.5  # it was under way for 1.5 s

            cluster.answer = answer
            before = client.clock()
            await client.extend(messages, 10.0)
            assert client.clock() > before + 1.0
            assert messages[0].deadline == pytest.approx(before + 9.8)


async def test_a_receipt_may_travel_as_text() -> None:
    async with held(3) as (cluster, _, messages):
        text = receipt_to_text(messages[1].receipt)
        assert text.isascii()
        assert " " not in text
        async with connected(cluster, "c") as other:
            receipt = receipt_from_text(text)
            assert receipt == messages[1].receipt
            assert await other.ack([other.ticket(receipt)]) == [Outcome.ACKED]
        assert await messages[1].ack() is Outcome.ACKED
        receipt, span = messages[1].receipt, Span(messages[1].id.producer_id, 1, 1)
        nothing = receipt_to_text(SignedNamed(receipt.signed, (span,)))
        for changed in (text[:20], "é not base64", nothing):
            with pytest.raises(BadReceipt, match="unchanged"):
                receipt_from_text(changed)
        for spans in ((), (span._replace(stop=3),)):
            with pytest.raises(BadReceipt, match=r"names \d messages"):
                other.ticket(SignedNamed(receipt.signed, spans))


async def test_peek_shows_each_state_and_holds_nothing() -> None:
    async with held(6) as (_, client, messages):
        await messages[0].ack()
        await messages[1].reject(100.0)
        await messages[2].dead_letter(reason="no")
        await messages[3].reject()

        async def count(which: str, **more: object) -> int:
            items = [item async for item in client.peek("jobs", "g", which, **more)]  # type: ignore[arg-type]
            return sum(item.peeked.span.size for item in items)

        counts = {which: await count(which) for which in ("acked", "delayed", "dead", "ready", "held")}
        assert counts == {"acked": 1, "delayed": 1, "dead": 1, "ready": 1, "held": 2}
        assert await count("all") == 6
        assert await count("ready", node="c") == 1
        fields = await client.status("b")
        assert fields["node"] == "b"
        with pytest.raises(UsageError, match="no node 'q'"):
            await client.status("q")


# ------------------------------------------------------------------- verdicts to messages


def delivery(number: int = 0) -> Delivery:
    owner = Owner("a", Incarnation(1, 1), Stamp(number + 1, "a"))
    receipt = Receipt(PartitionId(b"t" * 16, 0), "g", 0, 0, Span(PRODUCER_ID, 0, 1 << 20), owner)
    return Delivery(
        topic="jobs", signed=b"%d" % number, receipt=receipt, attempt=1, published_ms=0, delivered_ms=0,
        hold_time=1.0, settler=None, holder=None,  # type: ignore[arg-type]
    )  # fmt: skip


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40)), min_size=1, max_size=30), st.randoms())
def test_each_ticket_hears_of_its_message(requests: list[tuple[int, int]], rng: random.Random) -> None:
    """The fast way through spans, against a dictionary of single messages."""
    lots = [delivery(number) for number in range(3)]
    tickets = [Settleable(lots[which], seq) for which, seq in requests]
    items = items_of(tickets)
    names = ["acked", "acked_unproven", "acked_after_expiry", "hold-lost", "outcome-unknown"]
    said = {
        (index, seq): rng.choice(names)
        for index, item in enumerate(items)
        for span in item.spans
        for seq in range(span.start, span.stop)
    }
    assert set(requests) == {(int(items[index].signed), seq) for index, seq in said}
    verdicts = [
        m.Verdict(index, Span(PRODUCER_ID, seq, seq + 1), outcome) for (index, seq), outcome in said.items()
    ]
    received: dict[Settleable, str] = {}

    def hear(tickets: Sequence[Settleable], verdict: m.Verdict, reply: m.SettleReply) -> Failures:
        received.update(dict.fromkeys(tickets, verdict.outcome))
        return {}

    settling = Settling(items, hear, {})
    error = settling.take(m.SettleReply(tuple(verdicts)))
    index_of = {item.signed: index for index, item in enumerate(items)}
    unanswered = [ticket for item in settling.items for ticket in item.tickets]
    for ticket in tickets:
        outcome = said[index_of[ticket.delivery.signed], ticket.seq]
        if outcome == "outcome-unknown":
            assert ticket in unanswered
            assert ticket not in received
        else:
            assert received[ticket] == outcome
    assert (error is None) == (not unanswered)


def test_no_verdict_is_a_reason_to_ask_again() -> None:
    shared = delivery()
    tickets = [Settleable(shared, seq) for seq in range(3)]
    settling = Settling(items_of(tickets), lambda *_: {}, {})
    reply = m.SettleReply((m.Verdict(0, Span(PRODUCER_ID, 0, 2), "acked"),))
    assert isinstance(settling.take(reply), OutcomeUnknown)
    assert settling.items[0].tickets == tickets[2:]


def test_requests_are_cut_at_the_limit_of_spans() -> None:
    shared = delivery()
    tickets = [Settleable(shared, 2 * i) for i in range(2_400)]
    parts = chunks(items_of(tickets))
    assert [sum(len(item.spans) for item in part) for part in parts] == [1_000, 1_000, 400]
    assert isinstance(parts[0][0], Item)
    assert spans_of(tickets[:2]) == (Span(PRODUCER_ID, 0, 1), Span(PRODUCER_ID, 2, 3))


async def test_a_failed_whole_request_is_tried_elsewhere() -> None:
    async with held(2) as (cluster, client, messages):
        cluster.answer = failing("outcome-unknown", times=2, of=m.AckRequest)
        assert await client.ack(messages) == [Outcome.ACKED] * 2
        assert len({node for node, _ in cluster.of(m.AckRequest)}) == 3
        assert not any(isinstance(request, m.Failed) for _, request in cluster.asked)


@pytest.mark.parametrize("action", ["ack", "reject", "dead_letter", "extend"])
async def test_the_requests_of_many_messages_share_time(action: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settle_module, "SPANS_MAX", 1)
    async with jobs(partitions=4) as (cluster, client):
        async with client.producer("jobs") as producer:
            for number in range(4):
                await producer.send(b"x", partition=number)
        messages = await client.fetch("jobs", "g", min_messages=4, max_wait=1.0)
        cluster.mute.update("abc")
        began = trio.current_time()
        with pytest.raises(OutcomeUnknown, match=r"within 2 s"):
            await getattr(client, action)(messages, timeout=2.0)
        assert trio.current_time() - began == pytest.approx(2.0, abs=0.3)
        assert {type(message.failure) for message in messages} == {OutcomeUnknown, NotStored}, (
            "the rest was not sent"
        )


async def test_an_ack_waits_no_longer_than_it_was_told_though_others_in_its_request_do() -> None:
    async with held(40) as (cluster, _, messages):
        cluster.mute.update("abc")
        async with trio.open_nursery() as nursery:
            for message in messages[1:]:  # as many as may be under way, and more that wait for those
                nursery.start_soon(unconfirmed, message, 15.0)
                await trio.sleep(0.006)
            began = trio.current_time()
            await unconfirmed(messages[0], 1.0)
            assert trio.current_time() - began == pytest.approx(1.0, abs=0.3)
            cluster.wake("abc")
        assert {message.outcome for message in messages} <= {Outcome.ACKED, None}


async def unconfirmed(message: Message, timeout: float) -> None:
    with contextlib.suppress(OutcomeUnknown, NotStored):
        await message.ack(timeout=timeout)


async def test_a_peek_goes_on_at_another_replica_without_doubles(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page ends at a batch number of the replica that gave it. Another replica has other numbers."""
    monkeypatch.setattr(peek_module, "PEEK_LIMIT", 1)
    async with fake_cluster() as cluster, connected(cluster) as other, connected(cluster, "c") as client:
        await other.create_topic("jobs")
        cluster.drop = lambda sender, to, message: to == "c" != sender and isinstance(message, m.Store)
        await publish(other, 1)
        cluster.hear_all()
        for _ in range(3):
            await publish(other, 1)
        await trio.sleep(30.0)  # c has the first one last
        shown = []
        async for item in client.peek("jobs", "g", "all"):
            shown.append(item.peeked.span)
            if len(shown) == 2:
                assert cluster.of(m.PeekRequest)[-1][0] == "c"
                cluster.kill("c")
        assert len(shown) == len(set(shown)) == 4


async def test_a_damaged_record_is_looked_at_without_its_body() -> None:
    async with jobs(5) as (cluster, client):
        read = cluster.read
        cluster.read = lambda node: lambda part: read(node)(part).replace(b"3", b"X")  # type: ignore[method-assign]
        items = [item async for item in client.peek("jobs", "g", "all", bodies=True)]
        assert sum(item.peeked.span.size for item in items) == 5
        assert [parts.payload for item in items for parts in item.bodies.values()] == [b"0", b"1", b"2", b"4"]
