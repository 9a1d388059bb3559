"""The audit agrees with the simulator's checkers, run by run and promise by promise, and never says more than it knows.

All runs of this file are audited at once: simulated ones, good and broken, and small ones written by hand. Each test
looks at its own runs. Spark's part is in tests/spark/test_audit.py.
"""

from __future__ import annotations

import gc
import gzip
import json
import random
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from click.testing import CliRunner

from quorumq.audit import derived
from quorumq.audit.audit import Audit, audit, conclusion, exit_code, summarised
from quorumq.audit.checker import check as checker_part
from quorumq.audit.context import Context
from quorumq.audit.files import read
from quorumq.audit.findings import GUARANTEES, SHOWN, Finding, Judged, Proof, Where
from quorumq.audit.lines import Lines
from quorumq.audit.moment import seconds
from quorumq.audit.reasons import Unread
from quorumq.cli.main import main
from quorumq.core.values.errors import NotFound, StorageError, UsageError
from quorumq.history import KINDS, Row
from quorumq.history.reader import histories_of
from sim.checkers import check_history
from tests.audit.histories import (
    FAULTS,
    HUNTED_BY_NAME,
    PROMISES,
    Reading,
    caught,
    constant,
    drifting,
    good,
    jumping,
    on_machines,
)
from tests.audit.stories import TWICE, Story, held, stories, text_of

GOOD = 4
ON_MACHINES = 2
MUTANTS = 12
"""One rule in this number is left out in a run; the soak leaves out every one."""
SOAK_GOOD = 1500
SEEDS = (*range(1, 13), 70, *range(13, 70), *range(71, 200))
"""Good runs among which one is found that can take each planted fault; an early one can take the rarest."""


def simulated(seeds: int, mutants: int, mutant_seeds: int) -> Iterator[tuple[str, list[Row]]]:
    """Runs by name."""
    faults = dict(FAULTS)
    for seed in SEEDS:
        if seed > seeds and not faults:
            break
        rows = good(seed)
        if seed <= seeds:
            yield f"good-{seed}", rows
        for name in list(faults):
            plant, guarantee = faults[name]
            made = plant(rows)
            if made is not None and any(
                guarantee in PROMISES.get(it.promise, ()) for it in check_history(made)
            ):
                del faults[name]
                yield f"planted-{name}", made
    assert not faults, f"no good run could take the faults {sorted(faults)}"
    for name in [*HUNTED_BY_NAME][::mutants]:
        seed, rows = caught(name, range(1, mutant_seeds + 1))
        yield f"{name}-{seed}", rows


def of_machines(seeds: int) -> Iterator[tuple[str, list[Row]]]:
    """Runs by name, as several machines with wrong clocks would have written them: good ones, and one of each fault."""
    faults = dict(FAULTS)
    readings: dict[str, Callable[[int], Reading]] = {
        "constant": constant, "drifting": drifting, "jumping": jumping
    }  # fmt: skip
    for seed in SEEDS:
        if seed > seeds and not faults:
            break
        rows = good(seed, full=True)
        if seed <= seeds:
            for name, reading in readings.items():
                yield f"{name}-{seed}", on_machines(f"{name}-{seed}", rows, reading(seed))
        for name in list(faults):
            if name in ("lost", "death-discarded") and not all_serve(rows):
                continue  # that nothing became of a message is sure only where every clock is placed
            plant, guarantee = faults[name]
            made = plant(rows)
            if made is not None and any(
                guarantee in PROMISES.get(it.promise, ()) for it in check_history(made)
            ):
                del faults[name]
                yield f"wrong-clocks-{name}", on_machines(f"wrong-clocks-{name}", made, constant(seed))
    assert not faults, f"no good run could take the faults {sorted(faults)}"


def all_serve(rows: list[Row]) -> bool:
    """Return True if each node won two messages that a client got then, so that its clock can be placed closely."""
    handed = {row["owner"] for row in rows if row["kind"] == "deliver"}
    nodes = {row["who"] for row in rows if row["who"].startswith("node:")}
    won = Counter(row["who"] for row in rows if row["kind"] == "hold_won" and row["owner"] in handed)
    return all(won[node] > 1 for node in nodes)


def audited(paths: Sequence[Path], folder: Path, *, drained: bool = False) -> tuple[Audit, list[Finding]]:
    """Audit files in memory; ``folder`` is an empty one."""
    summary, parts = read(histories_of(map(str, paths)), folder)
    result = audit(summary, parts, drained=drained)
    return result, result.judged.findings


def test_the_collector_does_not_look_at_lines_while_they_are_decoded() -> None:
    text = b"".join(json.dumps(row).encode() + b"\n" for row in good(1, full=True)) * 20
    looked: list[str] = []
    lines = Lines()
    gc.callbacks.append(lambda phase, info: looked.append(phase))
    try:
        lines.add("file", text)
    finally:
        gc.callbacks.pop()
    assert len(lines) > 1_000
    assert looked.count("start") <= 1, "once, when it is on again"
    assert gc.isenabled()


