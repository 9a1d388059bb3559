"""Which groups the peers know of: RECLAIM may drop what no group needs only once it knows every group there is."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from quorumq.core.catalogue import Catalogue
from quorumq.core.effects import Effect, Send
from quorumq.core.limits import GROUPS_PER_PIECE
from quorumq.core.messages import GroupsReply, GroupsRequest
from quorumq.core.pieces import pieces_of
from quorumq.core.rounds import majority_of
from quorumq.core.state import NodeState
from quorumq.core.types import NodeId, Now

ANSWER_WAIT_S = 60.0
"""How long an answer to a GroupsRequest is waited for."""

TOPICS_PER_ASK = 64
"""Topics in one GroupsRequest."""


class Asked(NamedTuple):
    """A GroupsRequest: when the question was asked (monotonic seconds), of which topics."""

    at: float
    topics: tuple[bytes, ...]


class Census:
    """The questions that are open, and when each peer was asked what it has answered.

    Attributes:
        asked: questions by number.
        heard: by peer and topic, when the question was asked that it has answered.
    """

    __slots__ = ("asked", "heard", "state")

    def __init__(self, state: NodeState) -> None:
        self.state = state
        self.asked: dict[int, Asked] = {}
        self.heard: dict[tuple[NodeId, bytes], float] = {}

    def ask(self, topics: Iterable[bytes], now: Now) -> list[Effect]:
        """Ask all peers that there is a link to; questions that nobody will answer any more are forgotten."""
        self.asked = {
            number: asked for number, asked in self.asked.items() if asked.at > now.mono - ANSWER_WAIT_S
        }
        effects: list[Effect] = []
        for piece in pieces_of(sorted(topics), TOPICS_PER_ASK):
            ask = self._question(Asked(now.mono, piece), "")
            effects += [Send(peer, ask) for peer in self.state.links]
        return effects

    def _question(self, asked: Asked, after: str) -> GroupsRequest:
        number = self.state.next_round()
        self.asked[number] = asked
        return GroupsRequest(number, asked.topics, after)

    def heard_by_majority(self, members: tuple[NodeId, ...], topic: bytes, now: Now) -> float:
        """When the oldest question was asked that a majority of the replica set, ourselves included, answered."""
        times = [
            now.mono if member == self.state.me else self.heard.get((member, topic), -1e18)
            for member in members
        ]
        return sorted(times, reverse=True)[majority_of(len(times)) - 1]

    def awaits(self, message: GroupsReply) -> bool:
        """Whether it answers an open question."""
        return message.number in self.asked and (not message.more or bool(message.groups))

    def on_told(self, sender: NodeId, message: GroupsReply) -> list[Effect]:
        """What a peer knows counts from when it was asked first, topic by topic, once all of it is here.

        Its groups have been merged.
        """
        asked = self.asked[message.number]
        effects: list[Effect] = []
        rest: tuple[bytes, ...] = ()
        if message.more:
            last = message.groups[-1]
            rest = tuple(topic for topic in asked.topics if topic >= last.topic)
            effects.append(Send(sender, self._question(asked._replace(topics=rest), last.name)))
        for topic in asked.topics[: len(asked.topics) - len(rest)]:
            self.heard[(sender, topic)] = max(asked.at, self.heard.get((sender, topic), asked.at))
        return effects

    def forget(self, topic: bytes) -> None:
        """The topic was deleted."""
        for heard in [heard for heard in self.heard if heard[1] == topic]:
            del self.heard[heard]


def tell(catalogue: Catalogue, sender: NodeId, message: GroupsRequest) -> list[Effect]:
    """GROUPS-ASK: answer with what fits a frame; the rest is asked for, so that a page that is lost is missed."""
    wanted = dict.fromkeys(message.topics)
    found = sorted(key for key in catalogue.groups if key[0] in wanted)
    if found and message.after:
        found = found[bisect_right(found, (message.topics[0], message.after)) :]
    groups = tuple(catalogue.groups[key] for key in found[:GROUPS_PER_PIECE])
    return [Send(sender, GroupsReply(message.number, groups, len(found) > len(groups)))]
