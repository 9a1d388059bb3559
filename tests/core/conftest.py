"""Tests with a rule of the core, and without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Without = Callable[..., None]


@pytest.fixture(params=[True, False])
def rule(request: pytest.FixtureRequest) -> bool:
    """True, and then False for a run of the test without the rule."""
    return bool(request.param)


@pytest.fixture
def without(rule: bool, monkeypatch: pytest.MonkeyPatch) -> Without:
    """`monkeypatch.setattr` if the rule is to be left out; else it does nothing."""

    def nothing(*args: Any, **more: Any) -> None:
        pass

    return nothing if rule else monkeypatch.setattr
