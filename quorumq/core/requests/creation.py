"""CREATE: make the only topic of a name (core/requests/proposing.py).

Instances follow each other. A node that proposes the next one has first made sure that the topic of this one is
deleted, as DELETE does. So if a name has a newer topic, the deletion of the older one is complete.
"""

from __future__ import annotations

from quorumq.core.cluster.topics import as_change, difference, first_topic
from quorumq.core.messages import CreateTopic, Failed, PeerMessage, ProposalReply, TopicReply, TopicSeen
from quorumq.core.messages.effects import Effect
from quorumq.core.requests.context import Context
from quorumq.core.requests.proposing import PROPOSALS_MAX, Proposer, wait_for_stamp
from quorumq.core.requests.registers import ChangeCoordinator
from quorumq.core.values.errors import Code
from quorumq.core.values.limits import DIGEST_BYTES, NUMBERS_END
from quorumq.core.values.types import STAMP_ZERO, Incarnation, Instance, Machines, NodeId, Now, Stamp, Topic


def full_nodes(context: Context) -> dict[NodeId, str]:
    """Return the members that take no messages now, each with the reason and the remedy."""
    joined = context.catalogue.cluster.joined
    return {node: why for node in joined if (why := context.peers.full(node))}


def check_capacity(context: Context, rf: int) -> str:
    """Return why no message of a new topic could be stored, as too few nodes have space; or ""."""
    nodes, machines = context.catalogue.cluster.placing
    on, full = dict(machines), full_nodes(context)
    able = {on.get(node, node) for node in nodes if node not in full}
    return (
        f"rf is {rf}: too few nodes take messages. {'; '.join(full.values())}" if len(able) <= rf // 2 else ""
    )


def drawn_from(context: Context, rf: int, now: Now) -> Machines:
    """Return the members, with machines, that a new topic's sets are drawn from.

    Those with space that are up, if they suffice; else those with space; else all. The value that is chosen names them,
    so it does not matter that nodes see different ones up.
    """
    cluster, full = context.catalogue.cluster, full_nodes(context)
    nodes, machines = cluster.placing
    on = dict(machines)
    able = [node for node in nodes if node not in full]
    for candidates in ([node for node in able if not context.peers.is_away(node, now)], able):
        if len(candidates) < len(nodes) and len({on.get(node, node) for node in candidates}) >= rf:
            return tuple((node, on.get(node, "")) for node in candidates)
    return cluster.over