class Seen(NamedTuple):
    """Verdicts of the audit and of the simulator's checkers."""

    verdicts: dict[tuple[str, str], dict[str, Any]]
    violations: list[dict[str, Any]]
    clocks: dict[str, list[dict[str, Any]]]
    remainder: dict[str, Counter[str]]
    latency: dict[str, dict[str, Any]]
    judged: dict[str, set[str]]
    folder: Path


def seen_in(
    folder: Path,
    runs: Iterator[tuple[str, list[Row]]],
    extra: list[Story],
    others: Iterable[tuple[str, list[Row]]] = (),
) -> Seen:
    judged: dict[str, set[str]] = {}
    folder.mkdir(exist_ok=True)
    with (folder / "simulated.jsonl").open("w") as file:
        for name, rows in runs:
            judged[name] = {violation.promise for violation in check_history(rows)}
            file.writelines(json.dumps({**row, "run": name}) + "\n" for row in rows)
    with (folder / "machines.jsonl").open("w") as file:
        for _, rows in others:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    for story in extra:
        (folder / f"{story.run}.jsonl").write_text(text_of(story))
        if story.run == TWICE:
            (folder / "copy.jsonl").write_text(text_of(story))
    result, findings = audited([folder], folder.parent / "parts")
    clocks: dict[str, list[dict[str, Any]]] = {}
    for row in result.clocks:
        clocks.setdefault(row["run"], []).append(row)
    remainder: dict[str, Counter[str]] = {}
    for row in result.remainder:
        remainder.setdefault(row["run"], Counter())[row["kind"]] += row["count"]
    verdicts = {(row["run"], row["guarantee"]): row for row in result.verdicts}
    latency = {row["run"]: row for row in result.latency}
    return Seen(verdicts, [it._asdict() for it in findings], clocks, remainder, latency, judged, folder)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    folder = tmp_path_factory.mktemp("audit") / "in"
    return seen_in(folder, simulated(GOOD, MUTANTS, 1), stories(), of_machines(ON_MACHINES))


def has_checker(row: dict[str, Any]) -> bool:
    """Return True if a checker of the simulator checks for this finding."""
    of_nodes = row["guarantee"] == "G7" and " and not by " in row["text"]
    return not of_nodes and (row["guarantee"] != "G6" or "conflict" in row["text"])


def differences(seen: Seen) -> list[str]:
    """Runs and promises on which checkers and audit disagree."""
    ours: dict[tuple[str, str], str] = {}
    for row in seen.violations:
        if row["verdict"] == "broken" and has_checker(row):
            ours[(row["run"], row["guarantee"])] = row["text"]
    problems = []
    for run, promises in seen.judged.items():
        for promise, guarantees in PROMISES.items():
            texts = [ours[(run, name)] for name in guarantees if (run, name) in ours]
            if bool(texts) != (promise in promises):
                problems.append(f"{run}: {promise}: the judge says {promise in promises}, the audit {texts}")
    return problems


def test_the_audit_agrees_with_the_checkers_on_every_run_and_promise(seen: Seen) -> None:
    assert differences(seen) == []
    broken = Counter(promise for promises in seen.judged.values() for promise in promises)
    assert set(PROMISES) <= set(broken), "every promise is broken in some run, or the test shows nothing"
    assert (
        sum(name.startswith("good-") and not violations for name, violations in seen.judged.items()) == GOOD
    )


@pytest.mark.soak
def test_the_audit_agrees_with_the_checkers_on_thousands_of_runs(tmp_path: Path) -> None:
    assert differences(seen_in(tmp_path / "in", simulated(SOAK_GOOD, 1, 40), [])) == []


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_under_its_guarantee(seen: Seen, fault: str) -> None:
    verdict = seen.verdicts[(f"planted-{fault}", FAULTS[fault][1])]
    assert (verdict["verdict"], verdict["broken"] > 0) == ("broken", True)


def test_kept_promises_hold_and_those_without_an_occasion_are_not_checked(seen: Seen) -> None:
    said = {row["verdict"] for (run, _), row in seen.verdicts.items() if run.startswith("good-")}
    assert said == {"holds", "not checked"}
    assert all(
        (row["verdict"] == "holds") == (row["checked"] > 0)
        for (run, _), row in seen.verdicts.items()
        if run.startswith("good-")
    )


