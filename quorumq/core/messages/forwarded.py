"""A node's questions to another one on behalf of a client: it has no replica of the partition itself."""

from __future__ import annotations

from typing import NamedTuple

from quorumq.core.messages.client import Fetch, Slice
from quorumq.core.messages.quorum import Peeked, StateCount
from quorumq.core.values.types import PartitionId


class ReplicaPeekRequest(NamedTuple):
    """PEEK one partition as this replica sees it; holds nothing."""

    round: int
    partition: PartitionId
    group: str
    which: str  # "ready" | "held" | "delayed" | "acked" | "dead" | "skipped" | "purged" | "open" | "all"
    cursor: tuple[int, int]  # (batch number, record) to go on from, this replica's own; (0, 0) for the start
    limit: int
    bodies: bool = False
    counted: bool = False  # as in PeekRequest; so are the next two
    since_ms: int = 0
    follow: bool = False


class ReplicaPeekReply(NamedTuple):
    """One page of PEEK; ``cursor`` is None at the end.

    ``slices`` are the messages' bytes, of as many of the first items as fit into `FETCH_BYTES_MAX`.
    """

    round: int
    items: tuple[Peeked, ...]
    cursor: tuple[int, int] | None
    error: str
    slices: tuple[Slice, ...] = ()
    counts: tuple[StateCount, ...] = ()


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
