"""Signals of a pool: it handles them unless the program has handlers of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import trio

from quorumq.client.signals import stopped_by_signals

TERM, INT = signal.SIGTERM, signal.SIGINT


@pytest.fixture(autouse=True)
def defaults() -> Iterator[None]:
    """Handlers as a program begins with them, and afterwards as they were."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (TERM, INT)}
    signal.signal(INT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def hearing(received: list[Any], name: str = "", signals: bool | None = None) -> Any:
    def post(stop: Any, number: int) -> None:
        stop(number)

    def stop(number: int) -> None:
        received.append((name, number) if name else number)

    return stopped_by_signals(stop, post, signals=signals)


def test_both_get_the_signal_and_the_handlers_are_as_before_then() -> None:
    received: list[Any] = []
    with hearing(received):
        signal.raise_signal(TERM)
        signal.raise_signal(INT)
    assert received == [TERM, INT]
    assert signal.getsignal(TERM) is signal.SIG_DFL
    assert signal.getsignal(INT) is signal.default_int_handler


def test_the_handler_of_a_server_is_left_alone_unless_told_otherwise() -> None:
    received: list[Any] = []
    servers: list[int] = []
    signal.signal(TERM, lambda number, frame: servers.append(number))
    with hearing(received):
        signal.raise_signal(TERM)
        signal.raise_signal(INT)
    assert (received, servers) == ([INT], [TERM])
    with hearing(received, signals=True):
        signal.raise_signal(TERM)
    assert (received, servers) == ([INT, TERM], [TERM])
    signal.raise_signal(TERM)
    assert servers == [TERM, TERM]


def test_the_third_signal_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler that blocks the event loop hears nothing of the first two."""
    received: list[Any] = []
    killed: list[tuple[int, object]] = []
    monkeypatch.setattr(os, "kill", lambda _, number: killed.append((number, signal.getsignal(number))))
    for _ in range(2):
        with hearing(received):
            signal.raise_signal(INT)
            signal.raise_signal(TERM)
    assert not killed, "they are counted anew for the next pool"
    with hearing(received):
        for number in (INT, TERM, INT):
            signal.raise_signal(number)
    assert killed == [(INT, signal.SIG_DFL)]


@pytest.mark.parametrize("signals", [None, True])
def test_an_ignored_signal_stays_ignored(signals: bool | None) -> None:
    received: list[Any] = []
    signal.signal(INT, signal.SIG_IGN)
    with hearing(received, signals=signals):
        signal.raise_signal(INT)
    assert received == []


def test_with_false_and_in_another_thread_nothing_changes() -> None:
    def look() -> None:
        with hearing([], signals=True):
            assert signal.getsignal(TERM) is signal.SIG_DFL

    with hearing([], signals=False):
        assert signal.getsignal(TERM) is signal.SIG_DFL
    failed: list[BaseException] = []

    def run() -> None:
        try:
            look()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert not failed


def test_several_pools_hear_it_whichever_ends_first() -> None:
    received: list[Any] = []
    first, second = hearing(received, "first"), hearing(received, "second")
    with first:
        second.__enter__()
        signal.raise_signal(TERM)
    signal.raise_signal(TERM)
    second.__exit__(None, None, None)
    assert received == [("first", TERM), ("second", TERM), ("second", TERM)]
    assert signal.getsignal(TERM) is signal.SIG_DFL


def test_a_handler_installed_meanwhile_stays_installed() -> None:
    received: list[Any] = []
    servers: list[int] = []
    mine: list[int] = []
    with hearing(received):
        ours = signal.signal(TERM, lambda number, frame: servers.append(number))
    signal.raise_signal(TERM)
    assert (received, servers) == ([], [TERM])
    signal.signal(TERM, lambda number, frame: mine.append(number))
    with hearing(received, signals=True):
        signal.signal(TERM, signal.SIG_DFL)
    signal.signal(TERM, ours)  # the server is over
    signal.raise_signal(TERM)
    assert (received, mine) == ([], [TERM])


def test_trio_and_asyncio_by_themselves_are_no_one() -> None:
    received: list[Any] = []

    async def body() -> None:
        before = signal.getsignal(INT)
        assert before is not signal.default_int_handler, "this runner has a handler"
        with hearing(received):
            signal.raise_signal(INT)
        assert signal.getsignal(INT) is before

    asyncio.run(body())
    trio.run(body)
    assert received == [INT, INT]


def test_a_handler_that_is_asyncios_for_a_program_is_the_programs() -> None:
    received: list[Any] = []
    programs: list[int] = []

    async def body() -> None:
        loop = asyncio.get_running_loop()
        came = asyncio.Event()
        loop.add_signal_handler(TERM, lambda: (programs.append(TERM), came.set()))
        with hearing(received):
            signal.raise_signal(TERM)
            await asyncio.wait_for(came.wait(), 10)
        loop.remove_signal_handler(TERM)

    asyncio.run(body())
    assert (received, programs) == ([], [TERM])


def test_a_partial_of_a_program_is_the_programs() -> None:
    received: list[Any] = []
    programs: list[int] = []
    signal.signal(TERM, partial(lambda who, number, frame: who.append(number), programs))
    with hearing(received):
        signal.raise_signal(TERM)
    assert (received, programs) == ([], [TERM])
