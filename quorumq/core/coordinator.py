"""What all coordinators share.

A coordinator carries one client request through its quorum rounds and answers it once. Any node coordinates any
request. It lives in one node's memory: if the node dies, the request's outcome is unknown and the client retries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorumq.core.effects import Effect, Reply, Send
from quorumq.core.messages import (
    ClientReply,
    Failed,
    PeekPage,
    PeekReply,
    PeekRequest,
    PeerMessage,
    Publish,
    Published,
    PutGroup,
    PutTopic,
    RegistersAsk,
    RegistersTold,
    Store,
    Stored,
)
from quorumq.core.rounds import Round
from quorumq.core.types import Group, Incarnation, NodeId, Now, PartitionId, Topic

if TYPE_CHECKING:
    from quorumq.core.nodecore import NodeCore


class Coordinator:
    """One client request, seen from the node that took it.

    Args:
        key: the client request to answer; 0 when nobody waits.
    """

    __slots__ = ("done", "key", "requests", "rounds", "taught")

    def __init__(self, key: int) -> None:
        self.key = key
        self.done = False
        self.rounds: dict[int, Round] = {}
        self.requests: dict[int, tuple[PartitionId, PeerMessage]] = {}
        self.taught: dict[tuple[int, NodeId], None] = {}

    def start(self, core: NodeCore, now: Now) -> list[Effect]:
        """Begin; the effects to carry out."""
        raise NotImplementedError

    def on_reply(
        self, core: NodeCore, sender: NodeId, incarnation: Incarnation, message: PeerMessage, now: Now
    ) -> list[Effect]:
        """A reply to one of our rounds."""
        raise NotImplementedError

    def on_cannot_vouch(self, core: NodeCore, number: int, sender: NodeId, now: Now) -> list[Effect]:
        """``sender`` cannot vouch for its directory now, so it does nothing that would count in round ``number``."""
        return []

    def on_timeout(self, core: NodeCore, number: int, now: Now) -> list[Effect]:
        """Round ``number`` has had its time."""
        raise NotImplementedError

    def on_gone(self, core: NodeCore, now: Now) -> list[Effect]:
        """The client is gone. What was sent may still take effect."""
        return []

    def concerns(self, topic: bytes) -> bool:
        """Whether anything is under way for that topic."""
        return any(partition.topic == topic for partition, _ in self.requests.values())

    def on_deleted(self, core: NodeCore, topic: Topic, now: Now) -> list[Effect]:
        """A topic that this is about was deleted: nothing more can come of it."""
        return self.finish(core, Failed("not-found", f"topic {topic.name!r} was deleted"))

    def open_round(
        self, core: NodeCore, members: tuple[NodeId, ...], now: Now, timeout: float | None = None
    ) -> Round:
        """A new round among ``members``, with a timer of ``timeout`` seconds (the request timeout if None)."""
        core.round_count += 1
        number = core.round_count
        this = Round(number, members)
        self.adopt(core, this, now, timeout)
        return this

    def adopt(self, core: NodeCore, this: Round, now: Now, timeout: float | None) -> None:
        """Take ``this`` round as one of ours: replies to it and its timer come here."""
        self.rounds[this.number] = this
        core.rounds[this.number] = self
        wait = core.config.request_timeout if timeout is None else timeout
        core.state.at(now.mono + wait, "round", this.number)

    def ask(self, core: NodeCore, this: Round, partition: PartitionId, message: PeerMessage) -> list[Effect]:
        """Send ``message`` to the members of the round; a copy is kept in case one does not know the topic.

        A member without a link is not asked and not waited for.
        """
        self.requests[this.number] = (partition, message)
        effects: list[Effect] = []
        for at, member in enumerate(this.members):
            if member == core.state.me or member in core.state.links:
                effects.append(Send(member, message))
            else:
                this.unasked |= 1 << at
        return effects

    def teach(self, core: NodeCore, number: int, sender: NodeId) -> list[Effect]:
        """``sender`` does not know the topic: tell it, and ask again, once. Its answer has not counted."""
        partition, message = self.requests[number]
        topic = core.topics.get(partition.topic)
        if topic is None or (number, sender) in self.taught:
            return []
        self.taught[(number, sender)] = None
        return [Send(sender, PutTopic(0, topic)), Send(sender, message)]

    def put_group(self, core: NodeCore, group: Group, now: Now, *, ask: bool) -> tuple[Round, list[Effect]]:
        """A round that writes a group's register to all nodes, or with ``ask`` just asks them for theirs."""
        this = self.open_round(core, core.config.nodes, now)
        topic = PutTopic(0, core.topics[group.topic])  # first, for a node that has not heard of it
        put = PutGroup(this.number, group, ask)
        return this, [Send(node, message) for node in core.config.nodes for message in (topic, put)]

    def read_register(self, core: NodeCore, topic: bytes, now: Now, *, groups: bool = False) -> list[Effect]:
        """A round that asks all nodes for what they have of a topic's register, and perhaps for all of its groups."""
        this = self.open_round(core, core.config.nodes, now)
        ask = RegistersAsk(this.number, (), (topic,), (), "" if groups else None)
        return [Send(node, ask) for node in this.members]

    def take_in(
        self, core: NodeCore, sender: NodeId, incarnation: Incarnation, message: RegistersTold, now: Now
    ) -> tuple[list[Effect], int]:
        """Merge the registers of an answer, and ask for the next page; its bit, once all of it is here.

        A register may say that the topic was deleted: then this request may be over.
        """
        this = self.rounds[message.round]
        effects = [effect for topic in message.topics for effect in core.take_in_topic(topic, now)]
        effects += [effect for group in message.groups for effect in core.merge_group(group, now)]
        if message.more and message.groups:
            last = message.groups[-1]
            ask = RegistersAsk(this.number, (), (last.topic,), (), last.name)
            return [*effects, Send(sender, ask)], 0
        return effects, this.hear(sender, incarnation)

    def refuse_unstamped(self, core: NodeCore) -> list[Effect]:
        """There is no stamp to be had for some milliseconds."""
        detail = f"node {core.state.me} is writing its clock's reserve: try again"
        return self.finish(core, too_few("not-stored", detail, 1, 0))

    def close_round(self, core: NodeCore, number: int) -> None:
        """Replies to this round no longer matter."""
        self.rounds.pop(number, None)
        self.requests.pop(number, None)
        core.rounds.pop(number, None)

    def close_rounds(self, core: NodeCore) -> None:
        """Replies to what was asked so far no longer matter."""
        for number in list(self.rounds):
            self.close_round(core, number)

    def finish(self, core: NodeCore, reply: ClientReply | None) -> list[Effect]:
        """Answer the client, once, and let go of every round."""
        assert not self.done, "a request is answered once"
        self.done = True
        self.close_rounds(core)
        core.requests.pop(self.key, None)
        if self.key == 0 or reply is None:
            return []
        return [Reply(self.key, reply)]


