"""A node's questions to another one on behalf of a client: it has no replica of the partition itself."""

from __future__ import annotations

from typing import NamedTuple

from quorumq.core.messages.client import Fetch, PeekReply, PeekRequest, Slice
from quorumq.core.values.types import PartitionId


class ReplicaPeekRequest(NamedTuple):
    """PEEK one partition as this replica sees it; holds nothing."""

    round: int
    partition: PartitionId
    request: PeekRequest


class ReplicaPeekReply(NamedTuple):
    """One page of PEEK, or an error code."""

    round: int
    error: str
    page: PeekReply | None


class RemoteFetch(NamedTuple):
    """A node that is no replica of ``partitions`` asks one that is to serve this FETCH there (node to node)."""

    round: int
    partitions: tuple[PartitionId, ...]
    request: Fetch


class RemoteFetchReply(NamedTuple):
    """The answer to a RemoteFetch: won messages, or an error code. Sent like a reply to a client, with bodies."""

    round: int
    code: str
    detail: str
    slices: tuple[Slice, ...]
    suspects: bool = False  # as in FetchReply


class RemoteGone(NamedTuple):
    """The RemoteFetch of this round is not wanted any more: give back its messages."""

    round: int
