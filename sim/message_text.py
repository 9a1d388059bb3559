"""Messages between nodes as text, in the words of docs/protocol.md: for traces, pictures and transcripts."""

from __future__ import annotations

from quorumq.core import messages as m
from quorumq.core.values.types import (
    STAMP_ZERO,
    ClusterLayout,
    Kind,
    Layout,
    Record,
    Stamp,
    Topic,
    Value,
)

SAID = {
    m.HoldsRequest: "HOLDS-ASK",
    m.SyncDigests: "SYNC-OFFER",
    m.SyncListed: "SYNC-LISTED",
    m.SyncPull: "SYNC-PULL",
    m.Store: "STORE",
    m.RemoteFetch: "FETCH passed on",
    m.RemoteGone: "FETCH called off",
    m.ReplicaList: "REPLICA-LIST",
}
"""Messages that a trace names by their kind alone."""


class MessageText:
    """Describes messages. A ballot has the name of its attempt or operation, if that is known."""

    def __init__(self) -> None:
        self.names: dict[Stamp, str] = {}

    def ballot(self, ballot: Stamp) -> str:
        """Return the name of the attempt, or operation, that a ballot belongs to."""
        return "0" if ballot == STAMP_ZERO else self.names.get(ballot, str(ballot))

    def content(self, message: object) -> str:
        """Return the content of a message as text."""
        match message:
            case m.Hold():
                n = message.wants[0].n
                repeats = f" (with {self.released(message.released)})" if message.released else ""
                return f"HOLD {self.ballot(message.ballot)}{f' n={n}' if n else ''}{repeats}"
            case m.HoldReply():
                return f"{self.votes(message)} to round {message.round} of"
            case m.Release(released):
                return self.released(released)
            case m.Extend():
                return f"EXTEND {self.ballot(message.entries[0].owner.ballot)}"
            case m.ExtendReply():
                word = "EXTENDED" if message.granted else "NOT EXTENDED" if message.refused else "ABSTAIN"
                return f"{word} to round {message.round} of"
            case m.Ack():
                return f"ACK {self.ballot(message.entries[0].owner.ballot)}"
            case m.AckReply():
                word = "a higher ballot" if message.higher else "cannot say"
                word = "exclusive" if message.exclusive else word
                return f"TOMBED ({word}) to round {message.round} of"
            case m.Reject():
                how = "interrupted" if message.interrupted else f"delay {message.delay:g} s"
                how = "DEAD" if message.death is not None else how
                return f"REJECT {self.ballot(message.entries[0].owner.ballot)} ({how})"
            case m.RejectReply():
                word = "applied" if message.applied else "refused"
                return f"REJECTED ({word}) to round {message.round} of"
            case m.Merge():
                return f"MERGE {self.record(message.entries[0].record)}"
            case m.MergeReply():
                return f"MERGED ({'exact' if message.exact or message.whole else 'higher'}) to round {message.round} of"
            case m.HoldsReply():
                holds = ", ".join(self.ballot(held.owner.ballot) for held in message.holds)
                return f"HOLDS-TOLD ({holds or 'none'})"
            case m.SyncState():
                records = [self.record(item.record) for state in message.groups for item in state.records]
                return f"SYNC-STATE ({', '.join(records) or 'spans'})"
            case m.Store(hold=m.Hold() as hold):
                return f"STORE with {self.content(hold)}"
            case m.StoreReply(votes=m.HoldReply() as votes):
                return f"STORED with {self.content(votes)}"
            case m.RemoteFetchReply():
                won = [delivery for part in message.slices for delivery in part.deliveries]
                return f"WON {self.ballot(won[0].receipt.owner.ballot)}" if won else "NOTHING WON"
            case m.Prepare():
                return f"PREPARE {self.ballot(message.ballot)}"
            case m.Accept():
                return f"ACCEPT {self.ballot(message.ballot)} ({self.value(proposed(message))})"
            case m.ProposalReply():
                return self.voted(message)
            case m.PutTopic() if message.topic.labels:
                return f"PUT-TOPIC (labels {', '.join(repr(label.text) for label in message.topic.labels)})"
            case m.PutTopic():
                if message.topic.made in self.names:
                    return f"PUT-TOPIC ({self.ballot(message.topic.made)}'s)"
                has = f"{message.topic.partitions} of {message.topic.all_partitions} partitions"
                return f"PUT-TOPIC ({'deleted' if message.topic.deleted else has})"
            case m.PutCluster():
                return f"PUT-CLUSTER ({self.value(message.layout)})"
            case m.PutGroup():
                return f"PUT-GROUP ({self.value(message.group)})"
            case m.PutReply():
                return f"PUT to round {message.round} of"
            case m.ReplicaListReply():
                open_ = ["not settled"] if message.open else []
                listed = ", ".join([*(self.record(item.record) for item in message.items), *open_])
                return (
                    f"LISTED ({listed or 'nothing'}{', and it has begun' if message.has_begun else ''}) for"
                )
        return SAID.get(type(message), type(message).__name__)

    def voted(self, reply: m.ProposalReply) -> str:
        """Return an acceptor's reply as text."""
        chosen, voted = reply.topic or reply.group or reply.cluster, reply.decision
        if chosen is not None:
            return f"CHOSEN ({self.value(chosen)})"
        if voted is None:
            return "CANNOT VOTE"
        accepted = (
            "nothing"
            if voted.value is None
            else f"{self.value(voted.value)} under {self.ballot(voted.ballot)}"
        )
        return f"VOTED (promised {self.ballot(voted.promised)}, accepted {accepted})"

    def value(self, value: Value | None) -> str:
        """Return a register that is proposed, chosen or written, as text."""
        assert value is not None
        if isinstance(value, Topic):
            return f"{self.ballot(value.made)}'s topic"
        if isinstance(value, Layout):
            return f"layout {value.number}: {', '.join(value.placements[0].nodes)}"
        if isinstance(value, ClusterLayout):
            members = [f"{it.node}{' ' + it.state.name if it.state else ''}" for it in value.members]
            return f"members {value.number}: {', '.join(members)}"
        start = "deleted" if value.deleted else f"latest, {value.latest.name}" if value.latest else "earliest"
        of = f" of {self.ballot(value.made)}" if value.made != STAMP_ZERO else ""
        return f"group {value.generation}{of}: {start}{', paused' if value.paused else ''}"

    def votes(self, reply: m.HoldReply) -> str:
        """Return a reply to a HOLD as text."""
        if reply.abstained:
            return "ABSTAIN"
        if reply.granted:
            return "OK"
        if reply.tombs:
            return f"TOMB {self.record(reply.tombs[0].record)}"
        if reply.not_due:
            return "NOT-DUE"
        if reply.refused:
            return f"NOK ({self.ballot(reply.refused[0].highest)} was granted)"
        return "nothing"

    def record(self, record: Record) -> str:
        """Return a record as text."""
        return f"{Kind(record.kind).name} n={record.n}"

    def released(self, released: tuple[m.Released, ...]) -> str:
        """Return the holds that a RELEASE or LEAVE gives back, as text."""
        return "RELEASE " + ", ".join(self.ballot(item.owner.ballot) for item in released)


def proposed(message: m.Accept) -> Value | None:
    """Return the value that an ACCEPT proposes."""
    return message.topic or message.group or message.layout or message.cluster
