"""Health of a node's shell, for `quorumq status`.

Counters and a minute of commit times, all bounded. They are read only when a status is asked for.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from quorumq.core.values.types import Now
from quorumq.node.config import ServeConfig
from quorumq.storage.journal import Journal
from quorumq.wire.tls import expiry_of

WINDOW_S: Final = 60.0
SAMPLES_MAX: Final = 20_000
"""Most commit times that are kept: 300 a second for a minute. If there are more, the window is shorter."""

_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


COUNTS: Final = {
    "sends_dropped": "Messages to peers that were dropped.",
    "replies_late": "FETCH answers given back, as the client did not read.",
    "connections_broken": "Connections that ended over what came on them.",
    "requests_failed": "Requests that a bug has failed.",
    "requests_beyond_quota": "Requests of clients that were told to wait.",
    "messages_not_sent": "Messages to peers that could not be encoded.",
}
"""Every count, with its meaning, by name."""


@dataclass(eq=False)
class Health:
    """Counters and recent commit times of one node."""

    config: ServeConfig
    clock: Callable[[], Now]
    clients: int = 0  # connections of clients
    connections: int = 0  # all accepted connections, peers and those without HELLO included
    outbox_bytes: Callable[[], int] = lambda: 0  # asked for the bytes that wait to be sent
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTS, 0))
    _commits: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=SAMPLES_MAX))

    def __post_init__(self) -> None:
        self.rss: Callable[[], int] = rss  # asked for the resident bytes of this process
        self._began = self.clock().mono

    def count(self, name: str) -> None:
        self.counts[name] += 1

    def synced(self, seconds: float, now: float) -> None:
        """Note the seconds that an fsync took, at monotonic seconds now."""
        self._commits.append((now, seconds))

    def certificate_left(self) -> int | None:
        """Return the seconds until the certificate in the node's file ends; None if there is no TLS or no such file."""
        if not self.config.tls_cert:
            return None
        try:
            return round(expiry_of(self.config.tls_cert) - self.clock().wall_ms / 1000)
        except (OSError, ValueError, IndexError):
            return None

    def fields(self, inflight_bytes: int, store: Journal) -> dict[str, object]:
        """Return the shell's part of a status (docs/operations.md, "What status shows")."""
        now = self.clock().mono
        times = sorted(seconds for at, seconds in self._commits if at > now - WINDOW_S)
        commits: dict[str, object] = {"count": len(times)}
        for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0)):
            commits[name] = (
                round(1000 * times[min(len(times) - 1, int(share * len(times)))], 3) if times else None
            )
        return {
            "uptime_s": round(now - self._began, 3),
            "pid": os.getpid(),
            "connections": self.connections,
            "clients": self.clients,
            "inflight_bytes": inflight_bytes,
            "outbox_bytes": self.outbox_bytes(),
            "fsync_ms": commits,
            "disk_free": store.free_bytes,
            "disk_reserve": store.kept_free,
            "journal_bytes": journal_bytes(self.config.data_dir),
            "journal_segments": len(store.live),
            "batches": len(store),
            "damaged_batches": len(store.unreadable),
            "rss": self.rss(),
            "certificate_expires_s": self.certificate_left(),
            **self.counts,
        }


def rss() -> int:
    """Return the resident bytes of this process; 0 if the system does not say."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * _PAGE
    except (OSError, ValueError, IndexError):
        return 0


def journal_bytes(directory: str) -> int:
    """Return the bytes of all files in the data directory; 0 if there is none."""
    try:
        with os.scandir(directory) as entries:
            return sum(entry.stat().st_size for entry in entries if entry.is_file())
    except OSError:
        return 0
