"""How far a group that begins has looked at the batches that were here before it."""

from __future__ import annotations

Key = tuple[int, int]
"""Of a batch, as in `Batches.order`: when it was made (ms of our monotonic clock), and its number."""

FIRST: Key = (-(1 << 63), 0)
"""Not above the key of any batch."""


class Behind:
    """What a group that begins, or begins anew, has not looked at yet: a step has no time for a whole backlog.

    It goes through all batches twice, oldest first each time: at first it looks at those that its generation covers,
    then at the others, of which nothing is available. Two passes, because the start predicate goes by the producers'
    time of day and the order by our own clock: what is covered may stand anywhere.

    Args:
        from_ms: the generation's start predicate.
        ever: what it finds has been available ever since; else from now on, as it was rewound.

    Attributes:
        key: the batch to go on with, in this pass.
        place: where in it: the section, and the sequence number.
        last: it is in the second pass.
    """

    __slots__ = ("ever", "from_ms", "key", "last", "place")

    def __init__(self, from_ms: int, *, ever: bool) -> None:
        self.from_ms = from_ms
        self.ever = ever
        self.key = FIRST
        self.place = (0, 0)
        self.last = False

    @property
    def end(self) -> Key | None:
        """What is offered of this batch, and of later ones, is not the oldest that is available; None where all is."""
        return None if self.last else self.key

    def passes_over(self, published_ms: int) -> bool:
        """Return True if the pass that is under way leaves a batch to the other pass.

        Args:
            published_ms: the time at which the batch was published, in ms, by the producer's clock.
        """
        return (published_ms >= self.from_ms) == self.last

    def pause(self, key: Key, section: int, seq: int) -> None:
        """Go on here another time."""
        self.key, self.place = key, (section, seq)

    def turn(self) -> bool:
        """This pass is done; whether another one is left."""
        if self.last:
            return False
        self.last, self.key = True, FIRST
        return True
