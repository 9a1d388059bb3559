"""The catalogue of rules: the core with one rule left out must fail, within a few seeds if it is hunted."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable
from pathlib import Path

import pytest
from click.testing import CliRunner

from quorumq.core.partition import fate
from quorumq.core.partition.group import GroupView
from sim.__main__ import main
from sim.explorer.scenario import Budget, Scenario
from sim.explorer.table import explore
from sim.rules import EXPLORED, HUNTED, RULES, Rule, patched, rule_named
from tests.sim.hunting import BOUND, find_seed, unused

DOCS = Path(__file__).parents[2] / "docs"
QUICK = ("due-by-one-clock", "hold-majority-1", "no-anti-entropy", "no-replacing")
NEEDLESS = "nothing is missing"
SURVIVORS = {rule.name: rule.survives for rule in HUNTED if rule.survives}


def name_of(rule: Rule) -> str:
    return rule.name


@pytest.mark.parametrize("name", QUICK)
def test_a_missing_rule_is_found_soon(name: str) -> None:
    rule = rule_named(name)
    assert find_seed(rule, 0, 80, rule.profile) is not None


@pytest.mark.soak
@pytest.mark.parametrize("rule", HUNTED, ids=name_of)
def test_every_missing_rule_is_found(rule: Rule) -> None:
    seed = find_seed(rule, 0, BOUND, rule.profile)
    if rule.survives:
        assert seed is None, f"{rule.name} is found now, by {seed}: take away what says why it survives"
    else:
        assert seed is not None, f"{rule.name} survives {BOUND} seeds: a fault or a checker is missing"


# ------------------------------------------------------------------- the patches are alive

STATES = (300, 3_000)
"""States of a scenario to examine: most patches are called in the first few."""

SEEDS = (0, 38, 13, 5, 26, 14, 16, 28, 22, 27, 51, 72, 74, 82, *range(40))
"""The first ones call nearly everything, and the others after the draws have changed."""

CALLED_LATE = {"deletion-keeps-holds", "nothing-overtakes-acked"}
"""Rules whose patches are called in few of the seeds: `make soak` looks for them."""


def dead_patches(rule: Rule, seeds: Iterable[int] = SEEDS) -> list[str]:
    """Return the patches of the rule that no run calls any more: neither its scenario nor random seeds."""
    patches = [f"{location.__name__}.{name}" for location, name, _ in rule.patches]
    uncalled = patches
    columns = []
    if rule.scenario is not None:
        for most in STATES:
            uncalled = explore(rule.scenario, rule, most).unused
            if not uncalled:
                break
        columns.append(uncalled)
    if rule.hunted:
        columns.append(unused(rule, seeds, uncalled))
    idle = [patch for patch in patches if all(patch in column for column in columns)]
    # A column is dead if it calls nothing of the rule, also if the other one does.
    return idle or [patch for column in columns if len(column) == len(patches) for patch in column]


@pytest.mark.parametrize(
    "rule",
    [
        pytest.param(rule, marks=pytest.mark.soak if at % 10 or rule.name in CALLED_LATE else ())
        for at, rule in enumerate(RULES)
    ],
    ids=name_of,
)
def test_whatever_stands_in_for_a_rule_is_called(rule: Rule) -> None:
    assert not dead_patches(rule)


def test_a_patch_that_no_one_calls_is_noticed() -> None:
    idle = ((fate, "on_return", lambda record, lease, ballots, fields, ask: (record, lease, ballots, None)),)
    small = Scenario("small", "nothing is ever reclaimed here", budget=Budget(attempts=1))
    assert dead_patches(Rule("idle", "", idle, scenario=small)) == [f"{fate.__name__}.on_return"]
    value = ((GroupView, "never_read", 1),)
    GroupView.never_read = 0  # type: ignore[attr-defined]
    try:
        assert dead_patches(Rule("idle", "", value, hunted=True), range(3)) == ["GroupView.never_read"]
    finally:
        del GroupView.never_read  # type: ignore[attr-defined]


def test_a_rule_left_out_is_restored() -> None:
    for rule in RULES:
        before = [vars(location).get(name) for location, name, _ in rule.patches]
        with pytest.raises(ZeroDivisionError), patched(rule.patches):
            raise ZeroDivisionError
        assert [vars(location).get(name) for location, name, _ in rule.patches] == before


def test_a_rule_has_one_name_and_is_shown_to_matter() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert rule.patches
        assert rule.scenario is not None or rule.hunted
        assert rule.scenario is not None or rule.test or not rule.survives or NEEDLESS in rule.survives
        assert rule.hunted or not rule.survives


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule.test], ids=name_of)
def test_a_rule_without_a_seed_has_a_test_of_the_core(rule: Rule) -> None:
    module, name = rule.test.split("::")
    function = getattr(importlib.import_module(f"tests.core.{module}"), name)
    marks = [mark.args for mark in getattr(function, "pytestmark", []) if mark.name == "parametrize"]
    cases = [{argument: values[0]} for argument, values in marks] or [{}]
    function(**cases[0])
    with patched(rule.patches) as unused, pytest.raises(AssertionError):
        function(**cases[0])
    assert not unused


def test_the_page_of_failures_names_rules_that_are_there() -> None:
    page = (DOCS / "rules.md").read_text()
    names = re.findall(r"`([a-z]+(?:-[a-z]+)*)`", " ".join(re.findall(r"^\| (.*?) \|", page, re.MULTILINE)))
    assert len(names) > 100
    assert set(names) <= {rule.name for rule in RULES}


def test_rules_that_random_runs_do_not_show_are_listed_and_counted_on_the_page() -> None:
    page = (DOCS / "verification.md").read_text()
    assert f"the {len(EXPLORED)} explored rules" in page
    listed = CliRunner().invoke(main, ["explore", "--list"]).output
    for rule in HUNTED:
        if rule.survives:
            assert re.search(rf"{rule.name} +{re.escape(rule.survives)} \(\w", listed)
            assert ("(none)" in listed.split(rule.survives)[1].split("\n")[0]) == (NEEDLESS in rule.survives)
    assert f"Of the {len(HUNTED)}, {len(HUNTED) - len(SURVIVORS)} are caught within {BOUND} seeds" in page
