"""Promises of one voter about settings: the highest stamp that a change of a register asked for before it wrote.

A change is OK only at voters that promised no higher stamp (docs/registers.md, SETTINGS). They are in memory. After a
start, and in a new slot, the node counts as having promised every stamp that it may have seen before.
"""

from __future__ import annotations

from typing import Final

from quorumq.core.values.types import STAMP_ZERO, Stamp

RegisterKey = tuple[bytes, str]
"""A topic's id, and a group's name; of the settings of the topic itself the name is empty."""

PROMISES_MAX: Final = 1024
"""Registers that a node keeps promises of, each by its own stamp."""


class Promises:
    """The promises of a node.

    Attributes:
        least: stamp that counts as promised for every register that is not in ``recent``.
        recent: stamps by register, the last ones; the oldest first.
    """

    __slots__ = ("least", "recent")

    def __init__(self) -> None:
        self.least = STAMP_ZERO
        self.recent: dict[RegisterKey, Stamp] = {}

    def of(self, register: RegisterKey, min_ballot: int) -> Stamp:
        """Return the highest stamp promised for a register; ``min_ballot`` is the node's."""
        return max(self.recent.get(register, self.least), Stamp(min_ballot, ""))

    def make(self, register: RegisterKey, stamp: Stamp) -> None:
        """Promise a stamp; a higher one that was promised before stays."""
        highest = max(stamp, self.of(register, 0))
        self.recent.pop(register, None)
        self.recent[register] = highest
        if len(self.recent) > PROMISES_MAX:
            oldest = next(iter(self.recent))
            self.least = max(self.least, self.recent.pop(oldest))

    def make_all(self, time: int) -> None:
        """Promise stamps up to this time for every register, because the voters before may have promised them."""
        self.least = max(self.least, Stamp(time, ""))
        self.recent = {register: stamp for register, stamp in self.recent.items() if stamp > self.least}

    def check(self) -> None:
        assert len(self.recent) <= PROMISES_MAX
