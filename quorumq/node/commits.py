# quorumq/node/commits.py: the threads that wait for the disk, so that the node does not.
#
# Threads of the node's own rather than one borrowed for each commit: a commit then starts from inside the step
# that needs it and ends in a callback on the loop, with no task to be woken on either side. Two, so that what waits
# for a write alone (durability "os") need not wait for somebody else's fsync.
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

Written = Callable[[Commit], None]
"""Told, on the loop: the commit has written, and is about to sync."""

Finished = Callable[[Commit, "BaseException | None", float], None]
"""Told, on the loop: the commit, what it raised, how many seconds it took."""

Todo = queue.SimpleQueue["tuple[Commit, Written | None, Finished] | None"]


class CommitRunner(Protocol):
    """Something that runs `Commit.run`, one that syncs and one that does not at a time, and says so afterwards."""

    def start(self, commit: Commit, written: Written | None, finished: Finished) -> None:
        """Run ``commit`` and then call ``finished`` on the loop, after this returned.

        Args:
            commit: what to run.
            written: called before, if the commit syncs, between the two.
            finished: called when it is over.
        """

    def close(self) -> None:
        """No more commits will come."""


class CommitThreads:
    """Runs commits that sync in one thread, others in a second. Made and used on the loop that is called back."""

    def __init__(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._todo: dict[bool, Todo] = {}
        self._threads: list[threading.Thread] = []

    def start(self, commit: Commit, written: Written | None, finished: Finished) -> None:
        todo = self._todo.get(commit.syncs)
        if todo is None:
            todo = self._todo[commit.syncs] = queue.SimpleQueue()
            name = "quorumq-commit" if commit.syncs else "quorumq-write"
            self._threads.append(threading.Thread(target=self._run, args=(todo,), name=name, daemon=True))
            self._threads[-1].start()
        todo.put((commit, written, finished))

    def close(self) -> None:
        for todo in self._todo.values():
            todo.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self, todo: Todo) -> None:
        while (item := todo.get()) is not None:
            commit, written, finished = item
            error: BaseException | None = None
            began = time.perf_counter()
            try:
                commit.write()
                if commit.syncs:
                    if written is not None:
                        self._tell(written, commit)
                    commit.sync()
            except BaseException as exc:  # the loop must hear of it, whatever it is
                error = exc
            self._tell(finished, commit, error, time.perf_counter() - began)

    def _tell(self, what: Callable[..., None], *facts: object) -> None:
        with contextlib.suppress(trio.RunFinishedError):
            self._token.run_sync_soon(what, *facts)
