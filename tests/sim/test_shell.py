"""The production shell in virtual time: seeds pass, one seed is one run, and a rule that is left out is seen."""

from __future__ import annotations

import json
import random
from pathlib import Path
from unittest.mock import Mock

import pytest
import trio
from click.testing import CliRunner

from quorumq.core.messages.effects import CleanStop, Event
from quorumq.history.reader import read_history
from sim.__main__ import main
from sim.checkers import check_history
from sim.real.plan import KINDS
from sim.rules import patched, rule_named
from sim.schedule import Schedule
from sim.shell.network import Line, LineStream, Network, Together
from sim.shell.run import deterministic, draw_shell, first_of, run_shell
from sim.shell.virtual_time import virtual_time


def test_one_seed_is_one_run_and_keeps_every_promise() -> None:
    one, two = run_shell(draw_shell(8)), run_shell(draw_shell(8))
    assert (one.violations, one.rows, one.trace) == ([], two.rows, two.trace)
    assert one.counts["delivered"] > 10
    assert one.counts["messages"] > 100
    won = [row for row in one.rows if row["kind"] == "hold_won"]
    until = {
        row["owner"]: row["until"] for row in won if "until" in row
    }  # a node knows the ends of its own holds alone
    delivered = [row for row in one.rows if row["kind"] == "deliver" and row["owner"] in until]
    assert len(delivered) > 10
    for row in delivered:
        assert row["until"] <= until[row["owner"]] < row["until"] + 0.5, (
            "a client's own deadline is the earlier one"
        )


def test_slots_move_among_five_nodes() -> None:
    outcome = run_shell(draw_shell(3))
    assert outcome.violations == []
    moved = {(row["layout"], row["partition"]) for row in outcome.rows if row["kind"] == "layout"}
    assert len(moved) > 1


def test_a_rule_that_is_left_out_is_seen() -> None:
    with patched(rule_named("hold-majority-1").patches):
        assert any(
            any(text.startswith("exclusive holds") for text in run_shell(draw_shell(seed)).violations)
            for seed in range(1, 8)
        )


def test_an_exception_of_a_node_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    from quorumq.core.partition.replica import Replica

    monkeypatch.setattr(Replica, "on_hold", Mock(side_effect=AssertionError("made to fail")))
    assert run_shell(draw_shell(8)).violations


def test_schedules_have_what_the_shell_can_have() -> None:
    for seed in range(50):
        schedule = draw_shell(seed)
        assert Schedule.from_json(schedule.to_json()) == schedule
        assert all(fault.kind in KINDS for fault in schedule.faults)


def test_the_network_blocks_one_direction_delays_and_cuts() -> None:
    async def main() -> None:
        network = Network(random.Random(1), 0.001)
        one, two = map(LineStream, network.connect("a", "b"))
        network.block([("b", "a")])
        await one.send_all(b"asked")
        assert await two.receive_some() == b"asked"
        await two.send_all(b"answered")
        with trio.move_on_after(5.0) as waited:
            await one.receive_some()
        assert waited.cancelled_caught
        network.unblock([("b", "a")])
        assert await one.receive_some() == b"answered"
        network.delay([("a", "b")], 2.0)
        began = trio.current_time()
        await one.send_all(b"late")
        assert await two.receive_some() == b"late"
        assert 2.0 < trio.current_time() - began < 2.1
        network.heal()
        network.cut([("a", "b")])
        assert await one.receive_some() == b""
        assert await two.receive_some() == b""
        with pytest.raises(trio.BrokenResourceError):
            await one.send_all(b"more")
        three, four = map(LineStream, network.connect("a", "b"))
        await three.send_all(b"x" * 1000)
        await three.aclose()
        assert await four.receive_some() == b"x" * 1000  # bytes sent before the end arrive before it
        assert await four.receive_some() == b""

    deterministic(1, main)


class Reader:
    """Takes its turns at a line, as an inbound connection does."""

    def __init__(self, line: Line) -> None:
        self.line = line
        self.received: list[bytes | None] = []

    def take_turn(self, events: list[Event]) -> None:
        self.received.append(self.line.receive_now())
        events.append(CleanStop())


