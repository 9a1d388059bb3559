"""The simulator is tested by what it catches: a protocol with one rule left out must fail within a few seeds."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.mutants import BOUND, MUTANTS, SURVIVORS, Mutant, applied, hunt

QUICK = {
    "acked-overtaken",
    "hold-majority-1",
    "hold-replaced",
    "no-anti-entropy",
    "repair-not-journaled",
    "snapshot-without-reclaimed",
    "stop-forgets-ballots",
    "tombstone-majority-1",
}
BY_NAME = {mutant.name: mutant for mutant in MUTANTS}


@pytest.mark.parametrize("name", sorted(QUICK))
def test_a_mutant_is_caught_soon(name: str) -> None:
    assert hunt(BY_NAME[name], 0, 80) is not None


@pytest.mark.soak
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mutant_is_caught(mutant: Mutant) -> None:
    caught = hunt(mutant, 0, BOUND)
    if mutant.name in SURVIVORS:
        assert caught is None, f"{mutant.name} is caught now, by {caught}: take it off the list of survivors"
    else:
        assert caught is not None, f"{mutant.name} survives {BOUND} seeds: a fault or a checker is missing"


def test_a_mutant_leaves_nothing_behind() -> None:
    for mutant in MUTANTS:
        before = [vars(owner).get(name) for owner, name, _ in mutant.patches]
        with applied(mutant):
            assert all(owner.__dict__[name] is new for owner, name, new in mutant.patches)
        assert [vars(owner).get(name) for owner, name, _ in mutant.patches] == before


def test_names_are_unique_and_survivors_are_mutants() -> None:
    assert len(BY_NAME) == len(MUTANTS)
    assert set(SURVIVORS) <= set(BY_NAME)


def test_the_page_lists_the_survivors() -> None:
    page = (Path(__file__).parents[2] / "docs" / "verification.md").read_text()
    for name, missing in SURVIVORS.items():
        assert f"| {name} | {BY_NAME[name].rule} | {missing} |" in page
    assert f"Of the {len(MUTANTS)}, {len(MUTANTS) - len(SURVIVORS)} are caught within {BOUND} seeds" in page
