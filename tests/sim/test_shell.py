"""The production shell in virtual time: seeds pass, one seed is one run, and a rule that is left out is seen."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import trio
from click.testing import CliRunner

from sim.__main__ import main
from sim.real.plan import KINDS
from sim.rules import patched, rule_named
from sim.schedule import Schedule
from sim.shell.network import LineStream, Network
from sim.shell.run import draw_shell, run_shell


def test_one_seed_is_one_run_and_keeps_every_promise() -> None:
    one, two = run_shell(draw_shell(8)), run_shell(draw_shell(8))
    assert one.violations == []
    assert one.rows == two.rows
    assert one.verdict is not None
    assert one.verdict.counts["delivered"] > 10
    assert one.verdict.lines == len(one.rows)


def test_a_rule_that_is_left_out_is_seen() -> None:
    with patched(rule_named("hold-majority-1").patches):
        assert any(
            any(text.startswith("exclusive holds") for text in run_shell(draw_shell(seed)).violations)
            for seed in range(1, 8)
        )


def test_what_a_node_raises_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    from quorumq.core.partition.replica import Replica

    def broken(self: object, *args: object) -> None:
        raise AssertionError("made to fail")

    monkeypatch.setattr(Replica, "on_hold", broken)
    assert run_shell(draw_shell(8)).violations


def test_schedules_have_what_the_shell_can_have() -> None:
    for seed in range(50):
        schedule = draw_shell(seed)
        assert Schedule.from_json(schedule.to_json()) == schedule
        assert all(fault.kind in KINDS for fault in schedule.faults)


async def test_the_network_blocks_one_direction_delays_and_cuts() -> None:
    async with trio.open_nursery() as nursery:
        network = Network(nursery, random.Random(1), 0.001)
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
        assert await four.receive_some() == b"x" * 1000  # what was sent before the end arrives before it
        assert await four.receive_some() == b""
        nursery.cancel_scope.cancel()


def test_the_command_runs_seeds_and_a_schedule(tmp_path: Path) -> None:
    history, path = tmp_path / "h.jsonl", tmp_path / "s.json"
    done = CliRunner().invoke(
        main, ["shell", "--seeds", "2", "--seed", "8", "--json", "--history", str(history)]
    )
    assert done.exit_code == 0, done.output
    facts = json.loads(done.output)
    assert (facts["runs"], facts["failed"]) == (2, 0)
    path.write_text(draw_shell(9).to_json())
    done = CliRunner().invoke(main, ["shell", "--schedule", str(path)])
    assert done.exit_code == 0, done.output
    assert "runs per CPU second" in done.output
    done = CliRunner().invoke(main, ["check", str(history)])
    assert done.exit_code == 0, done.output
    done = CliRunner().invoke(main, ["diagram", str(history), "-o", str(tmp_path / "h.html")])
    assert done.exit_code == 0, done.output
