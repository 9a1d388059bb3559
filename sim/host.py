"""The real NodeCore and its driver on a simulated machine (sim/machine.py).

Slow fsyncs are in sim/fsyncs.py, connections that break in sim/links.py.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import random
from collections.abc import Mapping
from typing import Any

from quorumq.core import messages as m
from quorumq.core.cluster.members import first_layout
from quorumq.core.cluster.state import NodeConfig
from quorumq.core.messages.diskroom import Shortage
from quorumq.core.messages.effects import (
    CleanStop,
    Damaged,
    DiskFull,
    Event,
    Gone,
    MemoryFull,
    Raised,
    Received,
    Request,
    Restart,
    SendStored,
    Stop,
    Unsent,
)
from quorumq.core.messages.records import BatchStored, ClusterMade, JournalRecord, Started, TopicPut
from quorumq.core.node.nodecore import NodeCore
from quorumq.core.requests.settle import SettleCoordinator
from quorumq.core.values.errors import UsageError
from quorumq.core.values.types import Batch, ClusterLayout, NodeId, Now
from quorumq.driver import Driver
from quorumq.storage.commit import NoCapacity
from sim.disks import DamagedBody, MemoryJournal, SimJournal
from sim.fsyncs import FULL_AGAIN_S, Disk
from sim.knowledge import compare, compare_holds, knows_all
from sim.links import Links
from sim.machine import Caller, Machine
from sim.observer import Observer
from sim.sightings import Sightings, check_deleted
from sim.step_limits import STEP_S
from sim.store_journal import StoreJournal
from sim.world import RESET, SimError

CLUSTER_ID = "sim"

LEFT = {Shortage.NONE: None, Shortage.RESERVE: None, Shortage.LAST_RESERVE: None, Shortage.FULL: 300}
"""Bytes that are left on a disk by its room; more is an error of the disk."""

WRITES = (m.CreateTopic, m.AlterTopic, m.SetGroup, m.DeleteGroup, m.PurgeRequest, m.ChangeMembers)
"""Requests that no copy follows: it would be one more write, made after the client got the answer to the first."""


def refuses_another_configuration(
    config: NodeConfig, records: list[JournalRecord], now: Now, rng: random.Random
) -> bool:
    """Try now and then to start the node with a configuration that the cluster was not made with; True if tried.

    Raises:
        SimError: the node takes it.
    """
    if not any(type(record) is ClusterMade for record in records) or rng.random() >= 0.2:
        return False
    change: dict[str, Any] = {"hold_time_max": config.hold_time_max * rng.choice((0.5, 2.0))}
    if rng.random() < 0.5:
        change = {"nodes": (*config.nodes, "another")}
    with contextlib.suppress(UsageError):
        NodeCore(dataclasses.replace(config, **change), records, nonce=1, directory=1, now=now, rng=rng)
        raise SimError(
            f"node {config.node} takes a configuration that its cluster was not made with: {change}"
        )
    return True


class Host(Machine):
    """One machine and the node that runs on it, if it does."""

    core: NodeCore | None
    driver: Driver | None

    def __init__(self, observer: Observer, name: NodeId, peers: Mapping[NodeId, Links]) -> None:
        super().__init__(observer.world, name)
        self.observer = observer
        self.recall_rng = self.world.stream(f"recall/{name}")
        options = self.world.options
        self.config = NodeConfig(
            node=name,
            nodes=options.founder_names,
            layout=None if name in options.founder_names else first_layout(options.founder_names),
            cluster_id=CLUSTER_ID,
            hold_time_max=options.hold_time_max,
            request_timeout=options.request_timeout,
            heartbeat=options.heartbeat,
            sync_interval=options.sync_interval,
            sync_grace=options.sync_grace,
            session_idle=options.session_idle,
            packed_above=options.node_names.index(name),  # so that replicas differ in it
            deleted_unpacked=options.node_names.index(name),
            auto_create_topics=options.implicit,
        )
        self.is_member, self.layout_number = name in options.founder_names, 0
        self.journal: SimJournal = (
            StoreJournal(name, CLUSTER_ID, self.disk_rng) if options.disk == "store" else MemoryJournal()
        )
        self.config_rng = self.world.stream(f"config/{name}")
        self.shortage = Shortage.NONE  # on the disk
        self.counts = True  # attempts were journaled since the start
        self.started = False
        self.wake_at: float | None = None
        self.wake_due = math.inf  # the deadline for which that is
        self.turn: list[Event] = []  # events of this turn of the loop
        self.once: dict[tuple[str, int], None] = {}  # requests with a second copy that would be another write
        self.sightings = Sightings(observer, name)
        self.links = Links(self, name, peers, self.disk_rng)
        self.send = self.links.send  # as the driver's port
        self.disk = Disk(self, self.journal, self.disk_rng)

    # ------------------------------------------------------------ life and death

    def dismiss(self, number: int) -> None:
        """Stop the node for good, as it is no member since a layout; it may be let in again later."""
        if self.is_member and number > self.layout_number:
            self.layout_number, self.is_member = number, False
            self.crash(power=False)

    def admit(self, layout: ClusterLayout) -> None:
        """Let the node in: it starts with this layout, now and whenever its directory is empty."""
        if not self.is_member and layout.number > self.layout_number:
            self.layout_number, self.is_member = layout.number, True
            self.config = dataclasses.replace(self.config, layout=layout)
            self.boot(self.life)

    def boot(self, life: int, _: object = None) -> None:
        """Start the node, unless something happened to it since this was planned."""
        if life != self.life or self.core is not None or not self.is_member:
            return
        now = self.clock.now(self.world.time)
        self.counts = True
        records = self.journal.open()
        if refuses_another_configuration(self.config, records, now, self.config_rng):
            self.world.saw("another configuration was refused")
        nonce, directory = self.rng.getrandbits(64), self.rng.getrandbits(64) | 1
        core = NodeCore(
            self.config,
            records,
            nonce=nonce,
            directory=directory,
            now=now,
            rng=self.rng,
            location=self.journal.location(),
            boot=self.boots,
        )
        if core.trust.moved:
            self.world.saw("a moved directory was noticed")
        core.take_position(self.journal.records_durable())
        core.load_damaged(self.journal.damaged(), now)
        if self.journal.damaged():
            self.world.saw("a start found a damaged batch")
        self.core = core
        self.driver = Driver(core, self, self.disk, self.rng)
        for record in records:
            if type(record) is BatchStored:  # maybe no client waited for its fsync, and it survived
                self.sightings.keeps(record.batch.header)
            elif type(record) is TopicPut:
                self.sightings.adopts(record.topic)
        core.state.next_batch = max(core.state.next_batch, self.journal.next_number())
        try:
            self.journal.ready(lambda: core.snapshot(self.clock.now(self.world.time)))
        except NoCapacity:
            self.world.saw("a start waited for room on the disk")
            self.core = self.driver = None
            self.journal.crash(self.disk_rng, power=False)
            self.world.after(FULL_AGAIN_S, self.boot, life)
            return
        held = any(
            view.held_count for replica in core.replicas.values() for view in replica.views.groups.values()
        )
        if held:
            self.world.saw("a clean stop's holds were restored")
        if any(self.observer.topics.is_over(partition.topic) for partition in core.replicas):
            self.world.saw("a node came back with a topic that was deleted meanwhile")
        quiet = core.state.quarantine_until <= now.mono
        self.world.note(
            f"node:{self.name}",
            "start",
            incarnation=core.state.incarnation.n,
            outcome="fresh" if not records else "restored" if quiet else "quarantine",
        )
        self.driver.start()
        self.driver.commit()
        self.arm()
        if self.shortage:
            self.world.saw("a node started on a full disk")
            self.set_shortage(self.shortage)

    def exit_world(self, *, power: bool, clean: bool = False) -> None:
        """End the process, and all but the journal with it. Record the last sightings of what it forgot by then."""
        core = self.core
        assert core is not None
        self.check()
        for replica in core.replicas.values():
            for view in replica.views.groups.values():
                if any(held.owner.node == self.name for _, held in view.all_held()):
                    self.world.saw("a node went down while it held")
        self.driver = self.wake_at = None
        self.wake_due = math.inf
        self.started = False
        self.turn.clear()
        self.links.clear()
        self.gone(power=power, clean=clean)
        self.observer.on_death(self.name, power=power)

    def crash(self, *, power: bool) -> None:
        """Stop without warning."""
        if self.core is None:
            return
        self.world.note(
            f"node:{self.name}",
            "crash",
            incarnation=self.core.state.incarnation.n,
            detail="power" if power else "process",
        )
        self.exit_world(power=power)

    def begin_again(self, life: int, _: object = None) -> None:
        """Replace the core at its request: its directory is not trusted, and is resynced."""
        if life == self.life and self.core is not None:
            self.world.saw("a node could not be trusted, and began again")
            self.crash(power=False)
            self.boot(self.life)

    def stop(self) -> None:
        """Stop cleanly."""
        full = self.shortage == Shortage.FULL  # then nothing is written at a stop
        if self.core is None or not self.started or full or self.frozen_until > self.world.time:
            self.crash(power=False)
            return
        core, driver = self.core, self.driver
        assert driver is not None
        driver.silent = True
        driver.feed(CleanStop())
        self.journal.close()
        records = self.journal.kept()
        if records is not None and core.state.trusted and self.shortage < Shortage.LAST_RESERVE:
            compare_holds(core, records, self.clock.now(self.world.time))
        self.world.note(f"node:{self.name}", "stop", incarnation=core.state.incarnation.n, reason="asked to")
        self.exit_world(power=False, clean=True)

    # -------------------------------------------------------------------- steps

    def feed(self, *events: Event) -> None:
        """Let the core take events in, and carry out its effects."""
        core, driver = self.core, self.driver
        if core is None or driver is None:
            return
        if driver.busy:  # it takes them in when it has carried out what it is at
            driver.feed(*events)
            return
        self.timed = not events
        options = self.world.options
        if options.turn:
            self.turn += events
            if events and type(events[-1]) in (Request, Received):
                if len(self.turn) == len(events):
                    self.world.after(self.disk_rng.random() * options.turn, self.end_turn, self.life)
                return
            events = tuple(self.turn)
            self.turn.clear()
        members = core.catalogue.cluster
        driver.feed(*events)
        if core.catalogue.cluster is not members:
            self.links.end_unlinked()
        if options.check and self.recall_rng.random() < options.check:
            self.check()
        if options.recall and self.recall_rng.random() < options.recall:
            self.recall()
        if options.runs_per_step and not self.world.healed:
            self.observer.on_steps(self.name, self.half_done(core))
        self.arm()

    def half_done(self, core: NodeCore) -> list[tuple[Caller, int]]:
        """Return the callers whose requests this step has left in part to the next one."""
        requests = core.context.requests.items()
        unfinished = [
            key for key, request in requests if isinstance(request, SettleCoordinator) and request.asks
        ]
        return [self.open[key] for key in unfinished if key in self.open]

    def end_turn(self, life: int, _: object = None) -> None:
        """Feed the events of one turn of the loop to the core in one step."""
        if life != self.life or not self.turn:
            return
        if self.frozen_until > self.world.time:
            self.world.at(self.frozen_until, self.end_turn, life)
        else:
            self.feed()

    def recall(self) -> None:
        """Check that the journal has all that the node knows (sim/knowledge.py), unless a layout waits for the disk."""
        if self.core is not None and self.core.context.completions:
            return
        core, records = self.core, self.journal.kept()
        if core is not None and records is not None and core.started and not core.trust.lost:
            durable = self.journal.durable >= self.journal.position
            now = self.clock.now(self.world.time)
            snapshot = self.recall_rng.random() < 0.5
            compare(
                core,
                records,
                now,
                durable=durable,
                times=self.observer.steady,
                counted=self.counts,
                snapshot=snapshot,
            )
            self.world.saw("a journal was compared with what its node knows")

    def knows_what(self, other: Host) -> bool:
        """Return True if ``other``'s knowledge is durable here, and its batches are here; attempts are an estimate."""
        if (
            self.core is None
            or other.core is None
            or not (self.core.state.trusted and other.core.state.trusted)
        ):
            return False
        durable = self.journal.durable >= self.journal.position
        return durable and knows_all(self.core, other.core)

    def arm(self) -> None:
        """See to it that the core is woken at its next deadline."""
        if self.driver is None:
            return
        deadline = self.driver.next_deadline()
        if deadline is None or deadline >= self.wake_due:
            return
        time = self.clock.true_time(deadline)
        if time <= self.world.time:
            time = self.world.time
            # The last step took some time, and may have left events waiting.
            if self.world.options.runs_per_step:
                time += self.disk_rng.random() * STEP_S
        if self.wake_at is None or time < self.wake_at:
            self.wake_at, self.wake_due = time, deadline
            self.world.at(time, self.wake, time, self.life)

    def wake(self, time: float, life: int) -> None:
        """Wake the core at a deadline."""
        if life != self.life or self.driver is None or self.wake_at != time:
            return
        if self.frozen_until > self.world.time:
            self.wake_at, self.wake_due = self.frozen_until, math.inf
            self.world.at(self.frozen_until, self.wake, self.frozen_until, life)
            return
        self.wake_at, self.wake_due = None, math.inf
        deadline = self.driver.next_deadline()
        if deadline is not None:
            now = self.clock.mono(self.world.time)
            if now < deadline < now + 1e-6:
                self.clock.last = deadline  # rounding must not make it wake a moment early, again and again
            if now + 1e-6 <= deadline:
                self.arm()
                return
        self.feed()

    # ------------------------------------------------------- what the driver and the disk say

    def now(self) -> Now:
        return self.clock.now(self.world.time)

    def flush(self) -> None:
        pass

    def kept(self, records: tuple[JournalRecord, ...]) -> None:
        """Note that the appended records survive now."""
        for record in records:
            if type(record) is BatchStored:
                self.sightings.keeps(record.batch.header)
                if self.journal.header(record.number) is None:  # its topic was deleted while it was written
                    self.sightings.discards([record.batch.header])
            elif type(record) is TopicPut:
                self.sightings.adopts(record.topic)
            elif type(record) is Started:
                self.started = True
                self.links.dial_all()

    def synced(self) -> None:
        """Note that an fsync is over."""
        assert self.core is not None
        assert self.driver is not None
        self.driver.synced()
        for number in self.journal.compact():
            self.on_damaged(DamagedBody(number))
        if self.core.state.trusted:
            self.journal.trusted()
        self.feed()

    def end(self, effect: Stop | Restart) -> None:
        if isinstance(effect, Stop):
            raise SimError(f"node {self.name} stopped itself: {effect.reason}")
        self.world.after(0.0, self.begin_again, self.life)

    def raised(self, effect: Raised) -> None:
        raise effect.error

    def send_stored(self, effect: SendStored) -> None:
        try:
            batch = self.journal.batch(effect.batch)
        except DamagedBody as error:
            self.on_damaged(error)
            return
        self.links.send(effect.to, m.Store(0, effect.epoch, batch, effect.age_ms))

    # ------------------------------------------------------------------- clients

    def on_request(self, caller: tuple[Caller, int], request: m.ClientRequest) -> None:
        """Take in a client's request."""
        if type(request) in WRITES:
            copy = (caller[0].name, caller[1])
            if copy in self.once:
                return
            self.once[copy] = None
        super().on_request(caller, request)

    def taken(self, key: int, request: m.ClientRequest) -> None:
        self.feed(Request(key, request))

    def on_gone(self, name: str, op: int) -> None:
        """Note that a client's connection is gone, with a request open on it."""
        key = self.keys_of.pop((name, op), None)
        if key is None or key not in self.open:
            return
        if self.waits(self.on_gone, name, op):
            self.keys_of[(name, op)] = key
            return
        client, _ = self.open[key]
        half_done = self.core is not None and (client, op) in self.half_done(self.core)
        self.open[key] = (client, -1)
        # Else the core's answer is under way already when the connection ends.
        if self.disk_rng.random() < 0.5:
            if half_done:
                self.world.saw("a client left when half of its request was done")
            self.feed(Gone(key))

    def break_off(self, client: Caller, op: int) -> None:
        """Break a client's connection with a request open on it: both hear of it."""
        if (client.name, op) in self.keys_of:
            self.world.transmit(self.name, client.name, client.on_reply, op, (RESET, None))
            self.on_gone(client.name, op)

    def reply(self, key: int, reply: m.ClientReply) -> None:
        """Write an answer to its caller."""
        client, op = self.open.pop(key)
        if op is None:  # a peer's HELLO
            caller, life, number = client
            answer = (life, number, self.name, self.life)
            self.world.transmit(self.name, caller.name, caller.on_welcome, answer, reply)
            return
        if op == -1:  # the connection is known to be gone: the write is never begun
            if type(reply) is m.FetchReply:
                self.world.saw("a reply was never begun")
                self.feed(Unsent(key))
            return
        self.keys_of.pop((client.name, op), None)
        batches: tuple[Batch, ...] | None = None
        if type(reply) is m.FetchReply:
            try:
                batches = self.links.bodies(reply.slices)
            except (DamagedBody, KeyError) as error:  # or forgotten since the core answered
                if isinstance(error, DamagedBody):
                    self.on_damaged(error)
                self.feed(Unsent(key))
                refusal = m.Failed(
                    "too-few-replicas", "a batch of this answer cannot be read: ask again", 1, 0
                )
                self.world.transmit(self.name, client.name, client.on_reply, op, (refusal, None))
                return
            if any(part.deliveries[0].receipt.owner.node == self.name for part in reply.slices):
                self.observer.on_fetched(self.name, reply)
        self.world.transmit(self.name, client.name, client.on_reply, op, (reply, batches))

    # --------------------------------------------------------------------- faults

    def lose_link(self, peer: NodeId, seconds: float) -> None:
        """Break our connection to ``peer``; we notice in ``seconds``."""
        self.links.lose(peer, seconds)

    def check(self) -> None:
        """Assert the invariants between any two steps of the core, if it runs."""
        if self.core is not None:
            self.core.check(self.clock.now(self.world.time))

    def check_deleted(self) -> None:
        """Check that nothing is left of deleted topics."""
        if self.core is None:
            return  # it was never added
        check_deleted(self.name, self.core, self.journal.stored(), self.observer.topics)

    def on_damaged(self, error: DamagedBody) -> None:
        """Set a batch aside that cannot be read: its bytes go to no client."""
        self.world.saw("a damaged batch was not served")
        self.journal.set_aside(error.number)
        self.feed(Damaged(error.number))

    def set_shortage(self, shortage: Shortage, _: object = None) -> None:
        """Give the disk this room, and as little memory, for every process that starts on it from now on."""
        self.shortage = shortage
        self.counts = self.counts and shortage < Shortage.FULL
        self.journal.fill(LEFT[shortage])
        if self.core is not None:
            self.feed(DiskFull(shortage), MemoryFull("no memory is left" if shortage else ""))
