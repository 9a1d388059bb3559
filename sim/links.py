"""The connections of one simulated machine to its peers.

They break, and both sides notice late; a peer that was started again has another life, which what was sent to the last
one does not reach.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any, Final

from quorumq.core import messages as m
from quorumq.core.messages.effects import HelloRefused, LinkDown, LinkUp, Received, Request, Unposted
from quorumq.core.values.spans import SpanSet
from quorumq.core.values.types import Batch, Incarnation, NodeId, PartitionId, Stamp
from quorumq.wire.codec import decode_message, encode_message
from quorumq.wire.frames import FrameReader
from sim.disks import DamagedBody
from sim.machine import Machine

# One of each is made for every packet, and ``Envelope(...)`` takes twice as long.
_new_envelope: Final[Callable[[type[m.Envelope], tuple[object, ...]], m.Envelope]] = tuple.__new__
_new_received: Final[Callable[[type[Received], tuple[m.Envelope]], Received]] = tuple.__new__

WRITES = (m.Store, m.Ack, m.Reject, m.Extend, m.Merge)
"""Messages that a full node may refuse. No copy follows one that it got meanwhile: TCP brings no frame twice, and a
new connection takes over nothing of a broken one (quorumq/node/links.py). A copy would be written when there is room,
after the client got a definite error (docs/protocol.md, section 6)."""

READ_EVERY = 8
"""Messages of a machine until one is read from its bytes, in a run without checks after its steps: all would take
a third more time."""

FOREIGN_MAX = 256
"""Batches of other nodes that a machine keeps for its clients."""


OWNERS_MAX = 256
"""Owners of holds whose RELEASE is remembered for each link."""

WITH_SLICES = (m.RemoteFetchReply, m.ReplicaPeekReply)
"""Messages whose bytes are those of batches, which a run has elsewhere."""


def check_readable(message: m.PeerMessage) -> None:
    """Read a message from its bytes, as its receiver does.

    Why: a message that no peer can read breaks the connection, which a run takes for one of its faults.

    Raises:
        PeerError: a value is outside its bounds.
        TooLarge: so is the frame.
    """
    if not isinstance(message, WITH_SLICES):
        reader = FrameReader()
        reader.feed(b"".join(encode_message(message)))
        decode_message(next(iter(reader)))


class Releases:
    """The messages of each owner that a link's RELEASEs gave back: no HOLD of that owner may ask for them afterwards.

    Why: it would hold them for no client, until its time is over.
    """

    def __init__(self) -> None:
        self.given: dict[tuple[PartitionId, str, Stamp], SpanSet] = {}

    def check(self, me: NodeId, message: m.PeerMessage) -> None:
        """Take note of a message of node ``me``.

        Raises:
            AssertionError: it is a HOLD for messages that an earlier RELEASE gave back.
        """
        if isinstance(message, m.Release):
            for item in message.released:
                if item.owner.node == me:
                    key = (item.partition, item.group, item.owner.ballot)
                    for span in item.spans:
                        self.given.setdefault(key, SpanSet()).add(span)
            while len(self.given) > OWNERS_MAX:
                del self.given[next(iter(self.given))]
        hold = message.hold if isinstance(message, m.Store) else message
        if isinstance(hold, m.Hold):
            given = self.given.get((hold.partition, hold.group, hold.ballot))
            late = (
                [part for want in hold.wants for part in given.within(want.span)] if given is not None else []
            )
            assert not late, f"a HOLD for {late} follows its RELEASE"


class Links:
    """Connections that this machine dials, and messages over those of the others: ``peers``, filled later."""

    def __init__(
        self, machine: Machine, name: NodeId, peers: Mapping[NodeId, Links], rng: random.Random
    ) -> None:
        self.machine = machine
        self.world = machine.world
        self.read_every = 1 if machine.world.options.check else READ_EVERY
        self.sent = 0
        self.name = name
        self.peers = peers
        self.rng = rng
        self.up: dict[NodeId, tuple[Incarnation, int]] = {}
        self.releases: dict[NodeId, Releases] = {}
        self.dials: dict[NodeId, int] = {}
        self.foreign: dict[tuple[Any, ...], Batch] = {}
        self.once: dict[int, m.Envelope] = {}  # messages without a copy, by their identity in memory

    def clear(self) -> None:
        """Drop all links, as the process is gone."""
        self.up.clear()
        self.dials.clear()

    def dial_all(self) -> None:
        """Dial all peers, as this start is durable: the node may speak."""
        for peer in self.peers:
            if peer != self.name:
                self.dial(peer, self.machine.life)

    def dial(self, peer: NodeId, life: int) -> None:
        """Try to connect to ``peer``, now and again until it works."""
        if life != self.machine.life or self.machine.core is None or peer in self.up:
            return
        pause = 0.1 + self.rng.random() * 0.3 + 3 * self.world.distance  # an answer is here before it is over
        self.world.after(pause, self.dial, peer, life)
        if self.machine.frozen_until > self.world.time:
            return
        hello = self.machine.core.hello(self.machine.clock.now(self.world.time))
        self.dials[peer] = number = self.dials.get(peer, 0) + 1
        target = self.peers[peer]
        self.world.transmit(self.name, peer, target.on_hello, (self, life, number), hello)

    def on_hello(self, caller: tuple[Links, int, int], hello: m.Hello) -> None:
        """Answer a peer that dials."""
        if self.machine.core is None or not self.machine.started:
            return
        if self.machine.waits(self.on_hello, caller, hello):
            return
        self.world.messages += 1
        self.machine.feed(Request(self.machine.key_for(caller, None), hello))

    def on_welcome(self, answer: tuple[int, int, NodeId, int], reply: m.ClientReply) -> None:
        """Take in a peer's answer to our HELLO."""
        life, number, peer, their_life = answer
        if (
            life != self.machine.life
            or self.machine.core is None
            or peer in self.up
            or self.dials.get(peer) != number
        ):
            return
        if self.machine.waits(self.on_welcome, answer, reply):
            return
        self.world.messages += 1
        if isinstance(reply, m.Failed):
            self.machine.feed(HelloRefused(peer, reply.code, reply.detail, reply.needed))
            return
        assert isinstance(reply, m.Welcome)
        self.up[peer] = (reply.incarnation, their_life)
        self.machine.feed(
            LinkUp(peer, reply.incarnation, reply.stamp, reply.seen, reply.position, reply.position_by)
        )

    def on_link_lost(self, peer: NodeId, lives: tuple[int, int]) -> None:
        """Drop our connection to that life of ``peer``, as we notice now that it is gone."""
        life, their_life = lives
        link = self.up.get(peer)
        if life != self.machine.life or self.machine.core is None or link is None or link[1] != their_life:
            return
        if self.machine.waits(self.on_link_lost, peer, lives):
            return
        del self.up[peer]
        self.machine.feed(LinkDown(peer))
        self.dial(peer, self.machine.life)

    def lose(self, peer: NodeId, seconds: float) -> None:
        """Break our connection to ``peer``; we notice in ``seconds``."""
        link = self.up.get(peer)
        if link is not None:
            self.world.after(seconds, self.on_link_lost, peer, (self.machine.life, link[1]))

    def end_unlinked(self) -> None:
        """Break the connections with nodes to which the core has ended its link, as they were removed."""
        if self.machine.core is not None:
            for peer in [peer for peer in self.up if peer not in self.machine.core.state.links]:
                self.lose(peer, 0.0)
                self.peers[peer].lose(self.name, self.world.options.latency)

    def send(self, to: NodeId, message: m.PeerMessage) -> None:
        """Send over our connection; dropped if there is none."""
        link = self.up.get(to)
        world = self.world
        if link is None:
            if type(message) is m.RemoteFetchReply and message.slices:
                world.saw("an answer to another node was never begun")
                self.machine.feed(Unposted(message))
            return
        machine = self.machine
        state = machine.core.state
        machine.sightings.sends(message, machine.life)
        self.releases.setdefault(to, Releases()).check(self.name, message)
        self.sent += 1
        if self.sent % self.read_every == 0:
            check_readable(message)
        envelope = _new_envelope(
            m.Envelope, (self.name, state.incarnation, to, link[0], state.clock.value, message)
        )
        if type(message) is m.RemoteFetchReply:  # answer to another node's client: the bytes go along
            try:
                bodies = self.bodies(message.slices)
            except (DamagedBody, KeyError) as error:  # or forgotten since the core answered
                if isinstance(error, DamagedBody):
                    self.machine.on_damaged(error)
                self.machine.feed(Unposted(message))
                bodies = ()
                refusal = m.RemoteFetchReply(message.round, "too-few-replicas", "a damaged copy", ())
                message, envelope = refusal, envelope._replace(message=refusal)
            world.transmit(self.name, to, self.peers[to].receive_slices, envelope, (link[1], bodies))
            if message.slices:
                self.machine.sightings.observer.on_fetched(self.name, message)
            return
        world.transmit(self.name, to, self.peers[to].receive, envelope, link[1])

    def bodies(self, slices: tuple[m.Slice, ...]) -> tuple[Batch, ...]:
        """Return the batches that slices are parts of: from our journal, or as another node sent them."""
        batches: list[Batch] = []
        for part in slices:
            header = part.header
            batch = self.foreign.get((header.partition, header.spans, header.crc))
            batches.append(batch if batch is not None else self.machine.journal.batch(part.batch))
        return tuple(batches)

    def receive_slices(self, envelope: m.Envelope, extra: tuple[int, tuple[Batch, ...]]) -> None:
        """Receive a message, as `receive` does, with the batches that the message's slices are parts of."""
        life, batches = extra
        for batch in batches:
            header = batch.header
            self.foreign[(header.partition, header.spans, header.crc)] = batch
            if len(self.foreign) > FOREIGN_MAX:
                del self.foreign[next(iter(self.foreign))]
        self.receive(envelope, life)

    def receive(self, envelope: m.Envelope, life: int) -> None:
        """Take in a message over a connection to our life number ``life``."""
        machine, world = self.machine, self.world
        core = machine.core
        if core is None or not machine.started:
            return
        if machine.frozen_until > world.time and machine.waits(self.receive, envelope, life):
            return
        world.messages += 1
        if life != machine.life:  # the other side has not noticed yet that we were started again
            self.peers[envelope.sender].lose(self.name, world.options.latency)
        state, sender = core.state, envelope.sender
        if state.known.get(sender) != envelope.incarnation and state.superseded(sender, envelope.incarnation):
            world.saw("a message of a superseded incarnation came")
        kind = type(envelope.message)
        if kind in WRITES:
            if id(envelope) in self.once:
                return
            if state.disk_shortage or state.memory_full:
                self.once[id(envelope)] = envelope
        if isinstance(envelope.message, m.RegistersReply) and envelope.message.topics:
            world.saw("a node asked for a topic that it did not know")
        recovers = kind is m.HoldsReply and bool(core.context.hold_recovery.awaited)
        machine.feed(_new_received(Received, (envelope,)))
        if recovers:
            machine.sightings.recovers(core)
