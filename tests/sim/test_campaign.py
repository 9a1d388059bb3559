"""Random seeds pass, on both journals, with every core's own check; and the command says so."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from unittest.mock import Mock

import pytest
from click.testing import CliRunner
from rich.console import Console

import sim.campaign
from quorumq.core.messages import HoldReply, ReceiptPart, RejectRequest
from quorumq.core.messages.effects import Effect
from quorumq.core.node.request_router import RequestRouter
from quorumq.core.node.vote_router import VoteRouter
from quorumq.core.partition.batches import Batches, Missing
from quorumq.core.requests.context import Context
from quorumq.core.requests.fetch import FetchCoordinator
from quorumq.core.requests.holdround import HELD_DEFERRAL_MAX_S, HoldRound
from quorumq.core.requests.placing import Placing
from quorumq.core.requests.remote import SplitCoordinator, SubFetch
from quorumq.core.values.types import Incarnation, Now, Span
from quorumq.history.reader import read_history
from sim.__main__ import main
from sim.campaign import Report, run_campaign
from sim.checkers import check_history
from sim.drain import dead_letters_of
from sim.fault_plan import UPRIGHT
from sim.rules import patched, rule_named
from sim.rules.rule import Patch
from sim.run_command import print_report
from sim.runner import CPU_LIMIT_S, Outcome, run_schedule
from sim.schedule import draw
from sim.sometimes import ENOUGH_SEEDS, SOMETIMES
from sim.topics import OUTPUTS
from sim.world import SimError
from tests.core.cluster import Cluster
from tests.core.steps import DEATH, fetch, outcomes, published, receipts, replica_of


@pytest.mark.parametrize(
    ("profile", "seeds"),
    [("swarm", 12), ("store", 2), ("checked", 1), ("moves", 4), ("quiet", 1), ("clocks", 4), ("calm", 2)],
)
def test_seeds_pass(profile: str, seeds: int) -> None:
    report = run_campaign(profile, 500, seeds, 1)
    assert report.failures == []
    assert report.counts["delivered"] > 10 * seeds


def pulls_after_the_grace(self: Batches, entry: Missing, now: Now) -> bool:
    return entry.since + self.node.config.sync_grace <= now.mono


_answer_or_wait = SplitCoordinator._answer_or_wait


def waits_for_other_sub_fetches(
    self: SplitCoordinator, context: Context, now: Now, ended: SubFetch | None = None
) -> list[Effect]:
    return _answer_or_wait(self, context, now)


_count = FetchCoordinator._count


def deferrals_at_once(
    self: FetchCoordinator,
    context: Context,
    round_: HoldRound,
    sender: str,
    start: Incarnation,
    reply: HoldReply,
    now: Now,
) -> list[Effect]:
    """Count a reply, and defer a held message as soon as one says so."""
    for span, _, remaining in reply.refused:
        if remaining > 0 and sender != context.state.me:
            until = now.mono + min(remaining, HELD_DEFERRAL_MAX_S)
            round_.replica.learning.defer(self.request.group, span, until, now)
    return _count(self, context, round_, sender, start, reply, now)


DEFERRALS_END_BEFORE_THEIR_ROUND = (
    (FetchCoordinator, "_count", deferrals_at_once),
    (HoldRound, "note_held", lambda self, span, remaining: None),
    (HoldRound, "silent", lambda self, peers, now: 0),  # else such a round ends at once
)


@pytest.mark.parametrize(
    ("seed", "plants"),
    [
        (1012, ((Batches, "_is_overdue", pulls_after_the_grace),)),
        (19, ((VoteRouter, "_refuse_untrusted", lambda *args: []),)),
        (27000466, ((Placing, "wait_to_adopt", lambda *args: []),)),
        (1009, ((SplitCoordinator, "_answer_or_wait", waits_for_other_sub_fetches),)),
        (24000085, DEFERRALS_END_BEFORE_THEIR_ROUND),
    ],
)
def test_the_calm_profile_finds_long_waits(seed: int, plants: tuple[Patch, ...]) -> None:
    assert all(fault.kind == "freeze" for fault in draw(seed, "calm").faults)
    assert run_schedule(draw(seed, "calm")).violations == []
    with patched(plants):
        violations = run_schedule(draw(seed, "calm")).violations
    assert violations
    assert all(violation.startswith("no long waits") for violation in violations)


def test_the_calm_profile_finds_a_partition_that_is_passed_over() -> None:
    """Each FETCH begins with the first partition: earlier, each one that was passed on did so."""
    schedule = draw(29600387, "calm")
    assert run_schedule(schedule).violations == []
    with patched(((RequestRouter, "_first_of", lambda self, partitions: 0),)):
        violations = run_schedule(schedule).violations
    assert violations
    assert all(violation.startswith("each in turn") for violation in violations)


def test_in_the_clocks_profile_one_clock_is_wrong_and_nothing_else_goes_down() -> None:
    for seed in range(30):
        faults = draw(seed, "clocks").faults
        assert [fault for fault in faults if fault.kind not in UPRIGHT] == [
            fault for fault in faults if fault.kind == "wrong-clock" and len(fault.nodes) == 1
        ]
        assert sum(fault.kind == "wrong-clock" and fault.amount > 100.0 for fault in faults) == 1


def test_all_dead_letters_are_listed_in_the_end_however_many_pages_they_take() -> None:
    cluster = Cluster()
    published(cluster, 600)
    got = receipts(cluster.ask("a", fetch(most=600)))
    every_other = [
        ReceiptPart(item.receipt, (Span(span.producer_id, at, at + 1),))
        for item in got
        for span in item.spans
        for at in range(span.start, span.stop, 2)
    ]
    assert set(outcomes(cluster.ask("a", RejectRequest(tuple(every_other), 0.0, DEATH)))) == {"ok"}
    now = cluster.clocks("b")
    listed = [item.span.start for item in dead_letters_of(replica_of(cluster, "b"), "g", now)]
    assert listed == list(range(0, 600, 2))


@pytest.mark.soak
@pytest.mark.parametrize("seed", [13500057, 13500108, 8100025, 8200174])
def test_seeds_of_moves_that_once_failed_pass(seed: int) -> None:
    """A guest of a pattern and of a topic that refuses it; a deletion that a removed node had to hear of; a removal
    beside a topic on that node; a node that lost a slot before it had joined."""
    assert run_schedule(draw(seed, "moves")).violations == []


def test_a_fetch_is_noted_for_each_topic_in_which_it_may_make_the_group() -> None:
    """Also for the outputs: a group that is made there late need not get what all others have settled."""
    outcome = run_schedule(draw(8200219, "moves"), keep=True)
    assert outcome.violations == []
    asked: dict[tuple[str, str], None] = {}
    late = 0
    for row in outcome.rows:
        if row["kind"] == "fetch":
            asked[row["topic"], row["group"]] = None
        elif row["kind"] == "register" and row["group"].startswith("guest"):
            assert (row["topic"], row["group"]) in asked
            late += row["topic"] == OUTPUTS
    assert late


@pytest.mark.soak
def test_a_campaign_sees_everything_that_it_must() -> None:
    report = run_campaign("swarm", 0, 3000, 2)
    assert (report.failures, report.never_seen) == ([], [])


def test_a_campaign_that_missed_something_fails() -> None:
    report = Report("swarm")
    for seed in range(ENOUGH_SEEDS):
        report.add(Outcome(seed, [], "", {}, dict.fromkeys(SOMETIMES[1:], 1)))
    assert report.never_seen == [SOMETIMES[0]]
    assert not report.ok


def test_two_jobs_report_what_one_does() -> None:
    one, two = run_campaign("swarm", 90, 3, 1), run_campaign("swarm", 90, 3, 2)
    times = ("cpu",)
    counts = [{name: n for name, n in report.counts.items() if name not in times} for report in (one, two)]
    assert counts[0] == counts[1]
    assert (one.seen, one.traces) == (two.seen, two.traces)


def test_a_core_that_raises_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    from quorumq.core.partition.replica import Replica

    monkeypatch.setattr(Replica, "on_hold", Mock(side_effect=AssertionError("made to fail")))
    assert "made to fail" in run_schedule(draw(1)).violations[0]


def test_a_core_that_loops_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    from quorumq.core.partition.replica import Replica

    def endless(self: object, *args: object) -> None:
        while True:
            pass

    monkeypatch.setattr(Replica, "on_hold", endless)
    monkeypatch.setattr("sim.runner.CPU_LIMIT_S", 0.2)
    violation = run_schedule(draw(1)).violations[0]
    assert SimError.__name__ in violation
    assert "does not end" in violation
    assert CPU_LIMIT_S > 10


def test_the_command_writes_a_history_that_the_checkers_can_read(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    for seed in range(9, 30):  # only some draws deliver and ack messages
        done = CliRunner().invoke(main, ["run", "--seed", str(seed), "--history", str(path)])
        assert done.exit_code == 0, done.output
        assert json.loads(done.output.splitlines()[1])["seed"] == seed
        rows = list(read_history([path]))
        latest = any(row.get("start") == "latest" for row in rows)  # such a group may skip all of it
        expected = {"deliver", "ack", "publish", "hold_won", "phase", "start"}
        if expected <= {row["kind"] for row in rows} and not latest:
            break
    else:
        raise AssertionError("no seed of these delivers and acks anything to a group from the beginning")
    assert check_history(rows) == []
    without = [row for row in rows if row["kind"] != "ack"]
    assert "no loss" in {violation.promise for violation in check_history(without)}


def test_the_command_runs_a_schedule_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "schedule.json"
    path.write_text(draw(9).to_json())
    done = CliRunner().invoke(main, ["run", "--schedule", str(path), "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["trace"] == run_schedule(draw(9)).trace
    path.write_text("{}")
    done = CliRunner().invoke(main, ["run", "--schedule", str(path)])
    assert done.exit_code == 1
    assert "not a schedule" in done.output


def test_the_command_runs_many_seeds() -> None:
    done = CliRunner().invoke(main, ["run", "--seeds", "5", "--json"])
    assert done.exit_code == 0, done.output
    report = json.loads(done.output[done.output.index("{") :])
    assert report["seeds"] == 5
    assert report["ok"]
    counts = report["counts"]
    assert min(counts["messages"] / 100, counts["sent Hold"], counts["sent Fetch"]) > 5
    assert any(name.startswith("fault ") for name in counts)


def test_a_campaign_that_is_stopped_reports_what_it_has_come_to(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run_campaign("quiet", 42, 1, 1)
    run_seed = sim.campaign.run_seed

    def stopped(seed: int, profile: str) -> Outcome:
        if seed == 43:
            raise KeyboardInterrupt
        return run_seed(seed, profile)

    monkeypatch.setattr("sim.campaign.run_seed", stopped)
    command = ["run", "--profile", "quiet", "--seed", "42", "--seeds", "3", "--json"]
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 130, done.output
    assert "stopped: --seed 43 --seeds N goes on" in done.output
    report = json.loads(done.output[done.output.index("\n{") :])
    assert report["traces"] == {str(seed): trace for seed, trace in whole.traces.items()}


def test_a_campaign_ends_when_too_many_seeds_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sim.run_command.FAILURES_MAX", 1)
    with patched(rule_named("hold-majority-1").patches):
        done = CliRunner().invoke(main, ["run", "--seeds", "1000", "--json"])
    assert done.exit_code == 1, done.output
    report = json.loads(done.output[done.output.index("\n{") :])
    assert (report["failed"], report["seeds"] < 1000) == (1, True)
    assert [failure["seed"] for failure in report["failures"]] == [report["seeds"] - 1]
    assert f"python -m sim shrink --profile swarm --seed {report['seeds'] - 1}" in done.output


def test_a_report_says_what_the_campaign_contained() -> None:
    report = Report("swarm")
    report.add(Outcome(0, [], "", {"fault crash": 2, "fault cut": 1}, {}))
    report.add(Outcome(1, [], "", {"fault crash": 1}, {}))
    console = Console(width=100, record=True, quiet=False, file=io.StringIO())
    print_report(console, report)
    assert re.findall(r"fault (\S+) +│ +(\S+)", console.export_text()) == [("crash", "1.50"), ("cut", "0.50")]