@pytest.mark.parametrize(
    ("run", "guarantee", "verdict"),
    [
        ("apart", "G2", "holds"),
        ("a-day-turned", "G2", "holds"),
        ("close", "G2", "holds"),
        ("closer", "G2", "not decidable"),
        ("no-node-wrote", "G1", "not decidable"),
        ("client-missing", "G1", "not decidable"),
        ("given-back-unsent", "G1", "broken"),
        ("outlived", "delays", "broken"),
        ("in-time", "delays", "holds"),
        ("restarted", "delays", "not checked"),
        ("new-group", "delays", "not checked"),
        ("a-busy-producer", "G2", "holds"),
        ("through", "G2", "broken"),
        ("again-after-acked", "G3", "broken"),
        ("token-falls", "G3", "broken"),
        ("by-one-node", "G2", "holds"),
        ("won-inside", "G2", "broken"),
        ("won-inside-so-far", "G2", "not decidable"),
        ("won-after", "G2", "holds"),
        ("won-twice", "G2", "broken"),
        ("won-twice-so-far", "G2", "not decidable"),
        ("won-twice-and-a-node-missing", "G2", "not decidable"),
        ("won-in-turn", "G2", "holds"),
        ("won-again-redriven", "G2", "holds"),
        ("buried-by-a-majority", "G7", "broken"),
        ("buried-by-one-node", "G7", "not checked"),
        ("retried-otherwise", "G5", "broken"),
        ("retried", "G5", "not checked"),
        ("listed-in-mid-run", "G7", "holds"),
        ("won-and-given-back", "G2", "holds"),
        ("no-nodes", "G2", "not decidable"),
        ("near", "G2", "broken"),
        ("near-so-far", "G2", "not decidable"),
        ("without-slot", "G2", "broken"),
        ("slot-given-away-meanwhile", "G2", "holds"),
        ("slot-given-back", "G2", "holds"),
        ("slot-by-other-clocks", "G2", "holds"),
        ("purged", "groups", "broken"),
        ("neighbour-purged", "groups", "holds"),
        ("waiting", "G2", "not checked"),
        ("early", "delays", "broken"),
        ("due", "delays", "holds"),
        ("given-back", "delays", "broken"),
        ("came-back", "delays", "holds"),
        ("listed-by-all", "G7", "holds"),
        ("listed-by-one", "G7", "broken"),
        ("death-moved", "G7", "holds"),
        ("before-latest", "groups", "not checked"),
        ("before-latest", "G1", "holds"),
        ("before-latest-unlisted", "G1", "holds"),
        ("while-unknown", "groups", "not checked"),
        ("after-latest", "groups", "broken"),
        ("after-latest-unlisted", "G1", "broken"),
        ("after-all", "groups", "broken"),
        ("before-its-start", "groups", "not checked"),
        ("at-its-start", "groups", "broken"),
        ("latest-refused", "groups", "broken"),
        ("rewound-to-latest", "groups", "not checked"),
        ("rewound-before", "groups", "broken"),
        ("rewind-unknown", "groups", "not checked"),
        ("in-a-deletion", "groups", "broken"),
        ("death-unlisted", "G7", "not decidable"),
        ("death-unlisted", "G1", "not decidable"),
        ("death-listed-before", "G7", "not decidable"),
        ("death-delivered", "G7", "broken"),
        ("death-gone", "G7", "broken"),
        ("death-listed-elsewhere", "G7", "not decidable"),
        ("listed-then-redriven", "G7", "holds"),
        ("acked-and-listed", "G7", "broken"),
        ("purged-unlisted", "G1", "holds"),
        ("purge-failed", "groups", "broken"),
    ],
)
def test_a_story_is_judged_as_far_as_its_clocks_allow(
    seen: Seen, run: str, guarantee: str, verdict: str
) -> None:
    assert seen.verdicts[(run, guarantee)]["verdict"] == verdict


@pytest.mark.parametrize(("interrupted", "broken"), [(None, 0), (True, 1)])
def test_a_delivery_that_was_given_back_as_interrupted_counts_as_no_attempt(
    tmp_path: Path, interrupted: bool | None, broken: int
) -> None:
    story = Story("r", boot=dict.fromkeys(("node:a", "client:p", "client:c"), "m1"))
    settings = {"rf": 3, "hold_min": 99.0, "boot": "m1"}
    story.add("client:c", "settings", 0, history=1, clock="mono", settings=settings)
    story.publish().register("node:a", 0.5, 7).deliver("client:c", 1, 5, 1, generation=7)
    asked = {"interrupted": True} if interrupted else {}
    story.call("client:c", "reject", 2, {**held(1), "generation": 7, "op": 5}, **asked)
    story.deliver("client:c", 3, 8, 2, generation=7, attempt=2)
    path = tmp_path / "r.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in story.rows))
    _, findings = audited([path], tmp_path / "empty")
    assert sum("attempt 2 of generation 7" in str(it) for it in findings) == broken