def test_simultaneous_arrivals_at_a_node_are_one_step() -> None:
    async def main() -> None:
        network, fed = Network(random.Random(1), 0.0), list[int]()
        together = Together(lambda *events: fed.append(len(events)), network)
        async with trio.open_nursery() as nursery:
            pairs = [network.connect(source, "b") for source in "xyz"]
            readers = [Reader(there) for _, there in pairs]
            for _, there in pairs:
                assert there.fileno() == -1
                there.together = together
            assert not together.join(pairs[0][1].fileno(), readers[0]), "nobody reads yet"
            nursery.start_soon(together.run)
            await trio.sleep(1.0)
            pairs[0][0].send_some([memoryview(b"0")])
            await trio.sleep(1.0)
            for (_, there), reader in zip(pairs, readers, strict=True):
                assert together.join(there.fileno(), reader)
            await trio.sleep(1.0)
            assert (readers[0].received, readers[1].received) == ([b"0"], [None]), "it had come before"
            for here, _ in pairs:
                here.send_some([memoryview(b"1")])
            await trio.sleep(1.0)
            assert fed == [3, 3]
            together.release(pairs[2][1].fileno())
            pairs[0][0].end()
            pairs[2][0].send_some([memoryview(b"2")])
            await trio.sleep(1.0)
            assert [reader.received for reader in readers] == [[b"0", b"1", b""], [None, b"1"], [None, b"1"]]
            nursery.cancel_scope.cancel()

    deterministic(1, main)


def test_an_exception_of_a_step_ends_the_node_and_not_the_network() -> None:
    async def main() -> None:
        network = Network(random.Random(1), 0.0)

        def broken(*events: Event) -> None:
            raise AssertionError("made to fail")

        together = Together(broken, network)
        _, there = network.connect("a", "b")
        there.together = together
        async with trio.open_nursery() as nursery:
            nursery.start_soon(together.run)
            await trio.sleep(1.0)
            together.join(there.fileno(), Reader(there))

    with pytest.raises(BaseExceptionGroup) as raised:
        deterministic(1, main)
    assert str(first_of(raised.value)) == "made to fail"


def test_an_exception_in_a_timer_is_named() -> None:
    cause, error = AssertionError("made to fail"), trio.TrioInternalError("internal error in Trio")
    error.__cause__ = cause
    assert first_of(BaseExceptionGroup("", [error])) is cause


def test_time_goes_on_when_nothing_can_run_and_calls_what_is_due_in_order() -> None:
    received: list[tuple[str, float]] = []

    async def main() -> None:
        time = virtual_time()
        for name, when in (("late", 3.0), ("early", 1.0), ("beside", 1.0)):
            time.at(when, lambda name=name: received.append((name, time.time)))  # type: ignore[misc]
        await trio.lowlevel.checkpoint()
        assert received == []
        await trio.sleep(2.0)
        received.append(("slept", trio.current_time()))
        await trio.sleep(2.0)

    deterministic(1, main)
    assert received == [("early", 1.0), ("beside", 1.0), ("slept", 2.0), ("late", 3.0)]


def test_the_command_runs_seeds_and_a_schedule(tmp_path: Path) -> None:
    history, path = tmp_path / "h.jsonl", tmp_path / "s.json"
    done = CliRunner().invoke(main, ["run", "--profile", "shell", "--seeds", "2", "--seed", "8", "--json"])
    assert done.exit_code == 0, done.output
    report = json.loads(done.output[done.output.index("{") :])
    assert (report["seeds"], report["failed"]) == (2, 0)
    path.write_text(draw_shell(9).to_json())
    done = CliRunner().invoke(main, ["run", "--schedule", str(path), "--history", str(history), "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["trace"] == run_shell(draw_shell(9)).trace
    assert check_history(read_history([history])) == []
    done = CliRunner().invoke(main, ["diagram", str(history), "-o", str(tmp_path / "h.html")])
    assert done.exit_code == 0, done.output


def test_a_rule_is_left_out_of_the_shell_too_and_its_runs_are_not_shrunk() -> None:
    shell = ["--profile", "shell", "--seed", "2"]
    done = CliRunner().invoke(main, ["run", *shell, "--without", "hold-majority-1"])
    assert done.exit_code == 1, done.output
    assert "BROKEN exclusive holds" in done.output
    done = CliRunner().invoke(main, ["shrink", *shell])
    assert "runs of the shell are not shrunk" in done.output
