"""One simulated machine that runs a server of another design, as sim/host.py runs quorumq's node.

The server is an object that is made anew at every start, from the records that its disk kept; what it has in memory is
gone with the process. Its connections need no handshake, which is in its favour: a message to a process reaches that
process, or is lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import sim.machine
from sim.disks import MemoryJournal
from sim.fsyncs import Disk
from sim.rivals.workload import TOPIC, Key
from sim.world import World


class Server(Protocol):
    """A design's process, as its machine sees it."""

    def on_request(self, key: int, request: Any) -> None:
        """Take in a client's request; the answer goes to `Machine.reply` under this key."""

    def on_message(self, sender: str, message: Any) -> None:
        """Take in a message of another machine's server."""

    def on_gone(self, key: int) -> None:
        """Take back a request: its client waits no more."""


class CountedJournal(MemoryJournal):
    """Counts the fsyncs."""

    def __init__(self) -> None:
        super().__init__()
        self.syncs = 0

    def begin(self) -> None:
        self.syncs += 1
        super().begin()


class Unseen:
    """Observer that ignores appended records."""

    def appends(self, *_: object) -> None: ...


class Machine(sim.machine.Machine):
    """A machine and the server that runs on it, if it does.

    Args:
        peers: all machines, filled later.
        serve: makes a server of this machine and of the records that its disk kept.
    """

    core: Server | None
    journal: CountedJournal
    sightings = Unseen()

    def __init__(
        self,
        world: World,
        name: str,
        peers: Mapping[str, Machine],
        serve: Callable[[Machine, list[Any]], Server],
    ) -> None:
        super().__init__(world, name)
        self.peers = peers
        self.serve = serve
        self.journal = CountedJournal()
        self.disk = Disk(self, self.journal, self.disk_rng)
        self.syncing = False
        self.unsynced: deque[tuple[int, Callable[[], None]]] = deque()

    # ------------------------------------------------------------ life and death

    def boot(self, life: int, _: object = None) -> None:
        """Start the server, unless something happened since this was planned."""
        if life != self.life or self.core is not None:
            return
        self.world.note(f"node:{self.name}", "start", incarnation=self.life + 1)
        self.core = self.serve(self, list(self.journal.open()))

    def crash(self, *, power: bool, clean: bool = False) -> None:
        """End the process."""
        if self.core is None:
            return
        kind, extra = ("stop", {}) if clean else ("crash", {"detail": "power" if power else "process"})
        self.world.note(f"node:{self.name}", kind, incarnation=self.life + 1, **extra)
        self.syncing = False
        self.unsynced.clear()
        if clean:
            self.journal.close()
        self.gone(power=power, clean=clean)

    def stop(self) -> None:
        """Stop cleanly."""
        self.crash(power=False, clean=True)

    def lose_link(self, peer: str, seconds: float) -> None:
        """Make connections again at once."""

    # ------------------------------------------------------------------- the wire

    def send(self, to: str, message: Any) -> None:
        """Send to the process that runs there now."""
        kind = getattr(message, "kind", "")  # an answer, or else what a round asks, or a message alone
        self.world.count(f"{kind}Reply" if kind else type(getattr(message, "request", message)).__name__)
        peer = self.peers[to]
        self.world.transmit(self.name, to, peer.receive, (self.name, message), peer.life)

    def receive(self, what: tuple[str, Any], life: int) -> None:
        """Receive a message for our life of that number."""
        if self.core is None or life != self.life:
            return
        if self.waits(self.receive, what, life):
            return
        self.world.messages += 1
        self.core.on_message(*what)

    def taken(self, key: int, request: Any) -> None:
        assert self.core is not None
        self.core.on_request(key, request)

    def on_gone(self, name: str, op: int) -> None:
        """Note that a client has hung up."""
        key = self.keys_of.pop((name, op), None)
        if key is not None and self.open.pop(key, None) is not None and self.core is not None:
            self.core.on_gone(key)

    def reply(self, key: int, answer: Any) -> None:
        """Answer a client, if it still waits."""
        client, op = self.open.pop(key, (None, 0))
        if client is not None:
            self.keys_of.pop((client.name, op), None)
            self.world.transmit(self.name, client.name, client.on_reply, op, (answer, None))

    def note(self, kind: str, keys: Iterable[Key], **fields: object) -> None:
        """Write lines of the node about these messages, one for each partition and producer."""
        spans: dict[int, list[list[Any]]] = {}
        for key in keys:
            mine = spans.setdefault(key.partition, [])
            if mine and mine[-1][0] == key.producer_id and mine[-1][2] == key.seq:
                mine[-1][2] += 1
            else:
                mine.append([key.producer_id, key.seq, key.seq + 1])
        for number, named in spans.items():
            self.world.note(f"node:{self.name}", kind, topic=TOPIC, partition=number, spans=named, **fields)

    # ------------------------------------------------------------- time and the disk

    @property
    def mono(self) -> float:
        """Return the machine's monotonic clock, in seconds."""
        return self.clock.mono(self.world.time)

    @property
    def wall_ms(self) -> int:
        """Return the machine's time of day, in milliseconds."""
        return self.clock.now(self.world.time).wall_ms

    def after(self, seconds: float, action: Callable[..., None], *args: Any) -> None:
        """Do something in ``seconds`` of this machine's clock, if the process still runs."""
        self.world.after(seconds / self.clock.rate, self._fire, (self.life, action), args)

    def _fire(self, what: tuple[int, Callable[..., None]], args: tuple[Any, ...]) -> None:
        life, action = what
        if life != self.life or self.core is None:
            return
        if not self.waits(self._fire, what, args):
            action(*args)

    def persist(self, records: tuple[Any, ...], then: Callable[[], None]) -> None:
        """Append records, and do ``then`` once they are durable. One fsync serves all that came before it began."""
        self.disk.append(records)
        self.unsynced.append((self.journal.position, then))
        if not self.syncing:
            self.syncing = True
            self.disk.begin_sync(True)

    def synced(self) -> None:
        life = self.life
        self.syncing = False
        while self.unsynced and self.unsynced[0][0] <= self.journal.durable and self.life == life:
            self.unsynced.popleft()[1]()
        if self.unsynced and not self.syncing:
            self.syncing = True
            self.disk.begin_sync(True)
