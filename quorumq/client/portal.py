"""Thread that runs trio, with calls in it from others.

An exception that interrupts a caller (Ctrl-C) cancels the call, and is raised once that has ended.
"""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import partial, update_wrapper
from typing import Any, Final, TypeVar, cast

import trio

from quorumq.client.client import Client
from quorumq.client.transport.nodes import CLOSED, Closed
from quorumq.core.values.errors import OutcomeUnknown, QuorumqError, UsageError

INTERRUPTED_S: Final = 2.0
"""Seconds that a call that is interrupted may take to end."""

PUBLISH_MANY: Final = 256
"""Messages that are handed over to be published in one turn."""

CLOSED_MEANWHILE: Final = "the client was closed before the answer came"

PAGE: Final = 500
"""Items of a listing that are brought over at once."""

T = TypeVar("T")


async def page_of(listing: AsyncIterator[T], most: int = PAGE) -> list[T]:
    """Return the next items of a listing, at most ``most`` of them; none at its end."""
    page: list[T] = []
    async for one in listing:
        page.append(one)
        if len(page) == most:
            break
    return page


def like(method: Callable[..., object]) -> Callable[[T], T]:
    """Give a function the signature and the docstring of its counterpart in `quorumq.client`."""

    def shown(function: T) -> T:
        return cast("T", update_wrapper(cast("Any", function), method))

    return shown


def is_cancelled(error: BaseException) -> bool:
    """Return True if this is trio's cancellation and nothing else, also in a group, as several tasks raise it."""
    if isinstance(error, BaseExceptionGroup):
        return error.split(trio.Cancelled)[1] is None
    return isinstance(error, trio.Cancelled)


class Portal:
    """Thread that runs trio, with calls in it from others.

    Any number of threads may call. After a fork the child needs one of its own.
    """

    clock: trio.abc.Clock | None = None
    """Clock that trio runs by; the system's if None."""

    def __init__(self) -> None:
        self._ready: Future[Client] = Future()
        self._scope = trio.CancelScope()
        self._token: trio.lowlevel.TrioToken | None = None
        self._nursery: trio.Nursery | None = None
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._process = os.getpid()

    def begin(self, connect: Callable[[], Any]) -> Future[Client]:
        """Begin, with the result of ``connect`` as an ``async with``. The future has its exception."""
        from quorumq.client.host import check_host  # not imported by programs that publish on trio

        check_host()
        self._thread = threading.Thread(
            target=partial(trio.run, clock=self.clock),
            args=(self._run, connect),
            name="quorumq",
            daemon=True,
        )
        self._thread.start()
        return self._ready

    def open(self, connect: Callable[[], Any]) -> Client:
        """Call `begin`, and wait for it."""
        future = self.begin(connect)
        try:
            return future.result()
        except BaseException:
            self.close()
            raise

    async def _run(self, connect: Callable[[], Any]) -> None:
        self._token = trio.lowlevel.current_trio_token()
        try:
            with self._scope:
                async with connect() as client, trio.open_nursery() as nursery:
                    self._nursery = nursery
                    self._ready.set_result(client)
                    try:
                        await trio.sleep_forever()
                    finally:
                        self._nursery = None
        except BaseException as error:
            if self._ready.done():
                self._failure = error
            else:
                self._ready.set_exception(error)

    @property
    def is_here(self) -> bool:
        """Return True if this is the thread that trio runs in."""
        return threading.current_thread() is self._thread

    def check_process(self) -> None:
        """Raise `Closed` in a process that was forked since: it has no such thread."""
        if os.getpid() != self._process:
            raise Closed("this client was made before a fork, in another process: make one in this process")

    def close(self) -> None:
        """End: calls under way are cancelled, and the thread has ended when this returns.

        Raises:
            the exception of a background task of the client that failed.
        """
        thread = self._thread
        assert thread is not None
        while thread.is_alive():
            if self._token is not None:
                with suppress(trio.RunFinishedError):
                    self._token.run_sync_soon(self._scope.cancel)
            thread.join(0.1 if self._token is None else None)
        if self._failure is not None:
            raise self._failure

    def post(self, function: Callable[..., object], *args: object) -> None:
        """Have ``function(*args)`` called in the other thread soon; from a signal's handler too."""
        assert self._token is not None
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(function, *args)

    def call(
        self,
        function: Callable[..., Awaitable[T]],
        *args: object,
        undo: Callable[[T], Awaitable[object]] | None = None,
        **more: object,
    ) -> T:
        """Return the result of ``await function(*args, **more)`` in the other thread, or raise its exception.

        Args:
            function, args, more: function to await, with its arguments.
            undo: called in the other thread with the result of ``function``, if the caller was interrupted meanwhile
                and will never see it.

        Raises:
            Closed: the client is closed.
            UsageError: this is the thread that would have to do the work.
            OutcomeUnknown: another thread closed the client meanwhile.
        """
        self.check_process()
        if self.is_here:
            raise UsageError("a blocking call inside of the client's own thread would wait for itself")
        answer: Future[T] = Future()
        scope = trio.CancelScope()
        work = partial(self._answer, answer, scope, partial(function, *args, **more))
        assert self._token is not None
        try:
            self._token.run_sync_soon(self._begin, work, answer)
        except trio.RunFinishedError:
            raise Closed(CLOSED) from self._failure
        try:
            return answer.result()
        except BaseException:
            if not answer.done():  # it is this thread that was interrupted
                with suppress(trio.RunFinishedError):
                    self._token.run_sync_soon(scope.cancel)
                wait([answer], INTERRUPTED_S)
            came = answer.done() and not answer.cancelled() and answer.exception() is None
            if undo is not None and came:
                with suppress(QuorumqError):
                    self.call(undo, answer.result())
            raise

    def _begin(self, work: Callable[[], Awaitable[None]], answer: Future[T]) -> None:
        if self._nursery is None:
            answer.set_exception(Closed(CLOSED))
        else:
            self._nursery.start_soon(work)

    async def _answer(
        self, answer: Future[T], scope: trio.CancelScope, work: Callable[[], Awaitable[T]]
    ) -> None:
        try:
            with scope:
                answer.set_result(await work())
        except BaseException as error:
            if is_cancelled(error):
                answer.set_exception(OutcomeUnknown(CLOSED_MEANWHILE))
                raise
            answer.set_exception(error)
        if not answer.done():
            answer.cancel()
            answer.set_running_or_notify_cancel()  # else its waiters would not wake
