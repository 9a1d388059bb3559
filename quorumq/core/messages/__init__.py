"""Everything that nodes say to each other, and clients to nodes.

Each message is a NamedTuple of plain values, nested NamedTuples and tuples of them; the wire encodes it as
[TYPE, *fields] (docs/wire-format.md), so a field may be appended with a default but never moved or removed, and a
TYPE is never used for anything else. A reader skips fields that it does not know.
"""

from __future__ import annotations

from typing import NamedTuple, Union, get_args

from quorumq.core.messages.client import *
from quorumq.core.messages.forwarded import *
from quorumq.core.messages.handshake import *
from quorumq.core.messages.quorum import *
from quorumq.core.messages.sync import *
from quorumq.core.types import Incarnation, NodeId

PeerMessage = Union[
    Store, Stored, Hold, HoldReply, Release, Released, Extend, Extended, Ack, Tombed, Reject, Rejected,
    Merge, Merged, PutTopic, PutGroup, Put, Prepare, Accept, Voted, PeekRequest, PeekReply, Survey, Surveyed,
    Heartbeat, SyncOffer, SyncState, SyncPull, SyncTopics, GroupsAsk, GroupsTold,
    RegistersAsk, RegistersTold, CloseAsk, CloseTold,
    RemoteFetch, RemoteFetched, RemoteGone,
    HoldsAsk, HoldsTold, ResyncAsk, ResyncTold, SurvivorsAsk, SurvivorsTold,
]  # fmt: skip

QuorumRequest = Union[Store, Hold, Extend, Ack, Reject, Merge, Survey, CloseAsk]
QuorumReply = Union[
    Stored, HoldReply, Extended, Tombed, Rejected, Merged, Surveyed, CloseTold, Put, PeekReply, RemoteFetched,
    RegistersTold, SurvivorsTold, Voted,
]  # fmt: skip

QUORUM_REQUESTS = get_args(QuorumRequest)
QUORUM_REPLIES = get_args(QuorumReply)


class Envelope(NamedTuple):
    """A peer message on its way: from and to which incarnation, and the sender's clock (a stamp's time)."""

    sender: NodeId
    incarnation: Incarnation
    to: NodeId
    to_incarnation: Incarnation
    stamp: int
    message: PeerMessage


ClientRequest = Union[
    Hello, OpenSession, CloseSession, CreateTopic, AlterTopic, DeleteTopic, Metadata, Publish, Fetch, AckRequest,
    RejectRequest, ExtendRequest, LeaveRequest, RedriveRequest, SetGroup, PurgeRequest, PeekAsk, DeclareSurvivors,
    StatusAsk,
]  # fmt: skip

ClientReply = Union[
    Welcome, SessionOpened, SessionClosed, TopicCreated, TopicAltered, TopicDeleted, MetadataReply, Published, Fetched,
    Verdicts, Left, GroupSet, Purged, PeekPage, SurvivorsDeclared, StatusReply, Failed,
]  # fmt: skip