def too_few(code: str, detail: str, needed: int, answered: int) -> Failed:
    """The answer when a majority was not to be had."""
    return Failed(code, detail, needed, answered)


class PublishCoordinator(Coordinator):
    """PUBLISH: STORE to the replica set, OK at a majority of durable STORED (docs/protocol.md, PUBLISH).

    Below a majority the outcome is unknown and nothing is aborted: anti-entropy finishes what reached fewer.
    """

    __slots__ = ("came", "problems", "publish", "stored")

    def __init__(self, key: int, publish: Publish) -> None:
        super().__init__(key)
        self.publish = publish
        self.came = 0.0
        self.stored = 0  # bits of those that have it on disk
        self.problems: dict[NodeId, tuple[str, str]] = {}

    def start(self, core: NodeCore, now: Now) -> list[Effect]:
        partition = self.publish.batch.header.partition
        topic = core.topics.get(partition.topic)
        if topic is None or partition.number >= topic.partitions:
            return self.finish(core, Failed("not-found", core.why_not_here(partition)))
        members = topic.replicas[partition.number]
        self.came = now.mono
        this = self.open_round(core, members, now)
        reachable = [member for member in members if member == core.state.me or member in core.state.links]
        if len(reachable) < this.majority:
            detail = f"nothing was sent: only {', '.join(reachable) or 'none'} of {', '.join(members)} can be reached"
            return self.finish(core, too_few("not-stored", detail, this.majority, len(reachable)))
        return self.ask(core, this, partition, self.store(this, topic, now))

    def store(self, this: Round, topic: Topic, now: Now) -> Store:
        """The STORE to send now: the batch has aged since it came."""
        age_ms = max(0, self.publish.age_ms) + int(1000 * (now.mono - self.came))
        return Store(this.number, topic.epoch, self.publish.batch, age_ms)

    def on_reply(
        self, core: NodeCore, sender: NodeId, incarnation: Incarnation, message: PeerMessage, now: Now
    ) -> list[Effect]:
        assert isinstance(message, Stored)
        this = self.rounds[message.round]
        core.state.learn_vector(this.members, message.known)
        if message.refused == "unknown-topic":
            partition = self.publish.batch.header.partition
            again = self.store(this, core.topics[partition.topic], now)
            self.requests[message.round] = (partition, again)
            return self.teach(core, message.round, sender)
        bit = this.hear(sender, incarnation)
        if message.refused:
            self.problems[sender] = (message.refused, message.detail)
        else:
            self.stored |= bit
        return self._decide(core, this, timed_out=False)

    def on_timeout(self, core: NodeCore, number: int, now: Now) -> list[Effect]:
        return self._decide(core, self.rounds[number], timed_out=True)

    def _decide(self, core: NodeCore, this: Round, *, timed_out: bool) -> list[Effect]:
        stored = self.stored & this.valid(core.state)
        if this.is_majority(stored):
            return self.finish(core, Published(stored.bit_count()))
        for code, detail in self.problems.values():
            if code == "conflict":
                return self.finish(core, Failed(code, detail))
        closed = [node for node, (code, _) in self.problems.items() if code == "origin-closed"]
        if this.is_refused(sum(1 << this.members.index(node) for node in closed)):
            return self.finish(core, Failed("origin-closed", self.problems[closed[0]][1]))
        if not timed_out and not this.everyone:
            return []
        codes = {code for code, _ in self.problems.values()}
        if not self.stored and codes == {"storage-full"} and this.everyone:  # so nothing was done anywhere
            _, detail = next(iter(self.problems.values()))
            return self.finish(core, Failed("storage-full", detail))
        detail = "it may be stored: publish the same batch again, through any node"
        if self.problems:
            detail += "; " + "; ".join(
                f"{node}: {text or code}" for node, (code, text) in self.problems.items()
            )
        return self.finish(core, too_few("outcome-unknown", detail, this.majority, stored.bit_count()))


