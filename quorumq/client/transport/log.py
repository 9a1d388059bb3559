"""Log of the client's own actions that no result and no exception reports, by `logging`.

The logger is ``quorumq.client``. Of each kind of event there is one line in ten seconds at most, and the next one
says how many there were between.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Final

LOGGER: Final = logging.getLogger("quorumq.client")
EVERY_S: Final = 10.0
KINDS_MAX: Final = 1000


@dataclass(eq=False)
class Log:
    """Log that says the same kind of thing once in a while."""

    clock: Callable[[], float]  # seconds
    _said: dict[Hashable, tuple[float, int]] = field(default_factory=dict)
    """End of its silence and number of its events, by kind."""

    def info(self, kind: Hashable, text: str, *args: object) -> None:
        """Log that the client went on by itself."""
        self._say(logging.INFO, kind, text, args)

    def warning(self, kind: Hashable, text: str, *args: object) -> None:
        """Log an event that the application may notice."""
        self._say(logging.WARNING, kind, text, args)

    def error(self, kind: Hashable, text: str, *args: object) -> None:
        """Log that a request was not carried out."""
        self._say(logging.ERROR, kind, text, args)

    def _say(self, level: int, kind: Hashable, text: str, args: tuple[object, ...]) -> None:
        if not LOGGER.isEnabledFor(level):
            return
        now = self.clock()
        until, missed = self._said.pop(kind, (now, 0))
        if now < until:
            self._said[kind] = (until, missed + 1)
            return
        if len(self._said) >= KINDS_MAX:
            del self._said[next(iter(self._said))]
        self._said[kind] = (now + EVERY_S, 0)
        more = f" ({missed} more like this before)" if missed else ""
        LOGGER.log(level, text + more, *args)
