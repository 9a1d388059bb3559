"""The entry of `connect`: its result is no client before its ``with``, and each other use of it raises that."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import wraps
from types import TracebackType
from typing import Generic, NoReturn, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
Manager = TypeVar("Manager")


class _Entry(Generic[Manager]):
    """A connection that is not made before its `with`."""

    use = ""

    def __init__(self, manager: Manager) -> None:
        self._manager = manager

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"connect(…) has no {name!r}: it is no client yet; use it as `{self.use}`")


class AsyncEntry(_Entry[AbstractAsyncContextManager[T]], AbstractAsyncContextManager[T]):
    """For ``async with``."""

    use = "async with connect(…) as client:"

    def __await__(self) -> NoReturn:
        raise TypeError(f"connect(…) is not awaited: use it as `{self.use}`, or `await Client.open(…)`")

    async def __aenter__(self) -> T:
        return await self._manager.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, stack: TracebackType | None
    ) -> bool | None:
        return await self._manager.__aexit__(kind, error, stack)


class Entry(_Entry[AbstractContextManager[T]], AbstractContextManager[T]):
    """For ``with``."""

    use = "with connect(…) as client:"

    def __enter__(self) -> T:
        return self._manager.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, stack: TracebackType | None
    ) -> bool | None:
        return self._manager.__exit__(kind, error, stack)


def by_async_with(
    connect: Callable[P, AbstractAsyncContextManager[T]],
) -> Callable[P, AbstractAsyncContextManager[T]]:
    """Return a function that returns the context manager of another one as an `AsyncEntry`."""

    @wraps(connect)
    def connecting(*args: P.args, **more: P.kwargs) -> AbstractAsyncContextManager[T]:
        return AsyncEntry(connect(*args, **more))

    return connecting


def by_with(connect: Callable[P, AbstractContextManager[T]]) -> Callable[P, AbstractContextManager[T]]:
    """Return a function that returns the context manager of another one as an `Entry`."""

    @wraps(connect)
    def connecting(*args: P.args, **more: P.kwargs) -> AbstractContextManager[T]:
        return Entry(connect(*args, **more))

    return connecting