@pytest.mark.parametrize("clocks", ["constant", "drifting", "jumping"])
def test_no_wrong_clock_breaks_a_guarantee(seen: Seen, clocks: str) -> None:
    said = {run: row for (run, _), row in seen.verdicts.items() if run.startswith(f"{clocks}-")}
    assert len(said) == ON_MACHINES
    assert [row["text"] for row in seen.violations if row["run"] in said and row["verdict"] == "broken"] == []


def test_kept_promises_hold_with_clocks_years_apart(seen: Seen) -> None:
    """Connected clocks decide all but events that are closer than their error.

    Two settings may; and a node may win a message sooner after the end of another hold than the clocks' doubt.
    """
    connected = {
        run
        for run, clocks in seen.clocks.items()
        if run.startswith("constant-") and all(row["placed"] for row in clocks)
    }
    assert len(connected) > ON_MACHINES / 3
    said = Counter(
        row["verdict"]
        for (run, guarantee), row in seen.verdicts.items()
        if run in connected and guarantee != "settings"
    )
    close = [run for run in sorted(connected) if seen.verdicts[(run, "G2")]["verdict"] == "not decidable"]
    assert len(close) <= 1, close
    assert set(said) - ({"not decidable"} if close else set()) == {"holds", "not checked"}
    assert said["not decidable"] == len(close)
    assert said["holds"] > 4 * len(connected)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_by_wrong_clocks_as_well(seen: Seen, fault: str) -> None:
    """Not decidable in any real run: settings, and copies of nodes that did not stop."""
    verdict = seen.verdicts[(f"wrong-clocks-{fault}", FAULTS[fault][1])]["verdict"]
    assert verdict == ("not decidable" if fault in ("unwritten", "on-one-disk") else "broken")


def test_the_clocks_of_a_run_are_shown_with_what_is_wrong_with_them(seen: Seen) -> None:
    clocks = {row["clock"]: row for row in seen.clocks["apart"]}
    (reference,) = [clock for clock, row in clocks.items() if row["reference"]]
    ahead = {"m0": -5000.0, "m1": 0.0, "m2": 0.7, "m3": 3e7}
    for clock, row in clocks.items():
        apart = row["ahead"] - (ahead[clock] - ahead[reference])
        assert abs(apart) <= row["within"] + 1e-6, clock
        assert row["within"] < 0.01
        assert abs(row["day_ahead"] - row["ahead"]) < 0.01, "each time of day is as wrong as its clock"
        assert (row["findings"], row["placed"] > 0.5) == ("", True)
    assert {row["clock"] for row in seen.clocks["a-clock-broke"] if "jumped" in row["findings"]} == {"m2"}
    assert seen.verdicts[("a-clock-broke", "G2")]["verdict"] == "holds", (
        "the node that won it has a clock that is right"
    )
    (day,) = [row["findings"] for row in seen.clocks["a-day-turned"] if row["findings"]]
    assert day == "had its time of day turned by 3,599.8 s meanwhile, which changes no verdict"
    assert "near" not in seen.clocks, "one clock needs no comparison"
    assert {row["findings"] != "" for row in seen.clocks["no-nodes"] if not row["reference"]} == {True}


def test_a_producer_whose_clock_has_the_most_bounds_is_located_and_is_no_reference(seen: Seen) -> None:
    clocks = {row["clock"]: row for row in seen.clocks["a-busy-producer"]}
    assert not clocks["m9"]["reference"]
    assert all(row["placed"] > 0.9 and row["within"] < 0.05 for row in clocks.values())


def test_a_wait_is_only_known_where_its_clocks_are(seen: Seen) -> None:
    """Nothing says how the producer's clock of the first run stands to the consumer's."""
    row = seen.latency["death-listed-elsewhere"]
    assert (row["messages"], row["untimed"], row["p99"], row["max"]) == (1, 1, None, None)
    assert seen.latency["near"]["untimed"] == 0
    assert abs(seen.latency["near"]["max"] - 1) < 0.001
    located = seen.latency["a-busy-producer"]
    assert located["untimed"] == located["messages"] - 1, "of the others nobody wrote of the publish"
    assert abs(located["max"] - 1) < 0.1


def test_a_producer_is_located_by_the_majority_that_had_what_it_published(seen: Seen) -> None:
    """It shares its machine with the node that has each batch first: the promise of one copy says nothing of it."""
    clocks = {row["clock"]: row for row in seen.clocks["beside-a-node"]}
    assert clocks["m0"]["placed"] > 0.9
    doubt = clocks["m0"]["within"] + clocks["m1"]["within"] + 1e-6
    assert abs(clocks["m0"]["ahead"] - clocks["m1"]["ahead"] + 5000.0) <= doubt
    assert not clocks["m0"]["findings"]
    assert (
        "is not to be placed"
        in {row["clock"]: row["findings"] for row in seen.clocks["a-node-without-history"]}["m0"]
    )


