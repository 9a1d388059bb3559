"""Drawn seeds can be written out packet by packet, and failing ones become small, before the same checker."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from quorumq.history import Row
from sim.__main__ import main
from sim.replay import replay
from sim.rules import rule_named
from sim.runner import run_schedule
from sim.schedule import Schedule, draw
from sim.shrink.minimal import minimal
from sim.shrink.shrinker import checker_of, time_of
from sim.shrink.simpler import PLAIN, fitted, richness, smaller, with_only

RULE, SEED = "hold-majority-1", 19
PAGE = Path(__file__).parents[2] / "docs/verification.md"


def test_the_page_names_a_seed_that_breaks_a_promise_without_the_rule() -> None:
    """A change that gives the seed another run has to change the page, too."""
    assert re.findall(r"--seed (\d+) --without (\S+)", PAGE.read_text()) == 2 * [(str(SEED), RULE)]
    assert replay(draw(SEED), rule_named(RULE)).violations


def test_the_page_follows_a_message_of_its_seed(tmp_path: Path) -> None:
    text = PAGE.read_text()
    ((message, seed),) = re.findall(r"diagram h\.jsonl --follow '(.*)'   # of seed (\d+)", text)
    assert f"sim run --seed {seed} --history h.jsonl" in text
    history = str(tmp_path / "h.jsonl")
    assert CliRunner().invoke(main, ["run", "--seed", seed, "--history", history]).exit_code == 0
    followed = CliRunner().invoke(main, ["diagram", history, "--follow", message])
    assert followed.exit_code == 0, followed.output


@given(st.lists(st.integers(0, 60), unique=True), st.sets(st.integers(0, 60)))
def test_a_minimal_part_is_what_is_needed_and_no_more(items: list[int], needed: set[int]) -> None:
    expected = needed & set(items)
    asked: list[list[int]] = []

    def holds(part: list[int]) -> bool:
        asked.append(part)
        return expected <= set(part)

    assert minimal(items, holds) == [item for item in items if item in expected]
    assert len(asked) <= 4 + 4 * (len(expected) + 1) * (len(items).bit_length() + 1)


def test_no_item_can_be_left_out_of_a_minimal_part_whatever_goes_together() -> None:
    def holds(part: list[int]) -> bool:
        return (3 in part) == (4 in part) and sum(part) >= 20

    least = minimal(range(12), holds)
    assert holds(least)
    assert not any(holds([other for other in least if other != item]) for item in least)


@pytest.mark.parametrize(
    "seed", [4, 7]
)  # a network that loses and doubles; connections that keep their order
def test_a_run_with_every_packet_written_out_is_the_same_run(seed: int) -> None:
    schedule = draw(seed)
    plain = run_schedule(schedule, keep=True)
    traced = run_schedule(schedule, traced=True)
    assert traced.trace == plain.trace
    explicit = dataclasses.replace(schedule, packets=tuple(traced.log))
    again = run_schedule(Schedule.from_json(explicit.to_json()), keep=True)

    def fields(rows: list[Row]) -> list[Row]:
        return rows[1:]  # the first one has the schedule

    assert fields(again.rows) == fields(plain.rows)
    assert again.counts["events"] == plain.counts["events"]


def test_a_packet_that_is_not_named_takes_the_mean_delay() -> None:
    schedule = dataclasses.replace(draw(4), packets=(), faults=(), ends=1.5)
    log = run_schedule(schedule, traced=True).log
    sent = [packet for packet in log if packet.fate != "drawn"]
    away = schedule.options.latency + schedule.options.distance
    assert {packet.delays for packet in sent} <= {(schedule.options.latency,), (away,)}


def test_a_run_may_end_early() -> None:
    outcome = run_schedule(dataclasses.replace(draw(4), ends=0.75), keep=True)
    assert outcome.rows[-1]["at"] <= 0.75
    assert not any(row["kind"] == "phase" and row["phase"] == "healed" for row in outcome.rows)
    assert not outcome.violations


def test_a_smaller_schedule_can_run() -> None:
    schedule = draw(26)
    assert richness(with_only(schedule.options, [])) == []
    assert richness(schedule.options) == [n for n in PLAIN if getattr(schedule.options, n) != PLAIN[n]]
    for other in smaller(schedule):
        assert other != schedule
        assert other == fitted(other)
    few = fitted(dataclasses.replace(schedule, options=dataclasses.replace(schedule.options, fault_time=0.0)))
    assert few.faults == ()


def test_a_violation_tells_its_checker_and_its_time() -> None:
    assert checker_of("exclusive holds at 2.0596 s: c.1.8[0] at 3 s: x") == "exclusive holds"
    assert time_of("exclusive holds at 2.0596 s: c.1.8[0] was") == 2.0596
    raised = "raised at 0.9959 s: SimError at sim/knowledge.py:81: node b knows at 3.0 s: x"
    assert checker_of(raised) == "raised SimError at sim/knowledge.py"
    assert time_of(raised) == 0.9959


def test_the_command_writes_a_small_schedule(tmp_path: Path) -> None:
    output = tmp_path / "small.json"
    command = ["shrink", "--seed", str(SEED), "--without", RULE, "--json", "-o", str(output)]
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 0, done.output
    fields = json.loads(done.output)
    assert fields["finished"]
    assert fields["kept_with_all_rules"]
    assert fields["after"]["faults"] == 0
    assert fields["after"]["special"] < 20 < fields["before"]["special"]
    schedule = Schedule.from_json(output.read_text())
    assert checker_of(replay(schedule, rule_named(RULE)).violations[0]) == fields["checker"]
    ran = CliRunner().invoke(main, ["run", "--schedule", str(output), "--without", RULE])
    assert ran.exit_code == 1, ran.output
    assert fields["violation"] in ran.output
    assert replay(schedule).violations == []
    again = ["shrink", "--schedule", str(output), "--without", RULE, "-o", str(output)]
    done = CliRunner().invoke(main, again)
    assert done.exit_code == 0, done.output
    assert "as small as it gets" in done.output


def test_the_command_says_that_nothing_fails(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["shrink", "--seed", "3", "-o", str(tmp_path / "none.json")])
    assert done.exit_code == 1
    assert "nothing to shrink" in done.output
    assert not list(tmp_path.iterdir())
    done = CliRunner().invoke(main, ["shrink"])
    assert done.exit_code == 2
    done = CliRunner().invoke(main, ["shrink", "--seed", "3", "--without", "no-such-rule"])
    assert "no rule is called" in done.output
