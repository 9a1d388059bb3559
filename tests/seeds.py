"""The share of a random test that `make test` runs. `make soak` runs the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings


def seeds(count: int, of: int) -> list[Any]:
    """Return the seeds below ``of``. Those from ``count`` on are marked for `make soak`."""
    return [pytest.param(seed, marks=pytest.mark.soak if seed >= count else ()) for seed in range(of)]


def property_of(
    *drawn: Any, count: int, of: int, **named: Any
) -> Callable[[Callable[..., None]], Callable[[int], None]]:
    """Decorate a property of drawn values, as `hypothesis.given` does.

    Args:
        drawn: strategies, by position.
        count: number of examples in `make test`.
        of: number of examples in `make soak`.
        named: strategies, by name.
    """

    def decorate(test: Callable[..., None]) -> Callable[[int], None]:
        @pytest.mark.parametrize("examples", [count, pytest.param(of, marks=pytest.mark.soak)])
        def run(examples: int) -> None:
            settings(max_examples=examples)(given(*drawn, **named)(test))()

        run.__name__, run.__qualname__ = test.__name__, test.__qualname__
        run.__doc__, run.__module__ = test.__doc__, test.__module__
        return run

    return decorate
