"""SIGTERM and SIGINT for pools of workers: each that runs in the main thread hears them, and other handlers remain.

The first one has a pool end, the second one cancels its handlers, and the third one ends the process: a handler that
blocks its event loop hears of no cancellation.

A process has one handler for a signal. That of a web server, a notebook or the program itself is left alone, and so
is a signal that is ignored, as Ctrl-C in a background job of a shell.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

from quorumq.client.base.times import flag_of

OURS: Final = (signal.SIGTERM, signal.SIGINT)
RUNNERS: Final = ("trio.", "asyncio.runners")
"""Modules whose handlers only raise KeyboardInterrupt or cancel, because the program has no other one."""

PATIENCE: Final = 2
"""Signals that pools hear. The next one ends the process."""

Hear = Callable[[int], object]

_hearing: Final[dict[int, list[Hear]]] = {number: [] for number in OURS}
_before: Final[dict[int, Any]] = {}  # handlers that ours replaced
_came: Final[list[int]] = []  # signals received while a pool listens for them


@contextmanager
def stopped_by_signals(
    stop: Callable[[int], object], post: Callable[..., object], *, signals: bool | None
) -> Iterator[None]:
    """Have SIGTERM and SIGINT call ``post(stop, number)`` meanwhile, if this is the main thread.

    Args:
        post: has a function called in the pool's thread, from a signal's handler too.
        signals: None hears those without another handler; True all, which others then do not hear; False none.
    """
    if signals is not None:
        flag_of("signals", signals)

    def hear(number: int) -> None:
        post(stop, number)

    in_main = threading.current_thread() is threading.main_thread()
    candidates = OURS if in_main and signals is not False else ()
    taken = [number for number in candidates if _take(number, even_others=signals is True)]
    for number in taken:
        _hearing[number].append(hear)
    try:
        yield
    finally:
        for number in taken:
            _hearing[number].remove(hear)
        if not any(_hearing.values()):
            _came.clear()
        for number in taken:
            if not _hearing[number] and signal.getsignal(number) is _on_signal:
                signal.signal(number, _before[number])


def _take(number: int, *, even_others: bool) -> bool:
    """Take the signal over, and return True if it is ours now."""
    handler = signal.getsignal(number)
    if handler is _on_signal:
        return True
    if handler is None or handler is signal.SIG_IGN or not (even_others or _is_nobodys(handler)):
        return False
    _before[number] = signal.signal(number, _on_signal)
    return True


def _is_nobodys(handler: Any) -> bool:
    """Return True if this is the default handler of Python, trio or asyncio."""
    function = getattr(handler, "func", handler)  # asyncio's is a partial
    by_default = handler in (signal.SIG_DFL, signal.default_int_handler)
    return by_default or (getattr(function, "__module__", None) or "").startswith(RUNNERS)


def _on_signal(number: int, frame: FrameType | None) -> None:
    _came.append(number)
    if len(_came) > PATIENCE and _hearing[number]:
        text = "quorumq: asked to stop once more: the process ends now, and its messages come again after their holds\n"
        os.write(2, text.encode())
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    for hear in tuple(_hearing[number]):
        hear(number)
    if not _hearing[number]:  # the handler was put back after the last pool: the signal is not ours any more
        signal.signal(number, _before[number])
        signal.raise_signal(number)
