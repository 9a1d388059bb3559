"""Everything that nodes say to each other, and clients to nodes.

Each message is a NamedTuple of plain values, nested NamedTuples and tuples of them; the wire encodes it as
[TYPE, *fields] (docs/wire-format.md), so a field may be appended with a default but never moved or removed, and a
TYPE is never used for anything else. A reader skips fields that it does not know.
"""

from __future__ import annotations

from typing import NamedTuple, Union, get_args

from quorumq.core.messages.client import *
from quorumq.core.messages.forwarded import *
from quorumq.core.messages.groups import *
from quorumq.core.messages.handshake import *
from quorumq.core.messages.layouts import *
from quorumq.core.messages.quorum import *
from quorumq.core.messages.sync import *
from quorumq.core.values.types import Incarnation, NodeId

PeerMessage = Union[
    Store, StoreReply, Hold, HoldReply, Release, ReleaseReply, Extend, ExtendReply, Ack, AckReply, Reject, RejectReply,
    Merge, MergeReply, PutTopic, PutGroup, PutCluster, PutReply, Prepare, Accept, ProposalReply,
    ReplicaPeekRequest, ReplicaPeekReply, ReplicaList, ReplicaListReply,
    Heartbeat, SyncDigests, SyncListed, SyncState, SyncPull, SyncRegisters, SyncTopics, GroupsRequest, GroupsReply,
    RegistersRequest, RegistersReply, CloseRequest, CloseReply,
    RemoteFetch, RemoteFetchReply, RemoteGone,
    HoldsRequest, HoldsReply, ResyncRequest, ResyncReply, SurvivorsRequest, SurvivorsReply,
    SlotRequest, SlotReply, SourceRequest, SourceReply,
]  # fmt: skip

QuorumRequest = Union[Store, Hold, Extend, Ack, Reject, Merge, ReplicaList, CloseRequest, SlotRequest]
QuorumReply = Union[
    StoreReply, HoldReply, ExtendReply, AckReply, RejectReply, MergeReply, ReplicaListReply, CloseReply,
    PutReply, ReplicaPeekReply,
    RemoteFetchReply, RegistersReply, SurvivorsReply, ProposalReply, SlotReply,
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
    Hello, OpenSession, CloseSession, CreateTopic, AlterTopic, MovePartition, DeleteTopic, Metadata, Publish, Fetch,
    AckRequest, RejectRequest, ExtendRequest, ReleaseRequest, RedriveRequest, SetGroup, DeleteGroup, PurgeRequest,
    PeekRequest, ShowRequest, DeclareSurvivors, StatusRequest, LabelsRequest, PauseGroup, FindName,
    DescribeGroups, ChangeMembers, LimitGroup,
]  # fmt: skip

SETTLING = (AckRequest, RejectRequest, ExtendRequest, ReleaseRequest)
"""Requests that name messages by receipts, each with its own verdict."""

ClientReply = Union[
    Welcome, OpenSessionReply, NotedReply, TopicReply, GroupReply, MetadataReply, PublishReply, FetchReply,
    SettleReply, PurgeReply, PeekReply, ShowReply, DescribeGroupsReply, DeclareSurvivorsReply,
    StatusReply, LabelsReply, FindNameReply, ChangeMembersReply, Admitted, Failed,
]  # fmt: skip
