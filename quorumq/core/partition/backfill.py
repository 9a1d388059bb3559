"""Progress of a group that begins, through the batches that were here before it."""

from __future__ import annotations

Key = tuple[int, int]
"""Key of a batch, as in `Batches.order`: when it was made (ms of our monotonic clock), and its number."""

FIRST: Key = (-(1 << 63), 0)
"""Not above the key of any batch."""


class Backfill:
    """Batches that a group that begins, or begins anew, has not looked at yet: a step has no time for a whole backlog.

    It goes through all batches twice, oldest first each time. At first it looks at those that its generation covers.
    Then it looks at the others, which have nothing available. There are two passes because the start predicate goes by
    the producers' time of day and the order by our own clock: covered batches may stand anywhere.

    Args:
        from_ms: the generation's start predicate.
        ever: True if the messages found have been available ever since; False if only from now on, after a rewind.

    Attributes:
        key: the batch to go on with, in this pass.
        cursor: section and sequence number in that batch.
        last: it is in the second pass.
    """

    __slots__ = ("cursor", "ever", "from_ms", "key", "last")

    def __init__(self, from_ms: int, *, ever: bool) -> None:
        self.from_ms = from_ms
        self.ever = ever
        self.key = FIRST
        self.cursor = (0, 0)
        self.last = False

    @property
    def end(self) -> Key | None:
        """Return the key from which on no ready batch counts as the oldest available; None if all of them count."""
        return None if self.last else self.key

    def passes_over(self, covered: bool) -> bool:
        """Return True if the pass that is under way leaves a batch to the other pass.

        Args:
            covered: True if the start predicate holds for some of its messages.
        """
        return covered == self.last

    def pause(self, key: Key, section: int, seq: int) -> None:
        """Go on here another time."""
        self.key, self.cursor = key, (section, seq)

    def turn(self) -> bool:
        """End this pass; return True if another one is left."""
        if self.last:
            return False
        self.last, self.key = True, FIRST
        return True
