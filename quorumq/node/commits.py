"""Threads that wait for the disk.

One thread of the node's own waits for fsyncs, so that the loop does not. It is not borrowed for each commit, because
a commit then starts from inside the step that needs it and ends in a callback on the loop. Handing it over still
costs two wake-ups, a good part of the time of a single message. So if the disk is fast and has had a rest, the loop
waits itself: events that arrive meanwhile wait for less than `HERE_S`, and the loop stands still for a fifth of the
time at most. If a disk becomes slow, the loop waits for it once.
"""

from __future__ import annotations

import contextlib
import functools
import queue
import threading
import time
from collections.abc import Callable
from typing import Final, Protocol

import trio

from quorumq.core.values.limits import KIB
from quorumq.storage.commit import Commit

HERE_S: Final = 0.002
"""If fsyncs take fewer seconds, the loop may wait for the next one."""

REST: Final = 4
"""Pause since the last fsync, as a multiple of an fsync's time: in a burst, commits requested during an fsync are
to share the next."""

HERE_BYTES: Final = 64 * KIB
"""The largest commit that the loop waits for."""

SLOW_S: Final = 2 * HERE_S
"""Most seconds that one fsync counts, so that a few commits show that a disk is fast again."""

WEIGHT: Final = 0.2
"""Weight of the newest commit in the usual time."""

Finished = Callable[[Commit, "BaseException | None", float], None]
"""Callback on the loop with the commit, the error that it raised, and the seconds that it took."""


class CommitRunner(Protocol):
    """Something that runs `Commit.run`, one at a time, and says so afterwards."""

    def start(self, commit: Commit, finished: Finished, *, here: bool) -> None:
        """Run ``commit`` and then call ``finished`` on the loop.

        Args:
            here: True if it may run on the loop, before this returns.
        """

    def close(self) -> None:
        """End the thread: there will be no more commits."""


class CommitThread:
    """Runs commits in one thread, or on the loop. Made and used on the trio loop that ``finished`` is called on.

    Args:
        clock: seconds, from anywhere.

    Attributes:
        call_soon: calls a function on the loop, soon. If it returns False, it does not, and trio itself is asked.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.call_soon: Callable[[Callable[[], None]], bool] = lambda call: False
        self._clock = clock
        self._usual = self._last = HERE_S  # seconds that a commit takes, and that the last one took
        self._ended = clock()
        self._token = trio.lowlevel.current_trio_token()
        self._todo: queue.SimpleQueue[tuple[Commit, Finished] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="quorumq-commit", daemon=True)
        self._thread.start()

    def start(self, commit: Commit, finished: Finished, *, here: bool) -> None:
        usual = self._usual
        if (
            here
            and max(usual, self._last) < HERE_S
            and commit.size <= HERE_BYTES
            and self._clock() - self._ended > REST * usual
        ):
            finished(commit, *self._run(commit))
        else:
            self._todo.put((commit, finished))

    def close(self) -> None:
        self._todo.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (item := self._todo.get()) is not None:
            commit, finished = item
            error, seconds = self._run(commit)
            call = functools.partial(finished, commit, error, seconds)
            if not self.call_soon(call):
                with contextlib.suppress(trio.RunFinishedError):
                    self._token.run_sync_soon(call)

    def _run(self, commit: Commit) -> tuple[BaseException | None, float]:
        error: BaseException | None = None
        began = self._clock()
        try:
            commit.run()
        except BaseException as exc:  # the waiting caller gets every error
            error = exc
        self._ended = self._clock()
        seconds = self._ended - began
        self._last = seconds
        self._usual += WEIGHT * (min(seconds, SLOW_S) - self._usual)
        return error, seconds
