"""`python -m sim check`, and runs without a rule."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from sim.__main__ import main
from sim.hunt import hunt
from sim.rules import rule_named


def test_a_run_without_a_rule_is_found_broken_again_from_its_history(tmp_path: Path) -> None:
    rule = rule_named("store-majority-1")
    caught = hunt(rule, 0, 600)
    assert caught is not None
    path = tmp_path / "broken.jsonl"
    run = ["run", "--seed", str(caught[0]), "--history", str(path), "--json"]
    made = CliRunner().invoke(main, [*run, "--without", rule.name])
    assert made.exit_code == 1, made.output
    done = CliRunner().invoke(main, ["check", str(tmp_path), "--json"])
    assert done.exit_code == 1, done.output
    said = json.loads(done.output)
    assert [text for found in said["broken"].values() for _, text in found] == json.loads(made.output)[
        "violations"
    ]


def test_a_good_run_is_ok(tmp_path: Path) -> None:
    path = tmp_path / "good.jsonl"
    assert CliRunner().invoke(main, ["run", "--seed", "3", "--history", str(path)]).exit_code == 0
    done = CliRunner().invoke(main, ["check", str(path)])
    assert done.exit_code == 0, done.output
    assert done.output.endswith("runs: ok\n")


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["check", str(tmp_path)])
    assert (done.exit_code, str(tmp_path) in done.output) == (66, True)
    (tmp_path / "h.jsonl").write_text("{}\n")
    done = CliRunner().invoke(main, ["check", str(tmp_path)])
    assert (done.exit_code, "h.jsonl:1" in done.output) == (74, True)


def test_a_rule_that_there_is_not_is_answered_with_those_there_are() -> None:
    done = CliRunner().invoke(main, ["run", "--seed", "1", "--without", "gravity"])
    assert done.exit_code == 2
    assert "quarantine-half" in done.output
