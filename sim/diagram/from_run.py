"""A story out of a simulated run: its history, its packets, and its nodes' holds and fsyncs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from quorumq.core import messages as m
from quorumq.core.values.types import Owner, Span, Stamp
from quorumq.history import owner_text, producer_id_text
from sim.cluster import Cluster
from sim.diagram.rows import items_of
from sim.diagram.story import MESSAGE, Ids, Item, Story, said_ids
from sim.host import Host
from sim.message_text import MessageText
from sim.packet_world import PacketWorld
from sim.packets import Packet
from sim.replay import replay
from sim.rules import Rule
from sim.schedule import Schedule
from sim.world import Refusal

HOUSEKEEPING = (m.Hello, m.Welcome, m.Heartbeat, m.Metadata, m.MetadataReply)

TONES = {
    "Publish": "publish", "Store": "store", "Hold": "hold", "Fetch": "fetch", "RemoteFetch": "fetch", "Release": "hold",
    "Extend": "hold", "Ack": "ack", "AckRequest": "ack", "Reject": "reject", "RejectRequest": "reject",
}  # fmt: skip
"""Tones of packets by their kind; an answer has the tone of its request."""

SAYS = {"StoreReply": "STORED", "PublishReply": "CONFIRMED", "SettleReply": "SETTLED"}
"""Names of answers in pictures; the others have their own names."""


class Words(MessageText):
    """Describes packets. Ballots are numbered in order of appearance."""

    def ballot(self, ballot: Stamp) -> str:
        return self.names.setdefault(ballot, f"#{len(self.names) + 1}")

    def votes(self, reply: m.HoldReply) -> str:
        return f"({reply.error})" if reply.error else super().votes(reply)

    def packet(self, message: Any) -> str:
        """Return a packet's content in a few words."""
        if message is None:
            return "connection lost"
        if isinstance(message, Refusal):
            return "no node here"
        if isinstance(message, int):
            return "hangs up"
        if isinstance(message, m.FetchReply):
            return "DELIVERY" if message.slices else "NOTHING"
        said = self.content(message)
        if said == type(message).__name__:
            said = SAYS.get(said) or re.sub(r"(?<=[a-z])(?=[A-Z])", "-", said.removesuffix("Request")).upper()
        code = getattr(message, "code", None) or getattr(message, "refused", None)
        if isinstance(code, str) and code:
            return f"{'REFUSED' if said == 'STORED' else said} ({code})"
        return said.split(" to round ")[0]


def ids_in(value: Any) -> Iterator[tuple[str, int, int]]:
    """Yield the messages that are named anywhere in a value."""
    if isinstance(value, m.Slice):
        value = tuple(delivery.receipt.span for delivery in value.deliveries)
    if isinstance(value, Span):
        yield producer_id_text(value.producer_id), value.start, value.stop
    elif isinstance(value, tuple):
        for part in value:
            yield from ids_in(part)


