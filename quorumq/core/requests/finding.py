"""Finding: a node asks the others for a topic or group that it does not know, before it answers that there is none.

A creation is OK once a majority has the register, and the others learn of it a moment later. A request to
one of those meanwhile must not get the answer that there is no such topic. So the node reads: a register that
`members - majority + 1` members do not have, no majority had when they were asked. If fewer members answer, it is
unknown whether there is one, and the error says so.

A negative result is not remembered: a creation may be OK before the next request, however soon that is.
"""

from __future__ import annotations

from collections.abc import Iterable

from quorumq.core import messages as m
from quorumq.core.cluster.deleted_names import PAGES
from quorumq.core.cluster.rounds import Round, majority_of
from quorumq.core.messages.effects import Again, Effect, Persist, Send
from quorumq.core.requests.context import Context
from quorumq.core.requests.coordinator import Coordinator
from quorumq.core.requests.promising import promise
from quorumq.core.values.deadnames import DEAD_SUFFIX, dead_letter_names
from quorumq.core.values.errors import Code
from quorumq.core.values.limits import GROUPS_PER_CHUNK
from quorumq.core.values.patterns import is_pattern
from quorumq.core.values.types import Group, Incarnation, NodeId, Now, PartitionId

FIND_TIMEOUT_S = 1.0
"""Seconds for which the others are asked for a register, at most."""

TOLD_MAX = 50
"""Registers of topics in one answer; a node that asked for more asks again for the rest."""


def to_find(context: Context, request: m.ClientRequest) -> m.RegistersRequest | None:
    """Return the question to the others before ``request`` is looked at; None if all of its names are known here.

    A name that was deleted may have been given again, and a topic may have got more partitions.
    """
    catalogue = context.catalogue
    if isinstance(request, m.Publish) and catalogue.members_of(request.batch.header.partition):
        return None  # mostly
    names: Iterable[str] = ()
    partitions: Iterable[PartitionId] = ()
    ids: dict[bytes, None] = {}
    group, highest = "", -1  # group and highest number of the named partitions
    about: bytes | None = None  # id of the topic that is meant, if the request says which
    match request:
        case m.Publish():
            partitions = (request.batch.header.partition,)
        case m.FindName():
            partitions = (request.partition,)
        case m.AckRequest() | m.RejectRequest() | m.ExtendRequest() | m.ReleaseRequest():
            partitions = dict.fromkeys([item.receipt.partition for item in request.items])
        case m.Fetch():
            names, group = dead_letter_names(request.topics, request.group)
            highest = max(request.partitions, default=-1)
        case m.PurgeRequest() | m.PeekRequest() | m.RedriveRequest():
            names, group = dead_letter_names((request.topic,), request.group)
            highest = request.partition
            about = request.id if isinstance(request, m.PurgeRequest) else None
        case m.LabelsRequest():
            names, about = (request.topic,), request.id
        case m.SetGroup() | m.DeleteGroup() | m.PauseGroup() | m.LimitGroup():
            names = (request.topic,)
            group = request.group if not isinstance(request, m.SetGroup) or request.rewind else ""
            about = request.id
        case m.Metadata():
            names = request.topics
        case m.AlterTopic():
            names, about = (request.name,), request.seen and request.seen.id
        case m.MovePartition():
            names, about = (request.name,), request.id
        case m.CreateTopic() if request.implicit and not context.config.auto_create_topics:
            names = (request.name,)
        case m.DeleteTopic() if (
            known := catalogue.register_with(request.id, request.name)
        ) is None or known.name != request.name:
            ids[request.id] = (
                None  # also if it is another topic's, so that no client learns that there is one
            )
    unknown: dict[str, None] = {}
    for partition in partitions:
        if not catalogue.members_of(partition) and not catalogue.is_deleted(partition.topic):
            ids[partition.topic] = None
    groups: dict[tuple[bytes, str], None] = {}
    for name in names:
        topic = catalogue.topic_named(name)
        if topic is None:
            if not is_pattern(name):
                unknown[name] = None
            continue
        if highest >= topic.partitions:
            ids[topic.id] = None
        if about is not None and about != topic.id:
            ids[about] = None
        source = group.removesuffix(DEAD_SUFFIX)
        if isinstance(request, m.Fetch):
            needed = source != group or not catalogue.makes_group(topic, group)
        else:  # a topic or group known as deleted may have been created again
            needed = (group != "" and not isinstance(request, m.PeekRequest)) or source != group
            needed = needed or catalogue.is_group_deleted(topic.id, source)
        if needed and not catalogue.reads(topic.id, source):
            groups[(topic.id, source)] = None
    if not (unknown or ids or groups):
        return None
    return m.RegistersRequest(
        0, tuple(unknown), tuple(ids), tuple(Group(topic, name, 0, 0) for topic, name in groups)
    )


