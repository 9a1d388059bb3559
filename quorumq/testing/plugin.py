"""Fixtures for pytest: ``quorumq_trio``, ``quorumq_asyncio`` and ``quorumq_threads``.

Each is a running cluster in the process of the test, with ``client``, ``work``, ``kill`` and the rest of
`quorumq.testing.Cluster`. pytest loads this module wherever quorumq is installed, so it imports the rest when a test
asks for it.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from quorumq.testing import Cluster, aio, blocking


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Have async tests with the fixture ``quorumq_trio`` run by trio in virtual time."""
    for item in items:
        if "quorumq_trio" in getattr(item, "fixturenames", ()) and has_coroutine(item):
            item.add_marker(pytest.mark.trio(run=run), append=False)


def has_coroutine(item: pytest.Item) -> bool:
    """Return True if the test is an ``async def``."""
    return inspect.iscoroutinefunction(getattr(item, "obj", None))


def run(*args: Any, **options: Any) -> Any:
    """Run a test like `quorumq.testing.run`."""
    from quorumq.testing import run

    return run(*args, **options)


@pytest.fixture
def quorumq_threads() -> Iterator[blocking.Cluster]:
    """Give a running cluster whose calls block the thread, in virtual time."""
    from quorumq.testing.blocking import cluster

    with (nodes := cluster()):
        yield nodes


async def on_trio() -> AsyncIterator[Cluster]:
    """Give a running cluster for a test on trio, in virtual time. Needs pytest-trio."""
    from quorumq.testing import cluster

    async with (nodes := cluster()):
        yield nodes


async def on_asyncio() -> AsyncIterator[aio.Cluster]:
    """Give a running cluster for a test on asyncio; its time is virtual, the loop's is not. Needs pytest-asyncio."""
    from quorumq.testing.aio import cluster

    async with (nodes := cluster()):
        yield nodes


def fixture_of(plugin: str, decorator: str, give: Callable[[], Any]) -> Any:
    """Return a fixture of another plugin; one that skips nothing and fails with a remedy if that is not installed."""
    if find_spec(plugin) is not None:
        return getattr(import_module(plugin), decorator)(give)

    def missing() -> None:
        pytest.fail(f"this fixture needs {plugin.replace('_', '-')}: pip install {plugin.replace('_', '-')}")

    return pytest.fixture(missing)


quorumq_trio = fixture_of("pytest_trio", "trio_fixture", on_trio)
quorumq_asyncio = fixture_of("pytest_asyncio", "fixture", on_asyncio)