class Recorder:
    """Sees a cluster run that is about to, traced."""

    def __init__(self, cluster: Cluster) -> None:
        assert isinstance(cluster.world, PacketWorld)
        self.world = cluster.world
        self.nodes = tuple(cluster.hosts)
        self.items: list[Item] = []
        self.words = Words()
        self.asked: dict[tuple[str, str, Any], tuple[Ids, str]] = {}
        self.held: dict[tuple[Any, ...], Item] = {}
        self.owners: dict[str, str] = {}
        self.world.on_packet = self.on_packet
        for host in cluster.hosts.values():
            self.watch(host)

    # ------------------------------------------------------------------- packets

    def lane(self, name: str) -> str:
        """Return the lane of a node or a client."""
        return f"node:{name}" if name in self.nodes else f"client:{name}"

    def on_packet(self, packet: Packet, arrivals: tuple[float, ...], message: Any, one: Any) -> None:
        """Note that a packet is sent."""
        ids: Ids = tuple(dict.fromkeys(ids_in(message)))
        source, target, kind = packet.source, packet.target, packet.kind
        tone = TONES.get(kind, "")
        key = (source, target, self.number_of(message, one))
        answered = self.asked.get((target, source, key[2]))
        if answered is not None:
            ids, tone = ids or answered[0], tone or answered[1]
        self.asked[key] = (ids, tone)
        if isinstance(message, HOUSEKEEPING) or not (ids or tone):
            tone = "quiet"
        text = self.words.packet(message)
        about = f" about {said_ids(ids)}" if ids else ""
        for copy, at in enumerate(arrivals or (None,)):
            again = ", a copy" if copy else ""
            says = f"{text} from {source} to {target}{about}{again}"
            if at is None:
                blocked = source != target and (source, target) in self.world.blocked
                says += ": cut off, never arrives" if blocked else ": lost, never arrives"
            else:
                says += f", arrives at {at:.4f} s"
            self.items.append(
                Item(
                    "packet", self.world.time, at, self.lane(source), text, says, self.lane(target), ids, tone
                )
            )

    def number_of(self, message: Any, one: Any) -> Any:
        """Return the key that a request and its answer share: the round, or the client's number."""
        if hasattr(message, "round"):
            return (type(message).__name__.removesuffix("Reply"), message.round)
        if isinstance(one, tuple) and len(one) == 2:
            return one[1]
        return one if isinstance(one, int) else id(message)

    # ------------------------------------------------------------------- nodes

    def watch(self, host: Host) -> None:
        """See a node's holds after each of its steps, and its fsyncs."""
        feed, begin, release = host.feed, host.disk.begin_sync, host.exit_world

        def fed(*events: Any) -> None:
            feed(*events)
            self.look(host)

        def left(**how: Any) -> None:
            release(**how)
            self.let_go(host, {})

        def begun(here: bool) -> None:
            began, lane = self.world.time, self.lane(host.name)
            done = type(host.disk).on_synced

            def synced(life: int, _: object) -> None:
                if host.life == life and host.frozen_until <= self.world.time:
                    says = f"{host.name} syncs its journal, which takes {self.world.time - began:.4f} s"
                    self.items.append(Item("bar", began, self.world.time, lane, "fsync", says, tone="fsync"))
                done(host.disk, life, _)

            host.disk.on_synced = synced  # type: ignore[method-assign]
            begin(here)

        host.feed = fed  # type: ignore[method-assign]
        host.exit_world = left  # type: ignore[method-assign]
        host.disk.begin_sync = begun  # type: ignore[method-assign]

    def look(self, host: Host) -> None:
        """Begin a bar for each hold that is new at the node, and end those of holds that are over."""
        if host.core is None:
            return
        now: dict[tuple[Any, ...], tuple[Span, Owner, str, float]] = {}
        for partition, replica in host.core.replicas.items():
            for view in replica.views.groups.values():
                for span, held in view.all_held():
                    key = (host.name, partition, view.name, span, held.owner)
                    now[key] = (span, held.owner, view.name, held.deadline)
        self.let_go(host, now)
        for key, (span, owner, group, deadline) in now.items():
            if key in self.held:
                continue
            ids: Ids = ((producer_id_text(span.producer_id), span.start, span.stop),)
            name = self.words.ballot(owner.ballot)
            until = host.clock.true_time(deadline)
            self.owners[owner_text(owner)] = f"{name} of {owner.node}"
            says = f"{host.name} holds {said_ids(ids)} of group {group} for {name} of {owner.node}, until {until:.3f} s"
            lane = self.lane(host.name)
            self.held[key] = Item(
                "bar", self.world.time, until, lane, f"{name} {said_ids(ids)}", says, "", ids, "hold"
            )
            self.items.append(self.held[key])

    def let_go(self, host: Host, now: dict[tuple[Any, ...], Any]) -> None:
        """End the bars of the holds that the node does not have any more."""
        for key in [key for key in self.held if key[0] == host.name and key not in now]:
            item = self.held.pop(key)
            item.end = min(item.end or self.world.time, self.world.time)


def story_of_run(schedule: Schedule, without: Rule | None) -> Story:
    """Return the story of a run."""
    recorders: list[Recorder] = []
    outcome = replay(
        schedule,
        without,
        full=True,
        keep=True,
        traced=True,
        prepare=lambda cluster: recorders.append(Recorder(cluster)),
    )
    rows = outcome.rows
    items = recorders[0].items + items_of(rows, outcome.violations, calls=False)
    end = rows[-1]["at"] if schedule.ends == 0.0 else schedule.ends
    for item in items:
        if item.kind in ("bar", "down", "fault") and item.end is not None:
            item.end = min(item.end, max(end + 0.2, item.at))
    options = schedule.options
    about = [
        f"seed {schedule.seed}, profile {schedule.profile}: {options.nodes} nodes, {options.rf} replicas, "
        f"{len(schedule.faults)} faults"
        + ("" if schedule.packets is None else f", {len(schedule.packets)} packets named")
    ]
    if without is not None:
        about.append(f"without the rule {without.name}")
    focus = next((match[0] for text in outcome.violations if (match := MESSAGE.search(text))), "")
    title = outcome.violations[0].split(" at ")[0] if outcome.violations else "every promise is kept"
    story = Story(f"A simulated run: {title}", about, items, list(outcome.violations), focus=focus)
    story.rename(recorders[0].owners)
    return story
