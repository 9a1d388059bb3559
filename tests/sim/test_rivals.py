"""Other designs beside quorumq (sim/rivals): complete without faults, and each claim about them is seen in a run.

The schedules of the claims are in docs/rivals; docs/rivals.md tells their stories and names the commands.
"""

from __future__ import annotations

import ast
import dataclasses
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from sim.__main__ import main
from sim.command_line import write_rows
from sim.rivals import campaign
from sim.rivals.command import rivals
from sim.rivals.designs import DESIGNS, start
from sim.rivals.figures import Figures, longest_stop, measure
from sim.rivals.harness import Knobs, Run
from sim.rivals.log.assignors import ASSIGNORS, cooperative
from sim.rivals.log.wire import Entry, Pull, Pulled
from sim.rivals.machine import Machine
from sim.rivals.oracle import Term
from sim.rivals.plan import KINDS, draw
from sim.rivals.workload import Key
from sim.schedule import Schedule

ROOT = Path(__file__).parents[2]
SCHEDULES = ROOT / "docs" / "rivals"

EAGER = Knobs(cooperative=False)
NO_RELEASE = Knobs(release=False)
BEFORE = Knobs(commit="before")


def played(design: str, schedule: Schedule, knobs: Knobs | None = None) -> tuple[Run, Figures]:
    run = start(design, schedule, knobs)
    run.run()
    return run, measure(run)


def figures(design: str, schedule: Schedule, knobs: Knobs | None = None) -> Figures:
    return played(design, schedule, knobs)[1]


def total(design: str, kind: str, seeds: range, knobs: Knobs | None = None, **options: object) -> Figures:
    result = Figures()
    for seed in seeds:
        result.add(figures(design, draw(seed, kind, **options), knobs))
    return result


def differing(schedule: Schedule, **options: object) -> Schedule:
    return dataclasses.replace(schedule, options=dataclasses.replace(schedule.options, **options))  # type: ignore[arg-type]


def calm(schedule: Schedule) -> Schedule:
    """The same without its faults."""
    return dataclasses.replace(schedule, faults=())


@pytest.mark.parametrize("design", DESIGNS)
def test_without_faults_everything_is_delivered_once(design: str) -> None:
    """Of approach A only where one consumer asks: see `race`."""
    found = total(design, "none", range(5), consumers=1 if design == "earliest" else 4)
    assert (found.lost, found.duplicates, found.after_ack, found.overlaps) == (0, 0, 0, 0)
    assert found.deliveries == found.confirmed > 300


def test_rivals_are_no_straw_men() -> None:
    """Each makes at least half of quorumq's deliveries per network message."""
    least = 0.5 / total("quorumq", "none", range(3)).rates()["messages per delivery"]
    for design in DESIGNS:
        assert 1 / total(design, "none", range(3)).rates()["messages per delivery"] >= least, design


@pytest.mark.parametrize("design", ["literal", "provider", "log"])
def test_nothing_is_lost_under_all_faults(design: str) -> None:
    """No claim says that B, C or a log that commits after handling loses anything. A may starve a message."""
    assert total(design, "mixed", range(12)).lost == 0


@pytest.mark.parametrize("design", DESIGNS)
def test_histories_are_histories(design: str, tmp_path: Path) -> None:
    """In the format of docs/history.md: every line is checked as it is written."""
    run, _ = played(design, draw(1, "mixed"))
    write_rows(tmp_path / "h.jsonl", run.world.rows)
    assert {"publish", "store", "deliver", "ack", "fault"} <= {row["kind"] for row in run.world.rows}


