"""docs/api.md repeats the docstrings of `quorumq.client`."""

from __future__ import annotations

import runpy
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_reference_is_what_the_docstrings_say() -> None:
    page = runpy.run_path(str(DOCS / "make_api.py"))["page"]()
    assert (DOCS / "api.md").read_text() == page, "run `python docs/make_api.py`"
