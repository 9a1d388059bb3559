"""Each scenario happens as its file says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.transcript import FILES, played


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_it_happens_as_it_is_written(path: Path) -> None:
    """After an intended change of the protocol: run `python -m tests.scenarios`, and read the difference."""
    text = path.read_text()
    assert played(text) == text
