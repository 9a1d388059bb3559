"""Errors for bytes that differ from the bytes written.

Damage of one batch's body costs that batch here, and another replica may have it. All other damage makes the
directory unfit to vote from, because its loss is not known.
"""

from __future__ import annotations

import errno
from typing import Final

from quorumq.core.values.errors import QuorumqError, StorageError
from quorumq.storage.disk import Disk

ADVICE: Final = (
    "do not delete files one by one: start the node with an empty data directory, so that it gets its data back "
    "from the other replicas, or restore this one as a whole (`quorumq export` reads messages out of it)"
)


class DamagedBatch(QuorumqError):
    """The body of a stored batch differs from the bytes written. It is not served; another replica may have it."""

    code = "damaged-batch"
    exit_code = 74

    def __init__(self, text: str, number: int = -1) -> None:
        super().__init__(text)
        self.number = number  # number of the batch on this node, -1 if it is not known


class DamagedDirectory(StorageError):
    """Damage that is not confined to the body of a batch: `Journal.open` reads past it only when it is to salvage.

    There is no ``advice`` if ``problem`` has its own remedy, as the text of another error.
    """

    code = "damaged-directory"

    def __init__(self, problem: str, advice: str = "") -> None:
        super().__init__(f"{problem}; {advice}" if advice else problem)
        self.problem = problem


def damaged_at(disk: Disk, name: str, offset: int, reason: str) -> DamagedDirectory:
    """Return the error for a record of segment file ``name`` that cannot be the record written."""
    return DamagedDirectory(f"{disk}/{name} is damaged at byte {offset}: {reason}", ADVICE)


def unreadable(disk: Disk, error: OSError) -> StorageError:
    """Return the error for a call that the system refused: damage only if the disk itself failed."""
    problem = f"the data directory {disk} cannot be read: {error}"
    return DamagedDirectory(problem, ADVICE) if error.errno == errno.EIO else StorageError(problem)
