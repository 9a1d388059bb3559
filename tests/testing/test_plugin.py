"""The fixtures of `quorumq.testing.plugin`, in a pytest of their own; and the programs of the page."""

from __future__ import annotations

import asyncio
import inspect
import runpy
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from quorumq.testing import aio
from tests.patience import PATIENCE_S

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"

TESTS = """
def test_asyncio(quorumq_asyncio):
    pass
"""


async def as_a_fixture(test: Any) -> None:
    """Run a test of a program as pytest-asyncio does."""
    async with (nodes := aio.cluster()):
        await (test(nodes) if inspect.signature(test).parameters else test())


def test_the_trio_program_of_the_page_passes_on_asyncio() -> None:
    names = runpy.run_path(str(EXAMPLES / "test_a_handler_trio.py"))
    tests = [names[name] for name in names if name.startswith("test_")]
    assert len(tests) == 2
    for test in tests:
        asyncio.run(as_a_fixture(test))


def test_fixtures_run_in_virtual_time_and_name_what_they_lack(tmp_path: Path) -> None:
    (tmp_path / "test_fixtures.py").write_text(TESTS)
    for style in ("trio", "blocking"):
        shutil.copy(EXAMPLES / f"test_a_handler_{style}.py", tmp_path)
    options = ["-p", "no:cacheprovider", "-p", "quorumq.testing.plugin", "-o", "trio_mode=true"]
    command = [sys.executable, "-m", "pytest", "-q", *options, str(tmp_path)]
    ran = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, timeout=PATIENCE_S, check=False
    )
    if find_spec("pytest_asyncio") is None:
        assert "4 passed, 1 error" in ran.stdout, ran.stdout + ran.stderr
        assert "pip install pytest-asyncio" in ran.stdout
    else:
        assert "5 passed" in ran.stdout, ran.stdout + ran.stderr