class PeekCoordinator(Coordinator):
    """PEEK through a node that has no replica of the partition: ask one that does, pass on its page with bodies."""

    __slots__ = ("request",)

    def __init__(self, key: int, request: PeekRequest) -> None:
        super().__init__(key)
        self.request = request

    def start(self, core: NodeCore, now: Now) -> list[Effect]:
        members = core.members_of(self.request.partition)
        up = [member for member in members if member in core.state.links]
        if not up:
            detail = f"none of {', '.join(members)} can be reached from {core.state.me}: ask one of them"
            return self.finish(core, too_few("not-stored", detail, 1, 0))
        this = self.open_round(core, (up[0],), now)
        return self.ask(core, this, self.request.partition, self.request._replace(round=this.number))

    def on_reply(
        self, core: NodeCore, sender: NodeId, incarnation: Incarnation, message: PeerMessage, now: Now
    ) -> list[Effect]:
        assert isinstance(message, PeekReply)
        if message.error == "unknown-topic":
            return self.teach(core, message.round, sender)
        page = PeekPage(self.request.partition, message.items, message.cursor, message.slices)
        return self.finish(core, page)

    def on_timeout(self, core: NodeCore, number: int, now: Now) -> list[Effect]:
        node = self.rounds[number].members[0]
        return self.finish(core, too_few("outcome-unknown", f"{node} did not answer: ask again", 1, 0))