def test_a_history_without_deliveries_is_not_called_good(seen: Seen) -> None:
    assert {seen.verdicts[("nobody", name)]["verdict"] for name in GUARANTEES} == {"not checked"}


def test_a_message_missing_after_an_unfinished_run_is_not_decidable(seen: Seen) -> None:
    assert seen.verdicts[("near", "G1")]["verdict"] == "holds"
    row = seen.verdicts[("waiting", "G1")]
    assert row["checked"] == 0 or row["verdict"] == "not decidable"


def test_a_generation_that_a_node_lost_before_a_majority_had_it_asks_for_no_delivery(seen: Seen) -> None:
    assert seen.verdicts[("lost-rewind", "G1")]["verdict"] == "holds"


ONE: Final = dict.fromkeys(("client:p", "client:c", "client:d"), "m1")


def never_published() -> Story:
    return Story("r", boot=ONE).publish().deliver("client:c", 5, 9, 1001)


def inside() -> Story:
    return Story("r", boot=ONE).publish().twice(5, 3)


def never_redriven() -> Story:
    return Story("r", boot=ONE).publish().deliver("client:c", 2, 5, 1, n=3)


@pytest.mark.parametrize(
    ("made", "guarantee", "who"),
    [(never_published, "G5", "client:p"), (inside, "G2", "client:c"), (never_redriven, "G7", "client:p")],
)
def test_a_line_that_a_writer_may_not_have_written_yet_is_not_absent(
    made: Callable[[], Story], guarantee: str, who: str, tmp_path: Path
) -> None:
    """A file of a process that goes on ends earlier than that of another one."""

    def verdict(story: Story, *, drained: bool = False) -> str:
        path = tmp_path / "r.jsonl"
        path.write_text(text_of(story))
        result, _ = audited([path], tmp_path / "empty", drained=drained)
        return str(next(row["verdict"] for row in result.verdicts if row["guarantee"] == guarantee))

    assert verdict(made()) == "not decidable"
    assert verdict(made(), drained=True) == "broken"
    assert verdict(made().again(who, 20)) == "broken"


@pytest.mark.parametrize("seed", [1, 5])
def test_good_runs_whose_files_end_at_different_times_break_nothing(seed: int, tmp_path: Path) -> None:
    for turn in range(3):
        rng = random.Random(10 * seed + turn)
        for name, reading in (("one", lambda of, at: at + 1e4), ("several", constant(seed))):
            by = defaultdict(list)
            for row in on_machines(name, good(seed, full=True), reading):
                if name == "one" and row["kind"] == "settings":
                    row["settings"] = {**row["settings"], "boot": "m"}
                if row["who"] != "sim" or row["kind"] == "settings":
                    by[row["who"]].append(row)
            path = tmp_path / f"{name}-{turn}.jsonl"
            with path.open("w") as file:
                for mine in by.values():
                    first, last = (pick(it["at"] for it in mine) for pick in (min, max))
                    end = first + rng.uniform(0.4, 1) * (last - first)
                    kept = (it for it in mine if it["kind"] == "settings" or it["at"] <= end)
                    file.writelines(json.dumps(row) + "\n" for row in kept)
            result, findings = audited([path], tmp_path / "empty")
            assert not [it.text for it in findings if it.verdict == "broken"], (name, turn)
            assert any(row["checked"] for row in result.verdicts)


def test_a_delivery_from_a_producer_without_a_history_is_not_thin_air(seen: Seen) -> None:
    row = seen.verdicts[("no-producer", "G5")]
    assert (row["verdict"], row["broken"], row["undecidable"]) == ("not decidable", 0, 1)


def test_a_copy_that_is_in_no_history_is_missing_only_where_no_node_was_killed(seen: Seen) -> None:
    said = [seen.verdicts[(run, "G1")] for run in ("too-few-copies", "killed-node")]
    assert [(row["verdict"], row["broken"]) for row in said] == [("broken", 1), ("not decidable", 0)]


def test_settings_of_real_runs_hold_or_are_not_decidable(seen: Seen) -> None:
    """The history misses some requests, and a node may have been away: nothing is broken for sure."""
    said = {
        run: seen.verdicts[(run, "settings")] for run in ("settled", "stale-node", "told-by-nobody", "remade")
    }
    assert [(row["verdict"], row["broken"]) for row in said.values()] == [
        ("holds", 0), ("not decidable", 0), ("not decidable", 0), ("holds", 0),
    ]  # fmt: skip
    assert said["settled"]["checked"] == 3  # each setting, and that the nodes agree


def test_messages_of_a_deleted_topic_are_not_lost(seen: Seen) -> None:
    assert not [row for row in seen.violations if row["run"] == "remade"]


