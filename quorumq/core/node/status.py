"""Answers to STATUS and METADATA: of the node, its partitions by pages, its topics. Nothing is counted for them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from itertools import chain, islice
from typing import Final

from quorumq.core import messages as m
from quorumq.core.cluster.catalogue import Catalogue
from quorumq.core.cluster.members import address_of, outdated
from quorumq.core.cluster.state import NodeConfig
from quorumq.core.messages.diskroom import CAPACITIES
from quorumq.core.partition.backlog import backlog_of
from quorumq.core.partition.group import GroupView
from quorumq.core.partition.handoff import Progress
from quorumq.core.partition.replica import Replica
from quorumq.core.recovery.trust import Trust
from quorumq.core.requests.context import Context
from quorumq.core.requests.sources import copies_for_move
from quorumq.core.values import limits
from quorumq.core.values.patterns import is_pattern
from quorumq.core.values.types import Group, MemberState, NodeId, Now, PartitionId, Placement, Topic

MOVES_SHOWN_MAX: Final = 32
"""Moves in one status."""

METADATA_BYTES: Final = limits.HEADER_BYTES_MAX // 2
"""Bytes of registers in one answer, about: a topic of 1,024 partitions may have a third of that."""

TOPIC_BYTES, GROUP_BYTES, NODE_BYTES = 1024, 512, 44
"""Bytes of a topic's settings, a group's register and the name of a node in a replica set, at most."""

Page = tuple[list[dict[str, object]], tuple[PartitionId, str] | None]


def status(context: Context, trust: Trust, now: Now) -> dict[str, object]:
    """Return this node's values for `quorumq status`, without its partitions; all are plain (docs/operations.md)."""
    state, peers = context.state, context.peers
    p99 = context.hold_times.p99()
    others = {
        node: {
            "up": peers.is_up(node, now),
            "incarnation": state.known[node].n if node in state.known else 0,
            "heard_s_ago": round(now.mono - peers.received_at[node], 3)
            if node in peers.received_at
            else None,
            **peers.reported.get(node, {}),
        }
        for node in context.catalogue.cluster.present
        if node != state.config.node
    }
    return {
        "node": state.config.node,
        "cluster_id": state.config.cluster_id,
        "incarnation": state.incarnation.n,
        "standing": state.standing.name.lower(),
        "trusted": state.trusted,
        "resync": f"{trust.resync.reason}; {trust.resync.explain(context)}" if trust.resync else "",
        "moved": trust.explain_moved(context),
        "placed": trust.journal_location.why if trust.journal_location is not None else "",
        "placed_by": trust.journal_location.n if trust.journal_location is not None else 0,
        "quarantine_s": round(context.quarantine_left(now), 3),
        "hold_time_max": state.config.hold_time_max,
        "disk_full": state.disk_full,
        "disk_capacity": CAPACITIES[state.disk_shortage],
        "names": context.catalogue.names_used()._asdict(),
        "memory_full": bool(state.memory_full),
        "requests": len(context.requests),
        "hold_reply_p99_ms": round(1000 * p99, 3) if p99 is not None else None,
        "slow_answers": slow_answers(p99, state.config),
        "moves": [
            {**row, **progress._asdict()} for row, progress in islice(moves(context, now), MOVES_SHOWN_MAX)
        ],
        "move_bytes_per_s": context.throttle.bytes_per_s,
        "moves_at_once": context.throttle.at_once,
        "peers": others,
        **members_status(context),
    }


def metadata(context: Context, request: m.Metadata, now: Now) -> m.MetadataReply | m.Failed:
    """Return the nodes, and the topics that a request names; all if it names none.

    If one frame cannot hold all, it is a page, in the order of topic ids.

    A node that was removed names itself no more. It cannot say that a topic does not exist.
    """
    config, catalogue = context.config, context.catalogue
    is_member = context.state.standing != MemberState.REMOVED
    topics: dict[bytes, Topic] = {}
    for name in request.topics or ("*",):
        matching = catalogue.topics_matching(name)
        if not matching and not is_pattern(name) and is_member:
            return catalogue.not_found(name)
        topics.update((topic.id, topic) for topic in matching)
    cluster = catalogue.cluster
    shown, groups, more = registers_page(context.catalogue, topics, request)
    return m.MetadataReply(
        cluster_id=config.cluster_id,
        node=config.node,
        nodes=tuple(
            m.NodeInfo(
                member.node,
                address_of(member, config.node, config.addresses),
                member.node == config.node or context.peers.is_up(member.node, now),
                member.node in cluster.voters,
                member.machine,
                member.state,
                context.peers.full(member.node),
            )
            for member in cluster.layout.members
            if member.state != MemberState.REMOVED and (member.node != config.node or is_member)
        ),
        topics=shown,
        groups=groups,
        hold_time_max=config.hold_time_max,
        layout=cluster.layout.number,
        more=more,
    )


