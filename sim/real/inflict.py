"""Carries out the faults of a schedule on a cluster of processes, and undoes them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import trio

from quorumq.history import HistoryWriter
from sim.fault_plan import LOSSES, Fault
from sim.real.cluster import CLIENTS, FaultyCluster
from sim.real.moves import Members, Moves
from sim.real.plan import KINDS

FSYNC_S = 0.002
"""Assumed seconds of an fsync, for the factor of a slow disk."""

FSYNC_MAX_S = 1.0

AIMED = ("partition", "kill", "crash")
"""Faults whose ``amount`` is the seconds after a delivery that they wait; 0: they wait for nothing."""

AIM_S = 30.0
LOOK_S = 0.1
"""Most seconds that they wait, and seconds between two looks if nodes serve."""


class Inflicter:
    """Inflicts faults on a running cluster, writes them into a history, and prints each.

    Attributes:
        met: number of faults of each kind that met a node that served.
        delivery: returns when a message is delivered.
        moves: carries out moves of partitions.
        members: carries out changes of the members.
        left_out: number of faults of each kind that cannot be done here.
    """

    def __init__(
        self, cluster: FaultyCluster, history: HistoryWriter, on_fault: Callable[[Fault], None] | None = None
    ) -> None:
        self.cluster = cluster
        self.history = history
        self.on_fault = on_fault
        self.counts: Counter[str] = Counter()
        self.met: Counter[str] = Counter()
        self.left_out: Counter[str] = Counter()
        self.delivery: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint
        self.moves: Moves | None = None  # moves by the operator, once there is one
        self.members: Members | None = None  # and changes of the members
        self.busy: Counter[str] = Counter()  # nodes that something is being done to, by name

    async def run(self, faults: tuple[Fault, ...]) -> None:
        """Inflict each at its time from now; return when the last was begun and undone."""
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for fault in faults:
                await trio.sleep_until(began + fault.at)
                if fault.kind not in KINDS:
                    self.left_out[fault.kind] += 1
                    continue
                nursery.start_soon(self.inflict, fault)

    async def inflict(self, fault: Fault) -> None:
        """Inflict one fault, and end it."""
        self.counts[fault.kind] += 1
        if fault.kind in AIMED and fault.amount:
            await self.aim(fault)
        elif fault.kind in LOSSES:  # there are few of them
            await self.find(fault)
        self.met[fault.kind] += self.meets(fault)
        self.history.write("fault", **fault.told())
        self.history.flush()
        if self.on_fault is not None:
            self.on_fault(fault)
        await getattr(self, "do_" + fault.kind.replace("-", "_"))(fault)

    async def aim(self, fault: Fault) -> None:
        """Wait until all nodes serve, and then until ``amount`` seconds after a delivery; no longer than `AIM_S`.

        A killed node is back at once, however busy the machine is.
        """
        cluster = self.cluster
        cluster.warm(fault.nodes)
        with trio.move_on_after(AIM_S):
            while not (all(map(cluster.serves, self.present)) and all(map(cluster.is_warm, fault.nodes))):
                await trio.sleep(LOOK_S)
            await self.delivery()
            await trio.sleep(fault.amount)

    @property
    def present(self) -> Sequence[str]:
        """Return the names of the nodes that are to run."""
        return self.cluster.nodes if self.members is None else self.cluster.members

    async def find(self, fault: Fault) -> None:
        """Wait until it meets a node that serves; no longer than `AIM_S`."""
        with trio.move_on_after(AIM_S):
            while not self.meets(fault):
                await trio.sleep(LOOK_S)

    def meets(self, fault: Fault) -> bool:
        """Return True if it hurts a node that serves: by its own, by a link between two, or by clients' links."""
        serves = {name: self.cluster.serves(name) for name in self.cluster.nodes}
        if fault.links:
            return any(serves.get(one, True) and serves.get(two, True) for one, two in fault.links)
        if fault.kind in ("pause", "add"):
            return any(serves.values())
        return any(serves[name] and not self.busy[name] for name in fault.nodes)

    async def do_partition(self, fault: Fault) -> None:
        """Block pairs for a while."""
        await self.block(fault.links, fault.seconds)

    async def do_pause(self, fault: Fault) -> None:
        """Cut clients off: nothing goes from or to them."""
        pairs = [pair for name in self.cluster.nodes for pair in ((CLIENTS, name), (name, CLIENTS))]
        await self.block(pairs, fault.seconds)

    def of_all(self, pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        """Return the pairs, with each of the clients in the place of `CLIENTS`."""
        clients = {CLIENTS: self.cluster.clients}
        return [
            (one, two)
            for source, target in pairs
            for one in clients.get(source, (source,))
            for two in clients.get(target, (target,))
        ]

    async def block(self, pairs: Sequence[tuple[str, str]], seconds: float) -> None:
        """Block, wait, unblock."""
        pairs = self.of_all(pairs)
        self.cluster.proxy.block(pairs)
        await self.then(seconds, self.cluster.proxy.unblock, pairs)

    async def then(self, seconds: float, undo: Callable[..., None], *args: object) -> None:
        """Undo it after ``seconds``, or as soon as the wait ends."""
        try:
            await trio.sleep(seconds)
        finally:
            undo(*args)

    async def do_delay(self, fault: Fault) -> None:
        """Delay the bytes of these pairs for a while."""
        pairs = self.of_all(fault.links)
        self.cluster.proxy.delay(pairs, fault.amount)
        await self.then(fault.seconds, self.cluster.proxy.delay, pairs, 0.0)

    async def do_cut(self, fault: Fault) -> None:
        """Break connections, which are made again."""
        self.cluster.proxy.cut(self.of_all(fault.links))

    async def do_kill(self, fault: Fault) -> None:
        """Kill processes, and start them again after a while."""
        names = self.take(fault)
        for name in names:
            self.hurt(name, fault)
        await self.then(fault.seconds, self.give_back, names, self.cluster.spawn)

    do_crash = do_wipe = do_restore = do_flip = do_damage = do_kill

    def hurt(self, name: str, fault: Fault) -> None:
        """Kill one node, and hurt its directory in the fault's way."""
        if fault.kind in ("crash", "wrong-clock"):
            self.cluster.cut_power(name)
            return
        self.cluster.kill(name)
        if fault.kind == "wipe":
            self.cluster.wipe(name)
        elif fault.kind == "restore":
            self.cluster.restore(name, last=bool(fault.amount))
        elif fault.kind == "flip":
            self.cluster.flip(name)
        elif fault.kind == "damage":
            self.cluster.damage(name, int(fault.amount))

    async def do_rot(self, fault: Fault) -> None:
        """Damage bodies of batches under processes that run."""
        for name in fault.nodes:
            if self.cluster.running(name) and not self.busy[name]:
                self.cluster.flip(name)

    async def do_stop(self, fault: Fault) -> None:
        """Stop processes cleanly, and start them again after a while."""
        names = self.take(fault)
        with trio.CancelScope(shield=True):
            # A process that gets the signal to stop ends: it must not be found running, and left.
            async with trio.open_nursery() as nursery:
                for name in names:
                    nursery.start_soon(self.cluster.terminate_async, name)
        await self.then(fault.seconds, self.give_back, names, self.cluster.spawn)

    async def do_wrong_clock(self, fault: Fault) -> None:
        """Take the power of machines, which have another time of day when they boot."""
        await self.do_wall_jump(fault)
        await self.do_kill(fault)

    async def do_wall_jump(self, fault: Fault) -> None:
        """Let the time of day of nodes jump."""
        for name in fault.nodes:
            wall = self.cluster.controls[name].get("wall_s", 0.0) + fault.amount
            self.cluster.control(name, wall_s=wall)

    async def do_freeze(self, fault: Fault) -> None:
        """Freeze processes for a while."""
        names = self.take(fault)
        for name in names:
            self.cluster.pause(name)
        await self.then(fault.seconds, self.give_back, names, self.cluster.resume)

    async def do_move(self, fault: Fault) -> None:
        """Move a slot of a partition to a node, or from it."""
        if self.moves is not None:
            await self.moves.move(fault.nodes[0], int(fault.amount))

    async def do_add(self, fault: Fault) -> None:
        """Have a node join the cluster, give away all that it has, or leave."""
        if self.members is not None:
            await getattr(self.members, fault.kind)(fault.nodes[0])

    do_drain = do_remove = do_add

    async def do_slow_disk(self, fault: Fault) -> None:
        """Make every fsync take many times as long."""
        self.control(fault, fsync_s=min(FSYNC_S * fault.amount, FSYNC_MAX_S))
        await self.then(fault.seconds, partial(self.control, fault, fsync_s=0.0))

    async def do_full_disk(self, fault: Fault) -> None:
        """Leave nodes no space."""
        self.control(fault, full=True)
        await self.then(fault.seconds, partial(self.control, fault, full=False))

    def control(self, fault: Fault, **values: object) -> None:
        """Send nodes' processes the behaviour of their disks."""
        for name in fault.nodes:
            self.cluster.control(name, **values)

    def take(self, fault: Fault) -> list[str]:
        """Take the fault's nodes whose processes run, and that no other fault has."""
        names = [name for name in fault.nodes if not self.busy[name] and self.cluster.running(name)]
        for name in names:
            self.busy[name] += 1
        return names

    def give_back(self, names: list[str], go_on: Callable[[str], None]) -> None:
        """Give back processes that start or go on: other faults may take them again."""
        for name in names:
            go_on(name)
            del self.busy[name]

    async def heal(self, patience: float) -> None:
        """Heal everything: all runs, is connected and quick; times of day stay as they are.

        Raises:
            NodeDied, NotReady: nodes do not serve within ``patience`` seconds.
        """
        self.cluster.proxy.heal()
        for name in self.cluster.nodes:
            self.cluster.resume(name)
            self.cluster.control(name, full=False, fsync_s=0.0)
            self.cluster.spawn(name)
        if self.members is not None:
            await self.members.settle(patience)
        await self.cluster.wait_ready_async(quarantine=True, timeout=patience)
