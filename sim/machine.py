"""A simulated machine for any server: clocks, a disk, clients that wait; it stands still, and dies.

sim/host.py adds quorumq's node.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from sim.disks import DamagedBody, SimJournal
from sim.world import REFUSAL, RESET, Clock, World


def cores_of(machines: Mapping[str, Any]) -> dict[str, Any]:
    """Return the cores that run on these machines, by name."""
    return {name: machine.core for name, machine in machines.items() if machine.core is not None}


class Caller(Protocol):
    """A client, as a machine sees it."""

    name: str

    def on_reply(self, op: int, answer: Any) -> None: ...


class Machine:
    """One machine.

    Attributes:
        sightings: observer of the appended records.
        timed: True if nothing but time led to the core's step.
        feed, on_damaged: of quorumq's node only: it takes events in, and hears of a batch that cannot be read.
        life: number of starts: an action scheduled in an earlier life does nothing.
        frozen_until: true time until which the process does not run.
        slow_until: true time until which its disk is slow, ``slow_factor`` times.
        backlog: actions that were due meanwhile.
        open: callers by the key of the request; the number of the request is -1 if no client waits
            any more, None if a peer dials.
    """

    core: Any
    driver: Any = None
    journal: SimJournal
    sightings: Any
    timed = False
    feed: Callable[..., None]
    on_damaged: Callable[[DamagedBody], None]

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.rng = world.stream(f"node/{name}")
        self.disk_rng = world.stream(f"disk/{name}")
        self.clock = Clock(world.stream(f"clock/{name}"), world.options.clock_rate, world.options.wall_offset)
        self.core = None
        self.started = True
        self.life = 0
        self.boots = 1
        self.frozen_until = self.slow_until = 0.0
        self.slow_factor = 1.0
        self.backlog: deque[tuple[Callable[..., None], Any, Any]] = deque()
        self.open: dict[int, tuple[Any, Any]] = {}
        self.keys_of: dict[tuple[str, int], int] = {}
        self.keys = 0

    def taken(self, key: int, request: Any) -> None:
        """Note that a client's request is there."""
        raise NotImplementedError

    def synced(self) -> None:
        """Note that an fsync is over."""
        raise NotImplementedError

    # ------------------------------------------------------------ life and death

    def gone(self, *, power: bool, clean: bool = False) -> None:
        """End the process; unless it ended cleanly, any suffix of the records that are not durable is gone, too."""
        self.core = None
        self.life += 1
        self.frozen_until = 0.0
        self.backlog.clear()
        if not clean:
            self.journal.crash(self.disk_rng, power=power)
        if power:
            self.clock.reboot(self.disk_rng, self.world.time)
            self.boots += 1
        callers, self.open = self.open, {}
        self.keys_of.clear()
        for client, op in callers.values():
            if op is not None and self.disk_rng.random() < (0.3 if power else 0.9):
                self.world.transmit(self.name, client.name, client.on_reply, op, (RESET, None))

    def freeze(self, seconds: float) -> None:
        """Freeze the process for a while; events meanwhile wait."""
        if self.core is not None:
            self.frozen_until = max(self.frozen_until, self.world.time + seconds)
            self.world.after(seconds, self.thaw, self.life)

    def thaw(self, life: int, _: object = None) -> None:
        """Let the process run again, and take in the events that wait."""
        if life == self.life and self.frozen_until <= self.world.time:
            while self.backlog and self.life == life:
                action, one, two = self.backlog.popleft()
                action(one, two)

    def waits(self, action: Callable[..., None], one: Any, two: Any) -> bool:
        """Return True if the process does not run: then ``action(one, two)`` happens when it does again."""
        if self.frozen_until <= self.world.time:
            return False
        self.backlog.append((action, one, two))
        return True

    # ------------------------------------------------------------------- clients

    def on_request(self, caller: tuple[Caller, int], request: Any) -> None:
        """Take in a client's request."""
        client, op = caller
        if self.core is None or not self.started:
            self.world.transmit(self.name, client.name, client.on_reply, op, (REFUSAL, None))
            return
        if self.waits(self.on_request, caller, request):
            return
        self.world.messages += 1
        self.world.count(type(request).__name__)
        key = self.keys_of[(client.name, op)] = self.key_for(client, op)
        self.taken(key, request)

    def key_for(self, client: Any, op: Any) -> int:
        """Return a key for a request of ``client``, or of the links of a peer that dials if ``op`` is None."""
        self.keys += 1
        self.open[self.keys] = (client, op)
        return self.keys
