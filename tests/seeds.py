"""Which seeds of a random test run in `make test`, and which in `make soak` alone."""

from __future__ import annotations

from typing import Any

import pytest


def seeds(count: int, of: int) -> list[Any]:
    """The first ``count`` seeds, and the others, up to ``of``, marked for `make soak`."""
    return [pytest.param(seed, marks=pytest.mark.soak if seed >= count else ()) for seed in range(of)]
