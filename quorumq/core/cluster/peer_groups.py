"""Groups that the peers know: RECLAIM may drop a message that no group needs only once it knows every group."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from quorumq.core.cluster.catalogue import Catalogue
from quorumq.core.cluster.rounds import majority_of
from quorumq.core.cluster.state import NodeState
from quorumq.core.messages import GroupsReply, GroupsRequest
from quorumq.core.messages.effects import Effect, Send
from quorumq.core.values.chunks import chunks_of
from quorumq.core.values.limits import GROUPS_PER_CHUNK
from quorumq.core.values.types import FIRST_LAYOUT, NodeId, Now

ANSWER_WAIT_S = 60.0
"""Seconds for which an answer to a GroupsRequest is awaited."""

TOPICS_PER_ASK = 64
"""Topics in one GroupsRequest."""


class GroupsQuestion(NamedTuple):
    """A GroupsRequest: the time of the question (monotonic seconds) and its topics."""

    at: float
    topics: tuple[bytes, ...]


class PeerGroups:
    """Open questions, and the time of each question that a peer has answered.

    Attributes:
        asked: questions by number.
        answered_at: monotonic time of the newest answered question, by peer and topic.
    """

    __slots__ = ("answered_at", "asked", "state")

    def __init__(self, state: NodeState) -> None:
        self.state = state
        self.asked: dict[int, GroupsQuestion] = {}
        self.answered_at: dict[tuple[NodeId, bytes], float] = {}

    def ask(self, topics: Iterable[bytes], now: Now) -> list[Effect]:
        """Ask all linked peers, and drop questions that have waited too long for an answer."""
        self.asked = {
            number: asked for number, asked in self.asked.items() if asked.at > now.mono - ANSWER_WAIT_S
        }
        effects: list[Effect] = []
        for chunk in chunks_of(sorted(topics), TOPICS_PER_ASK):
            ask = self._question(GroupsQuestion(now.mono, chunk), "")
            effects += [Send(peer, ask) for peer in self.state.links]
        return effects

    def _question(self, asked: GroupsQuestion, after: str) -> GroupsRequest:
        number = self.state.next_round()
        self.asked[number] = asked
        layouts = layouts_of(self.state.catalogue, asked.topics)
        return GroupsRequest(number, asked.topics, after, layouts)

    def answered_by_majority(self, members: tuple[NodeId, ...], topic: bytes, now: Now) -> float:
        """Return the latest time since which a majority of the replica set, with this node, was asked and answered."""
        times = [
            now.mono if member == self.state.me else self.answered_at.get((member, topic), -1e18)
            for member in members
        ]
        return sorted(times, reverse=True)[majority_of(len(times)) - 1]

    def awaits(self, message: GroupsReply) -> bool:
        """Return True if the message answers an open question."""
        return message.number in self.asked and (not message.more or bool(message.groups))

    def on_groups_reply(self, sender: NodeId, message: GroupsReply) -> list[Effect]:
        """Note the time of the question for each topic that the peer has answered in full, and ask for the rest.

        The groups of the message have been merged already.
        """
        asked = self.asked[message.number]
        effects: list[Effect] = []
        rest: tuple[bytes, ...] = ()
        if message.more:
            last = message.groups[-1]
            rest = tuple(topic for topic in asked.topics if topic >= last.topic)
            effects.append(Send(sender, self._question(asked._replace(topics=rest), last.name)))
        for topic in asked.topics[: len(asked.topics) - len(rest)]:
            self.answered_at[(sender, topic)] = max(asked.at, self.answered_at.get((sender, topic), asked.at))
        return effects

    def discard(self, topic: bytes) -> None:
        """Drop the answers about a topic that was deleted, or has another layout; open questions are of the old one."""
        self.asked.clear()
        for key in [key for key in self.answered_at if key[1] == topic]:
            del self.answered_at[key]


def layouts_of(catalogue: Catalogue, topics: tuple[bytes, ...]) -> tuple[int, ...]:
    """Return the numbers of the topics' layouts here; () if no partition of them was ever moved."""
    known = [catalogue.topics.get(topic) for topic in topics]
    numbers = tuple([topic.layout_number if topic is not None else FIRST_LAYOUT for topic in known])
    return numbers if any(number != FIRST_LAYOUT for number in numbers) else ()


def answer_groups(
    catalogue: Catalogue, joining: Iterable[bytes], sender: NodeId, message: GroupsRequest
) -> list[Effect]:
    """Answer GROUPS-ASK with one frame. The peer asks for the rest, so that a lost page is noticed.

    Nothing is answered about a topic if this node has another layout of it than the sender, or a new slot: it may not
    have heard of groups that a majority of the replicas knows.

    Args:
        joining: topics with a slot that is new here and not trusted yet.
    """
    if layouts_of(catalogue, message.topics) != message.layouts or any(
        topic in message.topics for topic in joining
    ):
        return []
    keys = [key for topic in sorted(dict.fromkeys(message.topics)) for key in catalogue.group_keys(topic)]
    if keys and message.after:
        keys = keys[bisect_right(keys, (message.topics[0], message.after)) :]
    groups = tuple(catalogue.groups[key] for key in keys[:GROUPS_PER_CHUNK])
    return [Send(sender, GroupsReply(message.number, groups, len(keys) > len(groups)))]
