"""Hints for names that are not there: found for slips of the hand, at a bounded cost."""

from __future__ import annotations

import difflib
from typing import Any

import pytest

from quorumq.wire.hints import COMPARED_MAX, meant

ALIKE = [f"{number:04}" + "abcdefghij" * 18 for number in range(1000)]


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("jobz", "jobs"),
        ("our-gruop", "our-group"),
        ("secret-payrol", "secret-payroll"),
        ("oders", "orders"),
        ("ordersss", "orders"),
        ("x" * 99 + "y", "x" * 100),
    ],
)
def test_a_slip_is_found_among_others(name: str, known: str) -> None:
    assert meant(name, ["other", "another", known, "billing"]) == f"did you mean {known!r}?"


@pytest.mark.parametrize("name", ["nothing-alike", "", "ordinary"])
def test_another_name_is_no_slip(name: str) -> None:
    assert meant(name, ["orders", "billing"]) == ""


@pytest.mark.parametrize("names", [ALIKE, [name[::-1] for name in ALIKE], [f"g{n:05}" for n in range(1000)]])
def test_names_all_alike_cost_no_more_than_a_bound(names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []
    find = difflib.get_close_matches

    def counted(name: str, alike: list[str], **more: Any) -> list[str]:
        compared.append(sum(len(name) * len(other) for other in alike))
        return find(name, alike, **more)

    monkeypatch.setattr(difflib, "get_close_matches", counted)
    assert meant(names[0][:-1] + "z", names).startswith("did you mean")
    assert 0 < compared[0] <= COMPARED_MAX
