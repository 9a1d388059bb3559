"""`python -m sim check`, and runs without a rule."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from sim.__main__ import main
from sim.rules import rule_named
from tests.sim.hunting import find_seed


def test_a_run_without_a_rule_is_found_broken_again_from_its_history(tmp_path: Path) -> None:
    rule = rule_named("store-majority-1")
    caught = find_seed(rule, 0, 600)
    assert caught is not None
    path = tmp_path / "broken.jsonl"
    run = ["run", "--seed", str(caught[0]), "--history", str(path), "--json"]
    made = CliRunner().invoke(main, [*run, "--without", rule.name])
    assert made.exit_code == 1, made.output
    done = CliRunner().invoke(main, ["check", str(tmp_path), "--json"])
    assert done.exit_code == 1, done.output
    said = json.loads(done.output)
    assert [text for texts in said["broken"].values() for _, text in texts] == json.loads(made.output)[
        "violations"
    ]


def test_a_good_run_is_ok(tmp_path: Path) -> None:
    path = tmp_path / "good.jsonl"
    assert CliRunner().invoke(main, ["run", "--seed", "3", "--history", str(path)]).exit_code == 0
    done = CliRunner().invoke(main, ["check", str(path)])
    assert done.exit_code == 0, done.output
    assert done.output.endswith("runs: ok\n")


def written(folder: Path, name: str, who: str, boot: dict[str, str], *kinds: str) -> None:
    """A history of a real process: its settings, and lines of these kinds, an hour after those of "a"."""
    at = 3600.0 * (name != "a")
    common = {"run": "r", "who": who, "at": at, "wall_ms": 0, "within": 0}
    lines = [{"kind": "settings", "history": 1, "clock": "mono", "settings": boot}]
    lines += [{"kind": kind, "incarnation": 1} for kind in kinds]
    (folder / f"{name}.jsonl").write_text("".join(json.dumps({**common, **line}) + "\n" for line in lines))


@pytest.mark.parametrize(
    ("boots", "clocks"),
    [
        (({"boot": "m1"}, {"boot": "m1"}), 1),
        (({"boot": "m1"}, {"boot": "m2"}), 2),
        (({"boot": "m1"}, {}), 2),
        (({}, {}), 2),
        (({},), 1),
    ],
)
def test_a_run_of_several_clocks_is_refused_by_name(
    tmp_path: Path, boots: tuple[dict[str, str], ...], clocks: int
) -> None:
    for name, boot in zip("ab", boots, strict=False):
        written(tmp_path, name, f"node:{name}", boot, "start", "stop")
    done = CliRunner().invoke(main, ["check", str(tmp_path)])
    if clocks == 1:
        assert (done.exit_code, done.output.endswith("runs: ok\n")) == (0, True)
    else:
        assert done.exit_code == 64
        assert "run 'r' has lines by 2 clocks (those of node:a, node:b)" in done.output
        assert "quorumq audit" in done.output


def test_a_writer_without_its_first_line_has_a_clock_of_its_own(tmp_path: Path) -> None:
    written(tmp_path, "a", "node:a", {"boot": "m1"})
    written(tmp_path, "b", "node:b", {"boot": "m1"}, "start")
    path = tmp_path / "b.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[1:]))
    done = CliRunner().invoke(main, ["check", str(tmp_path)])
    assert (done.exit_code, "2 clocks" in done.output) == (64, True)


def test_lines_of_kinds_that_are_not_known_are_counted_and_not_judged(tmp_path: Path) -> None:
    written(tmp_path, "a", "node:a", {}, "start", "checkpoint", "checkpoint")
    done = CliRunner().invoke(main, ["check", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert done.output == (
        "not judged: 2 lines of kind 'checkpoint', which this version does not know\n2 lines of 1 runs: ok\n"
    )
    said = json.loads(CliRunner().invoke(main, ["check", str(tmp_path), "--json"]).output)
    assert (said["lines"], said["not_judged"]) == (2, {"checkpoint": 2})


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["check", str(tmp_path)])
    assert (done.exit_code, str(tmp_path) in done.output) == (66, True)
    (tmp_path / "h.jsonl").write_text("{}\n")
    done = CliRunner().invoke(main, ["check", str(tmp_path)])
    assert (done.exit_code, "h.jsonl:1" in done.output) == (74, True)


def test_a_rule_that_there_is_not_is_answered_with_those_there_are() -> None:
    done = CliRunner().invoke(main, ["run", "--seed", "1", "--without", "gravity"])
    assert done.exit_code == 2
    assert "quarantine-half" in done.output