def test_unacked_messages_of_a_deleted_group_are_not_lost(seen: Seen) -> None:
    lost = [row["run"] for row in seen.violations if row["guarantee"] == "G1"]
    assert "group-kept" in lost
    assert "group-deleted" not in lost


def test_settings_that_no_run_can_have_are_as_if_they_had_not_been_told(seen: Seen) -> None:
    assert not [row for row in seen.violations if row["run"] == "odd-settings"]
    assert seen.verdicts[("odd-settings", "G1")]["verdict"] == "holds"


def test_outputs_that_no_one_told_of_reading_are_not_missing(seen: Seen) -> None:
    assert seen.verdicts[("outputs-unread", "derived")]["verdict"] == "not checked"


def test_unread_lines_are_counted_and_their_run_holds_nothing(seen: Seen) -> None:
    reasons = seen.remainder["garbled"]
    assert reasons == {
        "not JSON": 1,
        "a kind that this version does not know: novel": 1,
        "Expected `float`, got `str` - at `$.at`": 1,
        "a history of version 2; this reads 1": 1,
        "Object missing required field `owner`": 1,
    }
    assert {seen.verdicts[("garbled", name)]["verdict"] for name in GUARANTEES} == {"not decidable"}
    assert seen.verdicts[("garbled", "G2")]["undecidable"] == 4


def test_a_torn_last_line_and_a_missing_node_are_said_and_make_nothing_undecided(seen: Seen) -> None:
    assert seen.remainder["torn"] == {"a last line without its newline: the writer was killed": 1}
    assert seen.remainder["missing-node"] == {"a node without a history": 1}
    for run in ("torn", "missing-node"):
        assert seen.verdicts[(run, "G3")]["verdict"] == "holds"


def test_exit_codes_tell_good_from_open() -> None:
    def summary(*verdicts: str, remainder: int = 0) -> dict[str, Any]:
        rows = [{"guarantee": f"G{i}", "verdict": verdict} for i, verdict in enumerate(verdicts)]
        return {"verdicts": rows, "remainder": [{"lossy": False}] + [{"lossy": True}] * remainder}

    cases = [
        (("holds", "not checked"), 0, 0, 0),
        (("holds", "not decidable"), 0, 0, 3),
        (("holds",), 1, 0, 3),
        (("not checked", "not checked"), 0, 0, 3),
        (("broken", "not decidable"), 1, 1, 1),
    ]
    for verdicts, remainder, loose, strict in cases:
        assert exit_code(summary(*verdicts, remainder=remainder), strict=False) == loose
        assert exit_code(summary(*verdicts, remainder=remainder), strict=True) == strict
    assert conclusion(summary("not checked", "holds")["verdicts"], 2) == (
        "not checked: G0; holds: G1; 2 lines or writers were not read, or are missing."
    )


def test_a_summary_shows_some_of_each_guarantee_and_each_cause_once() -> None:
    many, judged = SHOWN + 20, Judged()
    for at in reversed(range(many)):
        where = Where("r", "t", 0, "g", "o", at, f"t/0/o/{at}")
        judged.report("G1", "lost", Proof("lost", at=float(at)), where, None, lambda at=at: (f"line {at}",))  # type: ignore[misc]
    judged.report("G3", "again", Proof("again"), Where("r", "t", 0, "g", "o", 1, "t/0/o/1"), 0.5)
    judged.report("G3", "again", Proof("again?", False), Where("s", "t", 0, "g", "o", 2, "t/0/o/2"), 0.5)
    rest = [
        {"run": f"r{i}", "kind": "torn", "detail": "", "count": 2, "gap": False, "lossy": True}
        for i in range(many)
    ]
    rows = [
        {
            "run": run,
            "guarantee": name,
            "verdict": said,
            "checked": count,
            "broken": broken,
            "undecidable": undecidable,
        }
        for run, name, said, count, broken, undecidable in (
            ("r", "G1", "broken", many, many, 0),
            ("r", "G3", "broken", many, 1, 1),
            ("s", "G1", "not checked", 0, 0, 0),
        )
    ]
    summary = summarised(Audit(rows, rest, [], [], [], [], [], [], [], judged), ["h.jsonl"])
    assert [(row["guarantee"], row["at"]) for row in summary["broken"]] == [
        ("G1", float(i)) for i in range(SHOWN)
    ] + [("G3", 0.5)]
    assert [row["id"] for row in summary["undecided"]] == ["t/0/o/2"]
    assert [(it["cause"], it["verdict"], it["count"], it["runs"]) for it in summary["causes"]] == [
        ("lost", "broken", many, 1), ("again", "broken", 1, 1), ("again", "not decidable", 1, 1)
    ]  # fmt: skip
    assert summary["causes"][0]["first"]["story"] == ("line 0",), (
        "the first by time, whichever was judged first"
    )
    assert summary["counts"] == {
        "broken": many + 1, "undecided": 1, "remainder": many, "latency": 0, "redeliveries": 0, "faults": 0,
        "clocks": 0,
    }  # fmt: skip
    first = summary["verdicts"][0]
    assert (first["guarantee"], first["runs"], first["runs_checked"], first["runs_broken"]) == ("G1", 2, 1, 1)
    assert summary["unread"] == 2 * many
    assert f"{2 * many} lines or writers were not read" in summary["conclusion"]


