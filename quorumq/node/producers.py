"""Clients whose publish times are not of this node's time of day: for the log and for `quorumq status`.

A producer's time of day only matters when a group is rewound to a time. So this is for people: it is in memory, and a
start begins with nothing. Bounds: if there are too many clients, those that were checked longest ago are dropped first.
If a clock is wrong, it is reported for an hour at most after the client's last publish.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Final

WRONG_MS: Final = 1_000
"""A difference up to this is that of two machines with a time service."""

SPAN_S: Final = 10.0
"""Seconds to look for the least delay of a client's publishes, before its clock counts as behind."""

LATE_MS: Final = 30_000
"""No publish is on its way for longer. So if a client is behind by more, that is certain at once."""

SAID_AGAIN_S: Final = 3_600.0
"""Least seconds between equal log lines of a client, and seconds that status shows it after its last publish."""

TRACKED_MAX: Final = 1_024
TOLD_MAX: Final = 32
"""Most clients that a status names. If there are more, it has those that are furthest off."""

NAME_CHARS_MAX: Final = 100
NONE_YET: Final = -(1 << 63)

Who = tuple[str, str]
"""A client's name, or that of its software, and its address without the port."""


@dataclass(slots=True, eq=False)
class Seen:
    """Clock of one client, judged by its publishes. Times are monotonic seconds."""

    since: float  # start of the present span
    at: float  # time of the last publish
    ahead_ms: int = (
        NONE_YET  # the most in this span: a publish that was on its way for long seems to be behind
    )
    wrong_ms: int = 0  # last error found; 0 if the clock was right
    said_at: float = float("-inf")
    said_ms: int = 0


class ProducerClocks:
    """Compares the clocks of clients that publish with this node's."""

    def __init__(self, log: Any) -> None:
        self._log = log
        self._seen: OrderedDict[Who, Seen] = OrderedDict()

    def published(self, who: Who, ahead_ms: int, now: float) -> None:
        """Note a PUBLISH.

        Args:
            ahead_ms: milliseconds from the time at which the batch was made (this node's time of day less the batch's
                age) to its publish time.
        """
        seen = self._seen.get(who)
        if seen is None:
            if len(self._seen) >= TRACKED_MAX:
                self._seen.popitem(last=False)
            seen = self._seen[who] = Seen(now, now)
        seen.at = now
        if ahead_ms > seen.ahead_ms:
            seen.ahead_ms = ahead_ms
        if now - seen.since >= SPAN_S:
            self._check(who, seen, now)
            seen.since, seen.ahead_ms = now, NONE_YET
            self._seen.move_to_end(who)
        elif seen.ahead_ms > WRONG_MS or seen.ahead_ms < -LATE_MS:
            self._check(who, seen, now)

    def _check(self, who: Who, seen: Seen, now: float) -> None:
        wrong = seen.wrong_ms = seen.ahead_ms if abs(seen.ahead_ms) > WRONG_MS else 0
        said = abs(wrong - seen.said_ms) <= WRONG_MS and now < seen.said_at + SAID_AGAIN_S
        if wrong and not said:
            seen.said_at, seen.said_ms = now, wrong
            self._log.warning(
                "client_clock_wrong", client=f"{who[0]} at {who[1]}", ahead_s=round(wrong / 1000, 1)
            )

    def fields(self, now: float) -> dict[str, object]:
        """Return, for a status, the clients with a wrong clock, the worst first, and their number."""
        wrong = [
            (who, seen) for who, seen in self._seen.items() if seen.wrong_ms and now < seen.at + SAID_AGAIN_S
        ]
        wrong.sort(key=lambda item: (-abs(item[1].wrong_ms), item[0]))
        shown = [
            {
                "client": name[:NAME_CHARS_MAX],
                "address": host,
                "ahead_s": round(seen.wrong_ms / 1000, 1),
                "seen_s_ago": round(now - seen.at, 1),
            }
            for (name, host), seen in wrong[:TOLD_MAX]
        ]
        return {"clients_clock_wrong": len(wrong), "clock_wrong": shown}