def test_one_seed_is_one_run_in_any_process() -> None:
    script = (
        "from sim.rivals.designs import DESIGNS, start\nfrom sim.rivals.plan import draw\n"
        "for design in DESIGNS:\n  run = start(design, draw(3, 'mixed'))\n  run.run()\n  print(run.world.trace())"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    traces = {
        subprocess.run(
            [sys.executable, "-c", script], env={**env, "PYTHONHASHSEED": seed}, check=True, text=True,
            stdout=subprocess.PIPE,
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(traces) == 1
    assert len(set(traces.pop().split())) == len(DESIGNS)


def test_an_answer_to_a_round_from_before_a_restart_counts_in_no_other() -> None:
    """The answer to a STORE came to a HOLD of the same number: the run ended, or a vote counted that nobody gave."""
    assert figures("literal", draw(629, "mixed")).lost == 0


def test_the_core_is_not_imported() -> None:
    """Rivals share quorumq's simulator, not its rules; quorumq itself stands beside them."""
    for path in (ROOT / "sim" / "rivals").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            module = node.module if isinstance(node, ast.ImportFrom) else ""
            if path.name != "majority.py" and module and module.startswith("quorumq."):
                assert module in ("quorumq.history", "quorumq.core.values.types"), path


# ------------------------------------------------------------------------------------------------ the note's claims


def skewed_clocks_make_duplicates(schedule: Schedule) -> None:
    assert figures("earliest", schedule).overlaps
    assert not figures("earliest", differing(schedule, wall_offset=0.0)).overlaps


def delayed_responses_make_duplicates(schedule: Schedule) -> None:
    assert figures("earliest", schedule).overlaps
    assert not figures("earliest", differing(schedule, spikes=0.0)).overlaps


def two_requests_at_once_make_duplicates(schedule: Schedule) -> None:
    """In a healthy cluster: an earlier request takes what a later one has won already."""
    assert not schedule.faults
    assert figures("earliest", schedule).overlaps
    assert not figures("literal", schedule).duplicates


def not_always_one_request_succeeds(schedule: Schedule) -> None:
    """What losers hold is not given back: each keeps the others out, for ever."""
    found = figures("earliest", schedule)
    assert found.unwon
    assert found.lost
    assert not figures("quorumq", schedule).unwon


def a_lost_leader_sends_again(schedule: Schedule) -> None:
    knobs = Knobs(gap=0.2)
    assert figures("provider", schedule, knobs).overlaps
    assert not figures("provider", calm(schedule), knobs).duplicates
    assert not figures("quorumq", schedule).overlaps


def holds_deadlock_above_three_replicas(schedule: Schedule) -> None:
    """Without the optional step nobody gets a message for a hold's time; with it, or with three replicas, somebody."""
    assert schedule.options.nodes == 5
    assert figures("literal", schedule, NO_RELEASE).unwon
    assert not figures("literal", schedule).unwon
    assert not figures("literal", differing(schedule, nodes=3, rf=3), NO_RELEASE).unwon
    assert not figures("quorumq", schedule).unwon


def a_restart_forgets_holds(schedule: Schedule) -> None:
    assert figures("literal", schedule).overlaps
    assert not figures("quorumq", schedule).overlaps


def partitions_make_duplicates(schedule: Schedule) -> None:
    """But not at once: who was cut off acks too late."""
    found = figures("literal", schedule)
    assert found.duplicates
    assert not found.overlaps


def fewer_come_than_are_there(schedule: Schedule) -> None:
    books = played("literal", schedule)[0].books
    assert 0 <= books.received <= books.asked / 2
    assert books.asked


def contention_costs_retries(schedule: Schedule) -> None:
    assert figures("literal", schedule).lost_rounds > 3 * figures("quorumq", schedule).lost_rounds
    assert not figures("literal", differing(schedule, consumers=1)).lost_rounds


def a_poison_message_blocks_its_partition(schedule: Schedule) -> None:
    assert figures("log", schedule).rates()["behind poison, mean s"] > 1.5
    assert figures("quorumq", schedule).rates()["behind poison, mean s"] < 0.1


def a_rebalance_stops_the_world(schedule: Schedule) -> None:
    """One consumer is dead, another one slow to join: all wait for it, or with the cooperative protocol some do."""
    stops = [
        longest_stop(played(design, schedule, knobs)[0].world.rows, 3.8, 6.5)
        for design, knobs in (("log", EAGER), ("log", Knobs()), ("quorumq", Knobs()))
    ]
    assert stops[0] > 1.5 > 0.7 > stops[1] > stops[2]


def a_crash_makes_the_log_handle_again_or_lose(schedule: Schedule) -> None:
    after, before = figures("log", schedule), figures("log", schedule, BEFORE)
    assert after.duplicates
    assert not after.lost
    assert before.lost
    assert not figures("log", calm(schedule)).duplicates


def a_stalled_consumer_goes_on_with_what_others_have(schedule: Schedule) -> None:
    assert figures("log", schedule).overlaps
    assert not figures("quorumq", schedule).overlaps


CLAIMS: dict[str, Callable[[Schedule], None]] = {
    "earliest-skew": skewed_clocks_make_duplicates,
    "earliest-delayed": delayed_responses_make_duplicates,
    "earliest-race": two_requests_at_once_make_duplicates,
    "earliest-starved": not_always_one_request_succeeds,
    "provider-resend": a_lost_leader_sends_again,
    "literal-deadlock": holds_deadlock_above_three_replicas,
    "literal-restart": a_restart_forgets_holds,
    "literal-partition": partitions_make_duplicates,
    "literal-few": fewer_come_than_are_there,
    "literal-contention": contention_costs_retries,
    "log-poison": a_poison_message_blocks_its_partition,
    "log-rebalance": a_rebalance_stops_the_world,
    "log-crash": a_crash_makes_the_log_handle_again_or_lose,
    "log-zombie": a_stalled_consumer_goes_on_with_what_others_have,
}


@pytest.mark.parametrize("name", CLAIMS)
def test_claims(name: str) -> None:
    CLAIMS[name](Schedule.from_json((SCHEDULES / f"{name}.json").read_text()))


def commands() -> list[str]:
    """The commands of docs/rivals.md, each once."""
    found = re.findall(r"python -m sim (rivals[^`#\n]*)", (ROOT / "docs" / "rivals.md").read_text())
    return [command.strip() for command in dict.fromkeys(found)]


def test_every_claim_is_told() -> None:
    assert {path.stem for path in SCHEDULES.glob("*.json")} == set(CLAIMS)
    for name in CLAIMS:
        assert any(f"--schedule docs/rivals/{name}.json" in command for command in commands())


@pytest.mark.parametrize("command", commands())
def test_commands_of_the_page(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs one schedule is run; of the others the options are read."""
    monkeypatch.chdir(ROOT)
    words = command.split()
    if "--schedule" not in words:
        rivals.make_context("rivals", words[1:])
        return
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    assert "duplicates per 10,000" in result.output


def test_tombstones_are_read_twice() -> None:
    """Once before a key is enqueued, once before it is given out; more where the leader changes."""
    assert 2.0 <= total("provider", "none", range(2)).rates()["tombstone reads per message"] < 2.2
    assert total("provider", "crash", range(4)).rates()["tombstone reads per message"] > 2.3


# ------------------------------------------------------------------------------------------------------- the log


@pytest.mark.parametrize(("kind", "seeds"), [("network", range(10, 19)), ("mixed", (31, 36, 532))])
def test_replicas_of_a_log_agree_on_what_is_safe(kind: str, seeds: Sequence[int]) -> None:
    """A follower that had asked twice put the same entries into its log twice; in seed 532 it was then elected."""
    for seed in seeds:
        run, found = played("log", draw(seed, kind))
        brokers = [machine.core for machine in run.machines.values()]
        for logs in zip(*(broker.logs for broker in brokers), strict=True):
            high = min(log.high for log in logs)
            assert all(log.entries[:high] == logs[0].entries[:high] for log in logs), seed
        assert found.lost == 0


def test_a_follower_takes_an_answer_once_and_none_to_an_earlier_life(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has forgotten by then how far its log went when it asked."""
    asked: list[Pull] = []
    monkeypatch.setattr(Machine, "send", lambda machine, to, message: asked.append(message))
    run = start("log", calm(draw(0, "none")))
    machine = run.machines["b"]
    for life in (0, 1):
        machine.life, machine.core = life, None
        machine.boot(life)
        machine.core.on_terms({0: Term("a", 1, ("a", "b", "c"))})
    entry = Entry(1, Key(0, "p0.1.0.1", 0, 0), b"x")
    first, second = asked
    for pull, length in ((first, 0), (second, 1), (second, 1)):
        machine.core.on_pulled("a", Pulled(pull.number, {0: (1, -1, (entry,), 0)}))
        assert len(machine.core.logs[0].entries) == length


def test_a_follower_tells_a_new_leader_only_what_is_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it says there counts for the high watermark; a crash would take back what is on its way to the disk."""
    asked: list[Pull] = []
    monkeypatch.setattr(Machine, "send", lambda machine, to, message: asked.append(message))
    run = start("log", calm(draw(0, "none")))
    machine = run.machines["b"]
    machine.boot(0)
    machine.core.on_terms({0: Term("a", 1, ("a", "b", "c"))})
    entries = tuple(Entry(1, Key(0, "p0.1.0.1", at, 0), b"x") for at in range(2))
    machine.core.on_pulled("a", Pulled(asked[0].number, {0: (1, -1, entries[:1], 0)}))
    run.world.run(0.5)
    assert [pull.ends[0] for pull in asked] == [(1, 0, 0), (1, 1, 1)]
    machine.core.on_pulled("a", Pulled(asked[1].number, {0: (1, -1, entries[1:], 0)}))
    machine.core.on_terms({0: Term("c", 2, ("b", "c"))})
    assert asked[-1].ends[0] == (2, 1, 1)
    machine.core.on_pulled("c", Pulled(asked[-1].number, {0: (2, -1, entries[1:], 0)}))
    run.world.run(1.0)
    assert machine.core.logs[0].entries == list(entries)
    assert asked[-1].ends[0] == (2, 2, 1)


@given(
    st.sampled_from(sorted(ASSIGNORS)),
    st.dictionaries(st.text("abc", min_size=1, max_size=2), st.lists(st.integers(0, 9), unique=True), min_size=1),
    st.integers(0, 10),
)  # fmt: skip
def test_assignors_give_each_partition_to_one(name: str, owned: dict[str, list[int]], count: int) -> None:
    """Shares differ by one at most; the cooperative step takes nothing from anybody."""
    taken: dict[int, str] = {}
    members = {m: [p for p in parts if taken.setdefault(p, m) == m] for m, parts in owned.items()}
    result = ASSIGNORS[name](members, range(count))
    assert sorted(p for given_ in result.values() for p in given_) == list(range(count))
    sizes = [len(given_) for given_ in result.values()]
    assert max(sizes) - min(sizes) <= 1
    if name == "sticky":
        kept = sum(len(set(result[m]) & set(members[m])) for m in members)
        others = ASSIGNORS["roundrobin"](members, range(count))
        assert kept >= sum(len(set(others[m]) & set(members[m])) for m in members)
    for member, given_ in cooperative(members, result).items():
        assert all(taken.get(p, member) == member for p in given_)


@pytest.mark.parametrize(
    "knobs", [Knobs(assignor=name, cooperative=c) for name in ASSIGNORS for c in (True, False)]
)
def test_each_rebalance_protocol_loses_nothing(knobs: Knobs) -> None:
    assert total("log", "mixed", range(4), knobs).lost == 0


def test_static_members_come_back_without_a_rebalance() -> None:
    """A consumer that is away for less than its session: a member with an id of its own finds what it had."""
    plan = draw(0, "consumer")
    plan = dataclasses.replace(
        plan, faults=(dataclasses.replace(plan.faults[0], at=2.0, kind="die", seconds=0.5),)
    )
    generations = {}
    for static in (False, True):
        run, _ = played("log", plan, Knobs(static=static))
        generations[static] = max(
            m.core.group.generation for m in run.machines.values() if m.core.group is not None
        )
    assert generations[True] < generations[False]


# ------------------------------------------------------------------------------------------------------ the command


def test_the_command_prints_keeps_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep, html = tmp_path / "kept.jsonl", tmp_path / "page.html"
    asked = [
        "rivals",
        "--seeds",
        "2",
        "--design",
        "literal",
        "--design",
        "log",
        "--kind",
        "none",
        "--kind",
        "poison",
    ]
    first = CliRunner().invoke(main, [*asked, "--json", "--keep", str(keep)])
    assert first.exit_code == 0, first.output
    found = json.loads(first.stdout)["designs"]
    assert (
        found["log"]["poison"]["behind poison, mean s"] > found["literal"]["poison"]["behind poison, mean s"]
    )
    assert found["literal"]["none"]["runs"] == 2
    keep.write_text(keep.read_text() + '{"part": ["literal"')  # it was killed while it wrote
    lines = keep.read_text().splitlines(keepends=True)
    keep.write_text("".join(lines[:3]) + lines[3][:40])
    assert CliRunner().invoke(main, [*asked, "--keep", str(keep)]).exit_code == 0
    assert sorted(keep.read_text().splitlines()) == sorted(line.strip() for line in lines[:-1])
    monkeypatch.setattr(campaign, "run_part", None)  # all is there: nothing is run again
    again = CliRunner().invoke(main, [*asked, "--keep", str(keep), "--html", str(html)])
    assert again.exit_code == 0, again.output
    assert "duplicates per 10,000" in again.stdout
    assert html.read_text().count("<svg") == 7
    other = CliRunner().invoke(main, [*asked, "--keep", str(keep), "--set", "gap=2"])
    assert other.exit_code == 1
    assert "other settings" in other.output


def test_the_command_runs_one_schedule(tmp_path: Path) -> None:
    history = tmp_path / "h.jsonl"
    schedule = str(SCHEDULES / "literal-few.json")
    result = CliRunner().invoke(
        main, ["rivals", "--design", "literal", "--schedule", schedule, "--history", str(history), "--json"]
    )
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["received of asked"] <= 0.5
    assert len(history.read_text().splitlines()) > 50


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--set", "hold=3"], "'hold' must be one of release, gap"),
        (["--set", "gap=soon"], "must be a float"),
        (["--history", "h", "--design", "log"], "one --kind or a --schedule"),
    ],
)
def test_the_command_says_what_is_wrong(args: list[str], says: str) -> None:
    result = CliRunner().invoke(main, ["rivals", *args])
    assert result.exit_code == 2
    assert says in result.output


def test_each_kind_of_fault_happens() -> None:
    for kind in KINDS:
        drawn = [draw(seed, kind) for seed in range(20)]
        harmful = [plan for plan in drawn if plan.faults or plan.options != draw(0, "none").options]
        assert bool(harmful) == (kind != "none"), kind
