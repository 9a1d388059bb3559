"""How far a group that begins has looked at the batches that were here before it."""

from __future__ import annotations

Key = tuple[int, int]
"""Of a batch, as in `Batches.order`: (published_ms, number)."""


class Behind:
    """What a group that begins, or begins anew, has not looked at yet: a step has no time for a whole backlog.

    It looks oldest first, from the first batch on that its generation covers: before that nothing is available, but
    what is there may be of use to nobody, so it comes last.

    Args:
        from_ms: the generation's start predicate.
        ever: what it finds has been available ever since; else from now on, as it was rewound.

    Attributes:
        key: the batch to go on with; None for the first of those that come last.
        place: where in it: the section, and the sequence number.
        last: it is at those before ``from_ms``.
    """

    __slots__ = ("ever", "first", "key", "last", "place")

    def __init__(self, from_ms: int, *, ever: bool) -> None:
        self.ever = ever
        self.first: Key = (from_ms, 0)
        self.key: Key | None = self.first
        self.place = (0, 0)
        self.last = False

    @property
    def range(self) -> tuple[Key | None, Key | None]:
        """The keys that are left of this part of the way: from the one, up to and without the other."""
        return self.key, self.first if self.last else None

    @property
    def end(self) -> Key | None:
        """What is offered of this batch, and of later ones, is not the oldest that is available; None where all is."""
        return None if self.last else self.key

    def pause(self, key: Key, section: int, seq: int) -> None:
        """Go on here another time."""
        self.key, self.place = key, (section, seq)

    def turn(self) -> bool:
        """All of this part of the way is done; whether another one is left."""
        if self.last:
            return False
        self.last, self.key = True, None
        return True
