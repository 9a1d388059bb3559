"""Messages between nodes, and answers to clients. A message on its way is a number."""

from __future__ import annotations

from quorumq.core import messages as m
from sim.explorer.numbered import Numbered
from sim.explorer.scenario import Scenario

NOT_SENT: tuple[type, ...] = (m.Heartbeat, m.SyncRegisters, m.SyncTopics, m.ReleaseReply, m.PutTopic)
"""Messages that are always lost here, and news of groups. Heartbeats and registers say nothing new in these clusters; a
lost Released only has the RELEASE repeated in front of the next HOLD. Comparisons of anti-entropy that a new
link begins are lost, too, unless the scenario has anti-entropy in it."""

NOT_SENT_OF_OPERATORS = (m.Heartbeat, m.SyncRegisters, m.SyncTopics, m.SyncDigests, m.HoldsRequest)
"""Not sent if operators work on topics: there are no holds. For registers, the writes of rounds are enough."""


class Traffic:
    """All messages and replies of one exploration.

    Attributes:
        to: per message, the index of the node that it goes to.
        fetching: per RemoteFetch, its copy; per copy, itself.
        lost: types of messages that never arrive.
    """

    store: m.Store

    def __init__(self, scenario: Scenario) -> None:
        self.messages: Numbered[m.Envelope] = Numbered()
        self.replies: Numbered[m.ClientReply] = Numbered()
        self.to: list[int] = []
        self.fetching: dict[int, int] = {}
        self.lost = NOT_SENT if scenario.budget.comparisons else (*NOT_SENT, m.SyncDigests)
        if (
            scenario.operators or scenario.unaware
        ):  # a move is adopted, or a topic made, as a coordinator says
            self.lost = tuple(kind for kind in self.lost if kind is not m.PutTopic)
        if not scenario.has_work:
            self.lost = NOT_SENT_OF_OPERATORS
        self._news = scenario.has_work
        self._index = scenario.index

    def is_lost(self, message: m.PeerMessage) -> bool:
        """Return True if a message never arrives."""
        news = self._news and isinstance(message, m.PutGroup) and not message.round
        return news or isinstance(message, self.lost)

    def message(self, envelope: m.Envelope) -> int:
        """Return the number of a message. Two of different types may be equal: they are tuples."""
        number = self.messages.number(envelope, (type(envelope.message), envelope))
        if number == len(self.to):
            self.to.append(self._index[envelope.to])
            if isinstance(envelope.message, m.RemoteFetch):
                # A copy differs from the first by its stamp, which says nothing here.
                self.fetching[number] = number if envelope.stamp else self.message(envelope._replace(stamp=1))
        return number

    def reply(self, reply: m.ClientReply) -> int:
        """Return the number of an answer to a client."""
        return self.replies.number(reply, (type(reply), reply))
