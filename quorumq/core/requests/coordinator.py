"""Common parts of all coordinators.

A coordinator carries one client request through its quorum rounds and answers it once. Any node coordinates any
request. It lives in one node's memory: if the node dies, the request's outcome is unknown and the client retries.
"""

from __future__ import annotations

from typing import Any

from quorumq.core import messages as m
from quorumq.core.cluster.deleted_names import PAGES, topic_of
from quorumq.core.cluster.rounds import RegisterRound, Round
from quorumq.core.messages.effects import Effect, Reply, Send
from quorumq.core.requests import merging
from quorumq.core.requests.context import Context, Pending
from quorumq.core.values.errors import Code
from quorumq.core.values.types import Incarnation, NodeId, Now, PartitionId, Stamp, Topic, Value


class Coordinator(Pending):
    """One client request, seen from the node that took it."""

    __slots__ = ("requests", "taught")

    def __init__(self, key: int) -> None:
        self.key = key
        self.caller = 0
        self.done = False
        self.rounds = {}
        self.requests: dict[int, tuple[PartitionId, m.PeerMessage]] = {}
        self.taught: dict[tuple[int, NodeId], None] = {}

    def concerns(self, topic: bytes) -> bool:
        return any(partition.topic == topic for partition, _ in self.requests.values())

    def on_deleted(self, context: Context, topic: Topic, now: Now) -> list[Effect]:
        return self.fail(context, Code.NOT_FOUND, f"topic {topic.name!r} was deleted")

    def own_value(self, context: Context, ballot: Stamp) -> Value:
        """Return the value to propose under ``ballot`` if nothing may have been chosen yet
        (core/requests/proposing.py)."""
        raise NotImplementedError

    def open_round(
        self, context: Context, members: tuple[NodeId, ...], now: Now, timeout: float | None = None
    ) -> Round:
        """Open a round among ``members``, with a timer of ``timeout`` seconds (the request timeout if None)."""
        round_ = Round(context.state.next_round(), members)
        self.adopt(context, round_, now, timeout)
        return round_

    def open_register_round(self, context: Context, now: Now, timeout: float | None = None) -> Round:
        """Open a round among all members, in which the voters are counted, and which replica sets need a part of."""
        return self._open_counted(context, context.catalogue.cluster.present, now, timeout)

    def open_voter_round(self, context: Context, now: Now) -> Round:
        return self._open_counted(context, context.catalogue.cluster.voters, now, None)

    def _open_counted(
        self, context: Context, nodes: tuple[NodeId, ...], now: Now, timeout: float | None
    ) -> Round:
        cluster = context.catalogue.cluster
        round_ = RegisterRound(context.state.next_round(), nodes, cluster.voters, cluster.epoch)
        self.adopt(context, round_, now, timeout)
        return round_

    def adopt(self, context: Context, round_: Round, now: Now, timeout: float | None) -> None:
        """Add ``round_`` to our own: we get its replies and its timer. A broken link does not end it."""
        assert not self.done, "a request that is answered opens no round"
        self.rounds[round_.number] = round_
        context.rounds[round_.number] = self
        wait = context.config.request_timeout if timeout is None else timeout
        context.state.at(now.mono + wait, ("round", round_.number))

    def ask(
        self,
        context: Context,
        round_: Round,
        partition: PartitionId,
        message: m.PeerMessage,
        now: Now,
        *,
        ours_last: bool = False,
    ) -> list[Effect]:
        """Send ``message`` to the members of the round. A copy is kept in case a member does not know the topic.

        A member that cannot answer, because there is no link each way, is not asked and not waited for.
        """
        self.requests[round_.number] = (partition, message)
        state = context.state
        effects: list[Effect] = []
        ours: list[Effect] = []
        for at, member in enumerate(round_.members):  # as `Round.mark_unreachable`, without the calls
            if member == state.me or member in state.answering:
                (ours if ours_last and member == state.me else effects).append(Send(member, message))
            else:
                round_.unreachable |= 1 << at
        return effects + ours

    def on_reply(
        self, context: Context, sender: NodeId, incarnation: Incarnation, message: Any, now: Now
    ) -> list[Effect]:
        """Handle a replica's reply to `ask`. A replica that does not know the topic gets it, and is asked again."""
        round_ = self.rounds[message.round]
        context.state.learn_vector(round_.members, message.known)
        if message.error and (message.error == Code.UNKNOWN_TOPIC or self.is_ahead(message, sender)):
            return self.teach(context, message.round, sender)
        return self.on_answer(context, round_, sender, round_.hear(sender, incarnation), message, now)

    def on_answer(
        self, context: Context, round_: Round, sender: NodeId, bit: int, message: m.PeerMessage, now: Now
    ) -> list[Effect]:
        """Handle the reply of a replica that knows the topic. ``bit`` is its bit in ``round_``, or 0 if not counted."""
        raise NotImplementedError

    def is_ahead(self, message: Any, sender: NodeId) -> bool:
        """Return True if a replica that has an older layout than ours refuses, for the first time in the round.

        One with a newer layout has sent that ahead of its refusal, which has ended the round.
        """
        return message.error == Code.WRONG_EPOCH and (message.round, sender) not in self.taught

    def on_moved(self, context: Context, moved: tuple[PartitionId, ...], now: Now) -> list[Effect]:
        """End the rounds about these partitions as at their timeout: nodes that adopt the new layout answer none.

        Why: answers given before are votes, and stay so; the same request is made again under the new layout.
        """
        effects: list[Effect] = []
        for number, (partition, _) in list(self.requests.items()):
            if partition in moved and number in self.rounds and not self.done:
                effects += self.on_timeout(context, number, now)
        return effects

    def on_voters_changed(self, context: Context, now: Now) -> list[Effect]:
        self.close_rounds(context)
        return self.start(context, now)

    def teach(self, context: Context, number: int, sender: NodeId) -> list[Effect]:
        """Send the topic to ``sender``, which does not know it, and ask again, once. Its answer has not counted."""
        partition, message = self.requests[number]
        topic = context.catalogue.topics.get(partition.topic)
        if topic is None or (number, sender) in self.taught:
            return []
        self.taught[(number, sender)] = None
        return [Send(sender, m.PutTopic(0, topic)), Send(sender, self.rounds[number].repeated(message))]

    def read_register(
        self, context: Context, topic: Topic, now: Now, *, groups: bool = False
    ) -> list[Effect]:
        """Open a round that asks all nodes for a topic's register, and for all of its groups if ``groups``.

        It is asked for by name, too: a node finds it by its id only until it packs it.
        """
        round_ = self.open_voter_round(context, now)
        ask = m.RegistersRequest(round_.number, (topic.name,), (topic.id,), (), "" if groups else None)
        return [Send(node, ask) for node in round_.members]

    def take_in(
        self, context: Context, sender: NodeId, incarnation: Incarnation, message: m.RegistersReply, now: Now
    ) -> tuple[list[Effect], int]:
        """Merge the registers of an answer, and ask for the next page. Return its bit once all of it is here, else 0.

        A register may say that the topic was deleted: then this request may be over.
        """
        round_ = self.rounds[message.round]
        effects = [
            effect for topic in message.topics for effect in merging.take_in_topic(context, topic, now)
        ]
        effects += merging.take_in_groups(context, message.groups, now)
        effects += merging.take_in_packed(context, message.packed, now)
        if message.more and message.page:
            ask = m.RegistersRequest(round_.number, (), (topic_of(message.packed),), (), "", message.page)
            return [*effects, Send(sender, ask)], 0
        if message.more and message.groups:
            last = message.groups[-1]
            ask = m.RegistersRequest(round_.number, (), (last.topic,), (), last.name, PAGES)
            return [*effects, Send(sender, ask)], 0
        return effects, round_.hear(sender, incarnation)

    def close_round(self, context: Context, number: int) -> None:
        """Close this round: replies to it no longer matter."""
        self.rounds.pop(number, None)
        self.requests.pop(number, None)
        context.rounds.pop(number, None)

    def close_rounds(self, context: Context) -> None:
        """Close all rounds: replies to earlier questions no longer matter."""
        for number in list(self.rounds):
            self.close_round(context, number)

    def finish(self, context: Context, reply: m.ClientReply | None) -> list[Effect]:
        """Answer the client, if one waits, once, and close every round."""
        assert not self.done, "a request is answered once"
        self.done = True
        for number in list(self.rounds):
            self.close_round(context, number)
        context.requests.pop(self.key, None)
        if self.key <= 0 or reply is None:
            return []
        return [Reply(self.key, reply)]

    def fail(
        self, context: Context, code: str, detail: str, needed: int = 0, answered: int = 0
    ) -> list[Effect]:
        """Answer with an error; ``needed`` and ``answered`` if no majority was available."""
        return self.finish(context, m.Failed(code, detail, needed, answered))


def late(group: str, generation: int, changes: int = 0) -> m.Failed:
    """Return the answer to a request that is about an earlier generation of a group.

    Args:
        changes: generation that the group has, for a creation to name.
    """
    since = f"since its generation {generation}"
    detail = f"group {group!r} was rewound, deleted or made again {since}: it is left as it is"
    return m.Failed(Code.STALE_GENERATION, detail, number=changes)
