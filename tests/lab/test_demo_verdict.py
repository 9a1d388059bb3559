"""The demo's verdict, on histories made up to be wrong in one way each."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from quorumq.core.values.types import Incarnation, Owner, ProducerId, Span, Stamp
from quorumq.history import HistoryWriter, Row, owner_text, spans_value, token_text
from quorumq.history.reader import read_history
from quorumq.lab.demo_verdict import Account, Killed, MessageKey, Stopped, Tail, Verdict, check

PRODUCER_ID = ProducerId("n1", 1, 0xABC, 0)
HOLD = 5.0
GOOD_KILL = Killed("n2", 0.45, 7, started_again=True, out_of_quarantine=True)
GOOD_STOP = Stopped("client:w3", 3, 6.0)


def key(seq: int) -> MessageKey:
    return ("demo", 0, "n1.1.abc.0", seq)


def owner(ballot: int) -> Owner:
    return Owner("n1", Incarnation(1, 0xABC), Stamp(ballot, "n1"))


class Run:
    """A history under construction; every line goes through the real writer and its checks."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "history.jsonl"
        self.writer = HistoryWriter(self.path, run="r", who="client:w1", buffer_bytes=1)

    def publish(self, start: int, stop: int, outcome: str = "ok") -> None:
        for step in ("invoke", outcome):
            self.writer.write(
                "publish",
                topic="demo",
                partition=0,
                spans=spans_value([Span(PRODUCER_ID, start, stop)]),
                op=1,
                outcome=step,
            )

    def deliver(
        self, seq: int, at: float, ballot: int, asked: float | None = None, who: str = "client:w1"
    ) -> None:
        self.writer.write(
            "deliver", **self._of(seq, ballot), token=token_text(Stamp(ballot, "n1")), attempt=1,
            until=at + 0.98 * HOLD, asked=at - 0.1 if asked is None else asked, at=at, wall_ms=0, who=who,
        )  # fmt: skip

    def extend(self, seq: int, until: float, ballot: int) -> None:
        self.writer.write("extend", **self._of(seq, ballot), op=4, outcome="ok", until=until)

    def ack(self, seq: int, at: float, ballot: int, outcome: str = "acked") -> None:
        self.writer.write("ack", **self._of(seq, ballot), op=2, outcome=outcome, at=at, wall_ms=0)

    def dead(self, seq: int, at: float, ballot: int, outcome: str = "ok") -> None:
        self.writer.write("dead_letter", **self._of(seq, ballot), op=3, outcome=outcome, at=at, wall_ms=0)

    def _of(self, seq: int, ballot: int) -> Row:
        return {
            "topic": "demo", "partition": 0, "group": "g", "generation": 0, "n": 0,
            "spans": spans_value([Span(PRODUCER_ID, seq, seq + 1)]), "owner": owner_text(owner(ballot)),
        }  # fmt: skip

    def account(self, **deaths: str) -> Account:
        """Return the account of everything so far; dead letters by ``m<seq>="ErrorClass"``."""
        account = Account()
        for row in read_history([self.path]):
            account.feed(row)
        for name, error in deaths.items():
            account.dead_letters[key(int(name[1:]))] = error
        return account

    def verdict(self, *, malformed: tuple[int, ...] = (), expected: int = 4, **deaths: str) -> Verdict:
        return check(
            self.account(**deaths),
            malformed=[key(seq) for seq in malformed],
            killed=GOOD_KILL,
            stopped=GOOD_STOP,
            hold_time=HOLD,
            expected=expected,
            seconds=30.0,
        )


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Four messages: one acked, one acked late after its redelivery, two rejected."""
    run = Run(tmp_path)
    run.publish(0, 4)
    run.deliver(0, 10.0, 100)
    run.ack(0, 11.0, 100)
    run.deliver(1, 10.0, 101)
    run.deliver(1, 16.0, 111, who="client:w2")
    run.ack(1, 17.0, 101, "acked_after_expiry")
    run.deliver(2, 10.0, 102)
    run.dead(2, 10.5, 102)
    run.deliver(3, 10.0, 103)
    run.dead(3, 10.5, 103)
    return run


def test_a_good_run_passes_and_its_numbers_add_up(run: Run) -> None:
    verdict = run.verdict(malformed=(3,), m2="SyntaxError", m3="TabError")
    assert verdict.passed, verdict
    assert (verdict.published, verdict.delivered, verdict.redelivered, verdict.late_acks) == (4, 5, 1, 1)
    assert (verdict.acked, verdict.dead_lettered, verdict.lost) == (2, 2, 0)
    assert (verdict.errors, verdict.malformed_errors) == ({"SyntaxError": 1}, {"TabError": 1})
    shown = json.loads(json.dumps(verdict.as_json()))
    assert (shown["killed"]["holds"], shown["passed"]) == (7, True)


def test_a_dead_letter_that_the_cluster_does_not_list_is_lost_though_its_worker_got_ok(run: Run) -> None:
    verdict = run.verdict(m3="TabError")
    assert (verdict.lost, verdict.passed) == (1, False)
    assert run.account(m3="TabError").lost() == [key(2)]


def test_an_ack_whose_outcome_is_unknown_does_not_count(run: Run) -> None:
    run.publish(4, 5)
    run.deliver(4, 20.0, 120)
    run.ack(4, 21.0, 120, "unknown")
    assert run.account(m2="E", m3="E").lost() == [key(4)]
    run.ack(4, 22.0, 120)
    assert run.verdict(expected=5, m2="E", m3="E").passed


def test_a_dead_letter_that_was_acked_late_counts_as_acked(run: Run) -> None:
    run.ack(3, 30.0, 103, "acked_after_expiry")
    verdict = run.verdict(m2="SyntaxError", m3="TabError")
    assert (verdict.acked, verdict.dead_lettered, verdict.passed) == (3, 1, True)


@pytest.mark.parametrize(
    ("asked", "at", "ballot", "outcome", "wrong"),
    [
        (12.0, 12.1, 130, "acked", True),  # a FETCH sent after the ack
        (12.0, 12.1, 130, "acked_after_expiry", True),  # with any answer
        (10.9, 12.1, 130, "acked", True),  # in flight, with a higher token: `acked` had ruled that out
        (10.9, 12.1, 130, "acked_after_expiry", False),  # in flight: allowed
        (10.9, 12.1, 90, "acked", False),  # an older delivery
    ],
)
def test_delivered_after_ack(
    tmp_path: Path, asked: float, at: float, ballot: int, outcome: str, wrong: bool
) -> None:
    run = Run(tmp_path)
    run.publish(0, 1)
    run.deliver(0, 5.0, 100)
    run.ack(0, 11.0, 100, outcome)
    run.deliver(0, at, ballot, asked=asked)
    assert run.account().delivered_after_ack() == ([key(0)] if wrong else [])
    assert run.verdict(expected=1).delivered_after_ack == wrong
    assert not (wrong and run.verdict(expected=1).passed)


@pytest.mark.parametrize("extended", [False, True])
def test_two_deliveries_inside_one_hold_are_seen(run: Run, extended: bool) -> None:
    run.publish(4, 5)
    run.deliver(4, 20.0, 120)
    if extended:
        run.extend(4, 27.4, 120)
    at = 26.0 if extended else 24.0
    run.deliver(4, at, 121, who="client:w2")
    run.ack(4, at + 0.5, 121, "acked_after_expiry")
    verdict = run.verdict(expected=5, m2="E", m3="E")
    assert (verdict.overlapping, verdict.passed) == (1, False)


def test_an_unpublished_message_is_reported(run: Run) -> None:
    run.deliver(9, 20.0, 120)
    verdict = run.verdict(m2="E", m3="E")
    assert (verdict.never_published, verdict.passed) == (1, False)


def test_a_publish_without_an_answer_is_not_published_and_may_be_delivered(run: Run) -> None:
    run.publish(4, 6, "unknown")
    run.deliver(4, 20.0, 120)
    verdict = run.verdict(expected=6, m2="E", m3="E")
    assert (verdict.published, verdict.never_published, verdict.lost) == (4, 0, 0)
    assert verdict.missing == ("2 of 6 messages were not published",)
    assert not verdict.passed


@pytest.mark.parametrize(
    ("killed", "stopped", "says"),
    [
        (None, GOOD_STOP, "no node was killed"),
        (dataclasses.replace(GOOD_KILL, acked_share=0.71), GOOD_STOP, "when 71% were acked"),
        (dataclasses.replace(GOOD_KILL, acked_share=0.29), GOOD_STOP, "when 29% were acked"),
        (dataclasses.replace(GOOD_KILL, holds=0), GOOD_STOP, "had no hold"),
        (dataclasses.replace(GOOD_KILL, started_again=False), GOOD_STOP, "not started again"),
        (GOOD_KILL, None, "no worker was stopped"),
        (GOOD_KILL, dataclasses.replace(GOOD_STOP, held=0), "held no message"),
        (GOOD_KILL, dataclasses.replace(GOOD_STOP, seconds=5.0), "not past the hold of 5 s"),
    ],
)
def test_faults_that_did_not_happen_fail_the_demo(
    run: Run, killed: Killed | None, stopped: Stopped | None, says: str
) -> None:
    verdict = check(
        run.account(m2="E", m3="E"),
        malformed=[], killed=killed, stopped=stopped, hold_time=HOLD, expected=4, seconds=30.0,
    )  # fmt: skip
    assert not verdict.passed
    assert len(verdict.missing) == 1
    assert says in verdict.missing[0]
    assert verdict.as_json()["passed"] is False


def test_a_demo_without_a_late_ack_fails(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.publish(0, 1)
    run.deliver(0, 10.0, 100)
    run.ack(0, 11.0, 100)
    verdict = run.verdict(expected=1)
    assert verdict.missing == ("no ack came late, though client:w3 was stopped past its hold",)


def test_held_by_counts_what_is_delivered_unsettled_and_inside_its_hold(run: Run) -> None:
    run.publish(4, 8)
    for seq in (4, 5, 7):
        run.deliver(seq, 20.0, 120 + seq, who="client:w3")
    run.ack(5, 20.5, 125)
    run.ack(7, 20.5, 127, "invoke")  # may be on its way: it is settled though its worker stands still
    run.deliver(6, 10.0, 126, who="client:w3")
    account = run.account()
    assert account.held_by("client:w3", 21.0) == 1
    assert account.held_by("client:w3", 25.0) == 0
    assert account.settled() == 5


def test_a_tail_gives_whole_lines_as_they_come(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    tail = Tail(path)
    assert tail.read() == []
    with path.open("wb") as file:
        file.write(b'{"a":1}\n{"a":')
        file.flush()
        assert tail.read() == [{"a": 1}]
        file.write(b"2}\n")
        file.flush()
        assert tail.read() == [{"a": 2}]
    assert tail.read() == []
