"""A pause for a pool whose handler fails on everything: a broken deployment must not empty a queue into dead letters.

Dead letters of one fingerprint are counted until a message succeeds. The 20th pauses the pool of this process for a
second, each 20 more for twice as long; from a minute on each 100 begin a pause. Other processes of the group go
on. A thousand poison messages in front of a good one therefore cost nine minutes at most, and a broken handler spoils
some hundred messages in an hour instead of all.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from quorumq.client.base.dead_letters import class_name, fingerprint, text_of, top_frame

FUSE: Final = 20
"""Dead letters of one fingerprint without a success, until the pool pauses."""
FUSE_SLOW: Final = 100
"""The same once a pause takes `PAUSE_MAX_S`."""
PAUSE_S: Final = 1.0
PAUSE_MAX_S: Final = 60.0
KINDS_MAX: Final = 1000
"""Fingerprints counted at most: with more, counting begins anew."""


@dataclass(eq=False)
class Fuse:
    """Counts of the failures of one handler, which say when to pause."""

    paused_until: float = 0.0  # end of the last pause
    _counts: dict[str, int] = field(default_factory=dict)  # dead letters since a success, by fingerprint
    _pause: float = PAUSE_S  # seconds, of the next pause

    def succeeded(self) -> None:
        """Begin anew: the handler works."""
        self._counts.clear()
        self._pause = PAUSE_S

    def died(self, error: Exception, now: float) -> float:
        """Count a dead letter.

        Args:
            now: seconds, on the clock of `paused_until`.

        Returns:
            Seconds of the pause that begins now; 0.0 if none does.
        """
        kind = fingerprint(class_name(error), text_of(error), top_frame(error))
        if kind not in self._counts and len(self._counts) >= KINDS_MAX:
            self._counts.clear()
        count = self._counts.get(kind, 0) + 1
        if now < self.paused_until or count < (FUSE if self._pause < PAUSE_MAX_S else FUSE_SLOW):
            self._counts[kind] = count
            return 0.0
        self._counts[kind] = 0
        pause, self._pause = self._pause, min(PAUSE_MAX_S, 2 * self._pause)
        self.paused_until = now + pause
        return pause
