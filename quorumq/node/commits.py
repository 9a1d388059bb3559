# quorumq/node/commits.py: the thread that waits for the disk, so that the node does not.
#
# One thread of the node's own rather than one borrowed for each commit: a commit then starts from inside the step
# that needs it and ends in a callback on the loop, with no task to be woken on either side.
"""Running commits beside the event loop."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from typing import Protocol

import trio

from quorumq.storage.journal import Commit

Finished = Callable[[Commit, "BaseException | None", float], None]
"""Told, on the loop: the commit, what it raised, how many seconds it took."""


class CommitRunner(Protocol):
    """Something that runs `Commit.run`, one at a time, and says so afterwards."""

    def start(self, commit: Commit, finished: Finished) -> None:
        """Run ``commit`` and then call ``finished`` on the loop, after this returned."""

    def close(self) -> None:
        """No more commits will come."""


class CommitThread:
    """Runs commits in one thread. Made and used on the trio loop that ``finished`` is called on."""

    def __init__(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._todo: queue.SimpleQueue[tuple[Commit, Finished] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="quorumq-commit", daemon=True)
        self._thread.start()

    def start(self, commit: Commit, finished: Finished) -> None:
        self._todo.put((commit, finished))

    def close(self) -> None:
        self._todo.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (item := self._todo.get()) is not None:
            commit, finished = item
            error: BaseException | None = None
            began = time.perf_counter()
            try:
                commit.run()
            except BaseException as exc:  # the loop must hear of it, whatever it is
                error = exc
            with contextlib.suppress(trio.RunFinishedError):
                self._token.run_sync_soon(finished, commit, error, time.perf_counter() - began)