def tell_registers(context: Context, sender: NodeId, message: m.RegistersRequest) -> list[Effect]:
    """REGISTERS-ASK: answer with registers known here, only if this node is trusted: its silence is no answer.

    If topics are asked for by id, that waits until they are durable. Why: clients are shown labels that a majority has.
    """
    catalogue = context.catalogue
    topics = [catalogue.register_named(name) for name in message.names]
    topics += [catalogue.topics.get(id_) for id_ in message.ids]
    id_ = [catalogue.group(group.topic, group.name) for group in message.groups]
    groups = [group for group in id_ if group is not None][:TOLD_MAX]
    more: list[Group] = []
    packed, page = b"", PAGES
    if message.after is not None:
        if message.ids:
            packed, page = catalogue.deleted.of_topic(message.ids[0], message.page, GROUPS_PER_CHUNK)
        later = [key for topic in sorted(dict.fromkeys(message.ids)) for key in catalogue.group_keys(topic)]
        more = [catalogue.groups[key] for key in later if key[1] > message.after] if page == PAGES else []
    reply = m.RegistersReply(
        message.round,
        tuple({topic.id: topic for topic in topics if topic is not None}.values())[:TOLD_MAX],
        (*groups, *more[:GROUPS_PER_CHUNK]),
        context.state.register_vector(),
        len(more) > GROUPS_PER_CHUNK or page < PAGES,
        packed,
        page if page < PAGES else 0,
        context.state.voting_epoch,
    )
    asked = [(group.topic, group.name) for group in message.groups] or [(id_, "") for id_ in message.ids]
    records, done = promise(context, asked, message.ballot)
    waits = records or message.ids
    return [Persist(records, (*done, Send(sender, reply)))] if waits else [Send(sender, reply)]


class FindCoordinator(Coordinator):
    """Handles a request with unknown names: asks the others for them, then takes the request up.

    Args:
        lookup: result of `to_find`.
    """

    __slots__ = ("lookup", "request", "sets")

    def __init__(self, key: int, request: m.ClientRequest, lookup: m.RegistersRequest) -> None:
        super().__init__(key)
        self.request = request
        self.lookup = lookup
        self.sets: tuple[tuple[NodeId, ...], ...] = ()  # some majority of each has what was confirmed

    def start(self, context: Context, now: Now) -> list[Effect]:
        known = (
            context.catalogue.topics
        )  # begun again after a change of the voters, it may name a deleted topic
        topics = [known[group.topic] for group in self.lookup.groups if group.topic in known]
        self.sets = tuple(dict.fromkeys(members for topic in topics for members in topic.replicas))
        round_ = self.open_register_round(context, now, min(FIND_TIMEOUT_S, context.config.request_timeout))
        lookup = self.lookup._replace(round=round_.number)
        return [Send(node, lookup) for node in round_.mark_unreachable(context.state)] or self.give_up(
            context, round_
        )

    def on_reply(
        self, context: Context, sender: NodeId, incarnation: Incarnation, message: m.PeerMessage, now: Now
    ) -> list[Effect]:
        assert isinstance(message, m.RegistersReply)
        round_ = self.rounds[message.round]
        effects, _ = self.take_in(context, sender, incarnation, message, now)
        lookup = to_find(context, self.request)
        if lookup != self.lookup or self.is_enough(context, round_, round_.valid(context.state)):
            return effects + self.take_up(context, looked=lookup == self.lookup)
        if round_.everyone:
            return effects + self.give_up(context, round_)
        return effects

    def is_enough(self, context: Context, round_: Round, bits: int) -> bool:
        """Return True if one of these nodes is in every majority that may have confirmed a register."""
        answered = [node for at, node in enumerate(round_.members) if bits & (1 << at)]
        return round_.is_read(bits) and all(
            sum(node in answered for node in nodes) > len(nodes) - majority_of(len(nodes))
            for nodes in self.sets
        )

    def take_up(self, context: Context, *, looked: bool) -> list[Effect]:
        """Go on with the request; ``looked``: names that are not known here are unknown everywhere."""
        return [*self.finish(context, None), Again(self.key, self.request, looked, self.caller)]

    def give_up(self, context: Context, round_: Round) -> list[Effect]:
        """Fail, because too few nodes answered; go on if that is enough for the request."""
        bits = round_.valid(context.state)
        # An unknown one of many receipts does not affect the others.
        if isinstance(self.request, m.SETTLING) or self.is_enough(context, round_, bits):
            return self.take_up(context, looked=True)
        items = [*map(repr, self.lookup.names), *(id_.hex() for id_ in self.lookup.ids)]
        items += [f"group {group.name!r}" for group in self.lookup.groups]
        nodes = len(context.catalogue.cluster.voters)
        detail = (
            f"{', '.join(items[:5])} is not known to node {context.state.me}, and too few others could be asked: "
            "try again, through any node"
        )
        needed = nodes - majority_of(nodes) + 1
        return self.fail(context, Code.TOO_FEW_REPLICAS, detail, needed, bits.bit_count())

    def on_timeout(self, context: Context, number: int, now: Now) -> list[Effect]:
        return self.give_up(context, self.rounds[number])

    def on_gone(self, context: Context, now: Now) -> list[Effect]:
        return self.finish(context, None)