def registers_page(
    catalogue: Catalogue, topics: Mapping[bytes, Topic], request: m.Metadata
) -> tuple[tuple[Topic, ...], tuple[Group, ...], tuple[bytes, int] | None]:
    """Return a page of these topics and their groups, and where the next one begins; None if there is none.

    A topic whose groups are on several pages is on each of them. It is never named by more than its id and a number,
    as a client may not see its name, or those of its groups.
    """
    groups: dict[bytes, list[Group]] = {}
    for id_ in topics:
        registers = catalogue.group_registers(id_) if request.groups else ()
        groups[id_] = [register for register in registers if not register.deleted]
    weight = sum(weight_of(topic) for topic in topics.values()) + sum(map(len, groups.values())) * GROUP_BYTES
    if request.after is None and weight <= METADATA_BYTES:
        return tuple(topics.values()), tuple(chain.from_iterable(groups.values())), None
    first, skipped = request.after or (b"", 0)
    shown: list[Topic] = []
    listed: list[Group] = []
    capacity = METADATA_BYTES
    for id_ in sorted(id_ for id_ in topics if id_ >= first):
        if shown and capacity < weight_of(topics[id_]):
            return tuple(shown), tuple(listed), (id_, 0)
        capacity -= weight_of(topics[id_])
        start = skipped if id_ == first else 0
        stop = start + max(1, capacity // GROUP_BYTES)
        shown.append(topics[id_])
        listed += groups[id_][start:stop]
        if stop < len(groups[id_]):
            return tuple(shown), tuple(listed), (id_, stop)
        capacity -= GROUP_BYTES * len(groups[id_][start:])
    return tuple(shown), tuple(listed), None


def weight_of(topic: Topic) -> int:
    """Return the bytes of a topic's register, at most."""
    names = sum(map(len, topic.replicas)) + 2 * len(topic.over)
    for layout in (topic.layout, topic.next_layout):
        for each in layout.placements if layout is not None else ():
            names += len(each.slots) + len(each.before) + len(each.sources) + len(each.learners) + 1
    return TOPIC_BYTES + names * NODE_BYTES


def members_status(context: Context) -> dict[str, object]:
    """Return the members of a cluster that has grown, and how the configuration file differs; nothing else."""
    cluster, config = context.catalogue.cluster, context.config
    if not cluster.layout.number:
        return {}
    return {
        "layout": cluster.layout.number,
        "members": list(cluster.present),
        "voters": list(cluster.voters),
        "outdated": outdated(cluster, config.node, config.addresses),
    }


def moves(context: Context, now: Now) -> Iterator[tuple[dict[str, object], Progress]]:
    """Yield the moves that wait for something, as far as this node has a part in them, each with its progress.

    A new slot is ``learning`` until it has the promises of enough nodes. A node that left is ``leaving`` until
    every slot lacks nothing, and knows the progress of the copy. A layout that was chosen and not adopted is
    ``chosen``. A source that cannot be reached is ``away``; of its partition's nodes the first that is up says so. It
    has a row for a partition that is to get more slots, too: ``copying``, or ``short`` if there are no more nodes. A
    node that lacks payload of a move and takes none, as its disk or memory is full, is ``full``.
    """
    for topic in context.catalogue.live():
        if topic.next_layout is not None:
            yield move_row(topic.name, None, "chosen", []), Progress()
        for placement in topic.layout.placements if topic.layout is not None else ():
            partition = PartitionId(topic.id, placement.partition)
            if topic.target_rf > len(placement.slots) and is_first_up(context, placement):
                yield raise_row(context, topic, placement, now)
            replica = context.replicas.get(partition)
            if replica is not None and is_full_for(context, replica, placement):
                yield move_row(topic.name, placement.partition, "full", []), Progress()
            replica = context.kept(partition) if placement.before else None
            if replica is None:
                continue
            if replica.is_trusted:
                if away := sources_away(context, placement):
                    yield move_row(topic.name, placement.partition, "away", away), Progress()
                continue
            handoff, progress = replica.handoff, Progress()
            if replica.slot_layout:
                asked = [node for node in replica.tellers if node != context.state.me]
                answered = [peer for peer, of in context.resync_answers.complete if of == partition]
            else:
                asked = list(replica.members)
                lacking = handoff.lacking if handoff is not None else {}
                answered = [node for node, messages in lacking.items() if not messages]
                progress = handoff.progress(now) if handoff is not None else progress
            waits_for = [node for node in asked if node not in answered]
            state = "learning" if replica.slot_layout else "leaving"
            yield move_row(topic.name, placement.partition, state, waits_for), progress
    for partition, ahead in context.throttle.held_up(now):
        kept = [replica for each in (partition, *ahead) if (replica := context.kept(each)) is not None]
        if kept and kept[0].partition == partition:  # else its topic was deleted
            names = [f"{replica.topic.name}/{replica.partition.number}" for replica in kept[1:]]
            yield move_row(kept[0].topic.name, partition.number, "limited", names), Progress()


def is_full_for(context: Context, replica: Replica, placement: Placement) -> bool:
    """Return True if this node lacks payload of a partition that moves, and takes none now."""
    me = context.state.me
    lacks = bool(replica.batches.absent) and copies_for_move(placement, me)
    return lacks and bool(context.peers.full(me))


def move_row(topic: str, partition: int | None, state: str, waits_for: list[NodeId]) -> dict[str, object]:
    """Return a move's values for `quorumq status`, without its progress."""
    return {"topic": topic, "partition": partition, "state": state, "waits_for": waits_for}


def raise_row(
    context: Context, topic: Topic, placement: Placement, now: Now
) -> tuple[dict[str, object], Progress]:
    """Return the row of a partition that is to get more slots: ``copying``, or ``short`` of nodes."""
    replica = context.replicas.get(PartitionId(topic.id, placement.partition))
    handoff = replica.handoff if replica is not None else None
    lacking = handoff.lacking if handoff is not None else {}
    waits_for = [node for node in placement.learners if lacking.get(node) != 0]
    is_short = topic.target_rf > len(placement.slots) + len(placement.learners)
    progress = handoff.progress(now) if handoff is not None else Progress()
    return move_row(topic.name, placement.partition, "short" if is_short else "copying", waits_for), progress


def is_first_up(context: Context, placement: Placement) -> bool:
    """Return True if this node is the first of the partition's that is up."""
    state = context.state
    return state.me == next((node for node in placement.nodes if node in state.links or node == state.me), "")


def sources_away(context: Context, placement: Placement) -> list[NodeId]:
    """Return the sources that cannot be reached, if this node is the first of the partition's that is up."""
    state = context.state
    if not is_first_up(context, placement):
        return []
    return [node for node in placement.sources if node not in state.links and node != state.me]


def page(context: Context, now: Now, begin: tuple[PartitionId, str] | None = None) -> Page:
    """Return the next partitions and groups, in order, as many as one step of the core may take.

    Args:
        begin: the partition to begin with, and the group in it; None for the first.

    Returns:
        A mapping for each partition, and the place to go on from, None at the end. A partition of many groups is in
        several pages, each with some of its groups.
    """
    rows: list[dict[str, object]] = []
    capacity = limits.STATUS_ROWS_MAX
    first, group = begin if begin is not None else (None, "")
    order = sorted(context.replicas)
    for partition in order if first is None else order[bisect_left(order, first) :]:
        if capacity <= 0:
            return rows, (partition, "")
        replica = context.replicas[partition]
        groups = replica.views.groups
        names = sorted(groups)
        if partition == first:
            names = names[bisect_left(names, group) :]
        listed = names[: capacity - 1]
        rows.append(row_of(replica, [groups[name] for name in listed], now))
        capacity -= 1 + len(listed)
        if len(listed) < len(names):
            return rows, (partition, names[len(listed)])
    return rows, None


def row_of(replica: Replica, views: list[GroupView], now: Now) -> dict[str, object]:
    """Return the status of one partition, and of some of its groups."""
    batches = replica.batches
    return {
        "topic": replica.topic.name,
        "partition": replica.partition.number,
        "replicas": list(replica.members),
        "messages": batches.present.messages,
        "missing": batches.absent.messages,
        "lost": batches.lost,
        "reclaimed": batches.reclaimed.messages,
        "batches": len(batches.stored),
        "groups": {view.name: backlog_of(batches, view, now) for view in views},
    }


def slow_answers(p99: float | None, config: NodeConfig) -> str:
    """Return advice if peers answer HOLDs so late that deliveries suffer; "" if they do not."""
    if p99 is None or p99 <= min(config.hold_time_max / 10, config.request_timeout / 5):
        return ""
    return (
        f"its peers take up to {p99:.1f} s to answer a HOLD: each delivery takes as long, and a hold needs "
        f"{2.5 * p99:.1f} s or more. Let consumers ask for longer holds (hold_time, hold_time_max), or look for "
        "what is slow: the network, or nodes that have too much to do"
    )