class CreateTopicCoordinator(ChangeCoordinator):
    """One CREATE. Two creations at once make one topic, the one of either.

    PREPARE, ACCEPT, and once a majority has accepted, a write of the chosen register, so that every node
    finds it. The answers to the write say how it was changed since.
    """

    __slots__ = ("ours", "over", "proposer", "request")

    def __init__(self, key: int, request: CreateTopic) -> None:
        super().__init__(key, request.name)
        self.request = request
        self.proposer: Proposer | None = None
        self.ours: dict[int, Topic] = {}  # our proposals, by how often the name had been deleted
        self.over: Machines = ()  # members that the next one is drawn from
        self.own = STAMP_ZERO

    def start(self, context: Context, now: Now) -> list[Effect]:
        known = context.catalogue.register_named(self.name)
        if known is None:
            return self.propose(context, 0, now)
        if self.is_late(known):
            return self.refuse_late(context, known)
        if known.deleted:
            return self.bury(context, known, now)
        return self.give_up(context) if self.count_write() else self.write(context, "found", known, now)

    def is_late(self, known: Topic) -> bool:
        """Return True if the name was deleted more often than the client knows."""
        return self.request.deletions is not None and known.deletions + known.deleted > self.request.deletions

    def refuse_late(self, context: Context, known: Topic) -> list[Effect]:
        """Fail: a creation makes nothing after a deletion that its client does not know of."""
        code = Code.OUTCOME_UNKNOWN if self.ours else Code.STALE_GENERATION
        detail = f"topic {self.name!r} was deleted since: look at it, then create it if that is still right"
        return self.finish(context, Failed(code, detail, number=known.deletions + known.deleted))

    def propose(self, context: Context, deletions: int, now: Now) -> list[Effect]:
        """Propose the first register of the name's next topic."""
        self.close_rounds(context)
        self.step = "propose"
        instance = Instance(b"", self.name, deletions)
        if self.proposer is None or self.proposer.instance != instance:
            self.proposer = Proposer(instance)
        if self.proposer.proposals >= PROPOSALS_MAX:
            return self.give_up(context)
        self.over = drawn_from(context, self.request.rf, now)
        return self.proposer.propose(self, context, now)

    def own_value(self, context: Context, ballot: Stamp) -> Topic:
        """Return the register that the client asked for; the same in each proposal."""
        assert self.proposer is not None
        config, deletions = context.config, self.proposer.instance.number
        if deletions not in self.ours:
            key = context.rng.getrandbits(8 * DIGEST_BYTES).to_bytes(DIGEST_BYTES, "big")
            first = first_topic(
                self.request, config.nodes, deletions, ballot, config.machines, key, self.over
            )
            self.ours[deletions] = first
        return self.ours[deletions]

    def on_reply(
        self, context: Context, sender: NodeId, incarnation: Incarnation, message: PeerMessage, now: Now
    ) -> list[Effect]:
        if not isinstance(message, ProposalReply):
            return super().on_reply(context, sender, incarnation, message, now)
        assert self.proposer is not None
        return self.proposer.on_reply(self, context, sender, incarnation, message, now)

    def on_written(self, context: Context, now: Now) -> list[Effect]:
        if self.step != "found" or self.merged.deleted:
            return super().on_written(context, now)
        merged = self.merged
        change = as_change(self.request)
        fits = (
            self.request.rf in (merged.rf, merged.target_rf)
            and (change.partitions or merged.partitions) >= merged.partitions
        )
        if (
            self.request.implicit
            or merged.stamp != STAMP_ZERO
            or not fits
            or not difference(self.request, merged)
        ):
            return self.on_changed(context, now)
        stamp = self.fresh_stamp(context, merged, now)
        if stamp is None:
            return wait_for_stamp(self, context, now)
        seen = TopicSeen(merged.id, STAMP_ZERO, 0)  # no setting was chosen
        return self.change(context, merged, change._replace(seen=seen), stamp, now)

    def on_set_elsewhere(self, context: Context, now: Now) -> list[Effect]:
        return self.start(context, now)

    def on_changed(self, context: Context, now: Now) -> list[Effect]:
        ours = self.ours.get(self.merged.deletions)
        mine = ours is not None and ours.made == self.merged.made  # despite later changes
        differs = difference(self.request, self.merged)
        if self.own != STAMP_ZERO and self.is_outbid(context):
            return self.give_up(context)
        if mine or self.request.implicit or not differs:
            return self.finish(context, TopicReply(self.merged))
        return self.refuse(context, differs)

    def on_buried(self, context: Context, now: Now) -> list[Effect]:
        if self.merged.deletions + 1 >= NUMBERS_END:
            detail = (
                f"topic {self.name!r} was deleted {self.merged.deletions} times, as some node says, and no count "
                f"reaches {NUMBERS_END}: choose another name"
            )
            return self.fail(context, Code.OUTCOME_UNKNOWN if self.ours else Code.CONFLICT, detail)
        return self.propose(context, self.merged.deletions + 1, now)

    def on_replaced(self, context: Context, now: Now) -> list[Effect]:
        return self.start(context, now)

    def refuse(self, context: Context, differs: str) -> list[Effect]:
        """Answer that the topic differs from the request: a conflict only if nothing that we wrote may be served."""
        if self.own != STAMP_ZERO or any(deletions < self.merged.deletions for deletions in self.ours):
            detail = (
                f"topic {self.name!r} was changed or deleted elsewhere at the same time, and has {differs}: "
                "look at it, then try again"
            )
            return self.fail(context, Code.OUTCOME_UNKNOWN, detail, 1)
        detail = (
            f"topic {self.name!r} exists with {differs}: use it as it is, change it (`quorumq topics set`), or "
            "choose another name"
        )
        return self.fail(context, Code.CONFLICT, detail)