def test_evidence_shows_a_time_of_day_without_an_exponent() -> None:
    times = [1795312345.12345, 0.5, -2.0, None]
    assert [seconds(it) for it in times] == ["1795312345.1235 s", "0.5000 s", "-2.0000 s", "nothing"]


def test_a_path_that_names_no_history_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not a history\n")
    for path in (tmp_path, tmp_path / "nothing.jsonl"):
        with pytest.raises(NotFound, match="no history here"):
            histories_of([str(path)])


@pytest.mark.parametrize("text", [b"\x81\x00\n\x02", b'{"a": 1}\n'])
def test_a_file_that_is_no_history_is_refused(text: bytes, tmp_path: Path) -> None:
    """It was judged: nothing checked, and exit code 0."""
    path = tmp_path / "h.jsonl"
    path.write_bytes(text)
    result = CliRunner().invoke(main, ["audit", str(path)])
    assert result.exit_code == UsageError.exit_code
    assert "is one of a history, so there is nothing to judge" in result.output


def unread_in(*texts: bytes, name: str = "h.jsonl", folder: Path) -> tuple[int, list[Unread]]:
    """Return the number of lines read, and the places that were not."""
    for number, text in enumerate(texts):
        (folder / f"{number}-{name}").write_bytes(text)
    summary, _ = read(histories_of([str(folder)]), folder / "parts")
    return sum(it.lines for it in summary.stretches), summary.unread


def test_a_blank_line_and_a_torn_gzip_cost_their_own_lines(tmp_path: Path) -> None:
    lines = [json.dumps({**row, "run": "r", "detail": str(at * 7919 % 10007)}).encode() + b"\n"
             for at, row in enumerate(Story("r").publish().rows * 500)]  # fmt: skip
    packed = gzip.compress(b"".join(lines))
    (tmp_path / "blank").mkdir()
    count, unread = unread_in(lines[0] + b"\n  \n" + lines[1][:-1] + b"\t\r\n\r\n", folder=tmp_path / "blank")
    assert (count, [(it.reason, it.harmless) for it in unread]) == (2, [("a blank line", True)] * 3)
    for cut in (len(packed) - 1, 40):
        folder = tmp_path / f"torn-{cut}"
        folder.mkdir()
        unpack = zlib.decompressobj(wbits=31)
        text = (unpack.decompress(packed[:cut]) + unpack.flush()).decode()
        count, unread = unread_in(packed[:cut], name="h.jsonl.gz", folder=folder)
        assert count == text.count("\n")
        reason = "a last line without its newline: the writer was killed"
        last = text.rpartition("\n")[2][:200]
        assert [(it.reason, it.harmless, it.line) for it in unread] == [(reason, True, last)] * bool(last)
    (tmp_path / "damaged.jsonl.gz").write_bytes(packed[:40] + bytes(20) + packed[60:])
    with pytest.raises(StorageError, match=r"damaged\.jsonl\.gz cannot be read"):
        read([tmp_path / "damaged.jsonl.gz"], tmp_path / "parts")


def test_a_number_beyond_all_clocks_is_not_read(tmp_path: Path) -> None:
    lines = [json.dumps(row) for row in Story("far").publish().rows]
    wild = [lines[1].replace('"within": 0.0', f'"within": {number}') for number in ("1e400", "-1e400")]
    count, unread = unread_in("".join(f"{it}\n" for it in [*lines, *wild]).encode(), folder=tmp_path)
    assert count == len(lines)
    assert [(it.reason, it.harmless) for it in unread] == [("Number out of range - at `$.within`", False)] * 2
    far = [lines[1].replace("0, 1]", f"{1 << bits}, {(1 << bits) + 1}]") for bits in (62, 63, 64, 100)]
    count, unread = unread_in("".join(f"{it}\n" for it in [*lines, *far]).encode(), folder=tmp_path)
    assert count == len(lines)
    assert [("spans" in it.reason, it.harmless) for it in unread] == [(True, False)] * 4


def test_a_line_that_is_too_long_costs_itself(tmp_path: Path) -> None:
    lines = [json.dumps(row).encode() + b"\n" for row in Story("long").publish().rows]
    long = b'{"run":"long","detail":"' + b"x" * (5 << 20) + b'"}\n'
    count, unread = unread_in(lines[0] + long + b"".join(lines[1:]), folder=tmp_path)
    assert (count, [(it.run, it.reason) for it in unread]) == (
        len(lines),
        [("long", "longer than 4194304 bytes")],
    )


def test_a_line_that_says_no_run_counts_against_the_run_of_its_file(tmp_path: Path) -> None:
    texts = {
        run: "".join(json.dumps(row) + "\n" for row in Story(run).publish().rows).encode() for run in "abc"
    }
    _, unread = unread_in(texts["a"] + b"\0\0\0\n", texts["b"] + texts["c"] + b"\0\0\n", folder=tmp_path)
    assert {(it.run, it.line) for it in unread} == {
        ("a", "\0\0\0"),
        (None, "\0\0"),  # one of the two, or both
    }


def test_a_real_file_that_is_given_twice_is_read_once(seen: Seen) -> None:
    assert seen.remainder[TWICE] == {"a file that was given twice, and is read once": 2}
    assert {seen.verdicts[(TWICE, name)]["verdict"] for name in ("G2", "G3", "G5")} == {"holds"}
    assert seen.verdicts[(TWICE, "G6")]["broken"] == 0


def test_two_simulated_runs_of_one_name_hold_nothing(tmp_path: Path) -> None:
    rows = [
        {**row, "clock": "simulated"} if row["kind"] == "settings" else row
        for row in Story("r").publish().rows
    ]
    (tmp_path / "h.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows * 2))
    result, _ = audited([tmp_path], tmp_path / "parts")
    assert result.runs[0]["lines"] == 2 * len(rows)
    (row,) = result.remainder
    assert (row["run"], row["detail"], row["count"], row["gap"], row["lossy"]) == (
        "r", "client:p", 1, True, True,
    )  # fmt: skip
    assert "two runs have one name" in row["kind"]


class Screened:
    """Parts, each judged with and without a look at what is plain beforehand; ``plain`` counts what was."""

    def __init__(self, parts: Any) -> None:
        self.parts, self.checked = parts, 0

    def map(self, function: Callable[[Any], Any]) -> Iterable[Any]:
        return self.parts.map(function)

    def check(self, context: Context) -> Judged:
        total, made = Judged(), []
        for part in self.parts.map(lambda it: it):
            screened, other = (checker_part(part, context, screened=it) for it in (True, False))
            assert sorted(screened.findings, key=str) == sorted(other.findings, key=str)
            assert vars(screened.sums) == vars(other.sums)
            self.checked += 1
            made += screened.made + screened.got
            total.add(screened)
        derived.check(made, context, total)
        return total


@pytest.mark.parametrize("count", [1, 7])
def test_plain_cases_are_counted_as_if_asked_and_parts_change_nothing(
    seen: Seen, count: int, tmp_path: Path
) -> None:
    summary, parts = read(histories_of([str(seen.folder)]), tmp_path / "parts", count=count)
    screened = Screened(parts)
    assert audit(summary, screened).verdicts == list(seen.verdicts.values())
    assert screened.checked == count


def test_the_command_shows_each_cause_with_a_story_and_ends_with_1(tmp_path: Path) -> None:
    rows = FAULTS["flipped"][0](good(1))
    assert rows is not None
    (tmp_path / "h.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = CliRunner().invoke(main, ["audit", str(tmp_path)])
    assert done.exit_code == 1
    assert "BROKEN G5: delivered with other bytes than published:" in done.stdout
    assert " deliver as " in done.stdout, "the story of the message"
    done = CliRunner().invoke(main, ["audit", "--json", str(tmp_path)])
    summary = json.loads(done.stdout)
    assert [row["guarantee"] for row in summary["verdicts"]] == list(GUARANTEES)
    assert {row["guarantee"] for row in summary["verdicts"] if row["verdict"] == "broken"} == {"G5"}
    (tmp_path / "h.jsonl").write_text("")
    assert CliRunner().invoke(main, ["audit", str(tmp_path)]).exit_code == 64


def test_every_kind_is_asked_about_or_left_out_on_purpose() -> None:
    """A kind that is added must be thought about here."""
    asked = {"publish", "store", "deliver", "ack", "reject", "dead_letter", "extend", "redrive", "list"}
    asked |= {"derive", "set_topic", "topic"}
    context = {
        "settings", "phase", "fault", "start", "stop", "crash", "purge", "set_group", "register",
        "truncated", "delete_topic", "delete_group", "fetch",
    }  # fmt: skip
    asked |= {"hold_won", "leave", "release"}
    told_by_clients_better = {"hold_lost", "expire"}
    context |= {
        "claim", "pause_group", "labels", "set_labels", "limit_group",
    }  # no part of the guarantees that are audited  # fmt: skip
    context |= {"layout"}
    assert asked | context | told_by_clients_better == set(KINDS)
