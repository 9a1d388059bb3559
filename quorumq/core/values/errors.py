"""Exceptions that quorumq raises on purpose, grouped by the side that should act.

QuorumqError
├── UsageError            the caller asked for something that can never work as asked
│   ├── NotFound              no such topic, group, node or partition
│   ├── TooLarge              over a limit; names the limit
│   ├── BadReceipt            made up, altered, or from another cluster
│   ├── Conflict              other bytes are stored under the same message id
│   ├── SessionClosed         the producer session is closed and the batch not stored; open another
│   ├── StaleGeneration       the group was rewound, or the setting changed, since
│   ├── AlreadySettled        the message's record is higher than the one asked for; carries it
│   ├── Unauthorized          not allowed here
│   │   └── UnknownToken          no client of the node has this token
│   ├── ClusterMismatch       another cluster id, node list or hold_time_max, or no common protocol version
│   └── Superseded            a newer start of the same node is known, or its directory is not the one known
├── PeerError             bytes on a connection that are not the protocol; hang up, keep serving
├── StorageError          the local disk failed or holds something unreadable; the node stops
└── Transient             it passes: the call may be repeated later, or the message is redelivered
    ├── HoldLost              the delivery is over: the message is redelivered, unless it was settled
    ├── Busy                  the client is beyond a quota: the error says when to ask again
    ├── StorageFull           the disk is full: publishes refused, ACK and FETCH go on
    ├── TooFewReplicas        trying again later, anywhere, makes sense
    │   └── NotStored             nothing was sent: a new attempt is a first attempt
    └── OutcomeUnknown        it may have happened: retry the same batch or receipts anywhere

All but OutcomeUnknown say that the request did nothing (docs/protocol.md, section 6).

``code`` is the name of an error on the wire, ``exit_code`` the exit status of the command line.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import ClassVar

from quorumq.core.values.printable import plural


class Code(StrEnum):
    """Name of an error on the wire: in `Failed`, in a `Verdict` and in the replies of replicas.

    A reader may meet a code of a newer version that is not here: fields that carry one are text.
    """

    USAGE = "usage"
    NOT_FOUND = "not-found"
    TOO_LARGE = "too-large"
    BAD_RECEIPT = "bad-receipt"
    CONFLICT = "conflict"
    SESSION_CLOSED = "session-closed"
    STALE_GENERATION = "stale-generation"
    ALREADY_SETTLED = "already-settled"
    UNAUTHORIZED = "unauthorized"
    UNKNOWN_TOKEN = "unknown-token"
    CLUSTER_MISMATCH = "cluster-mismatch"
    SUPERSEDED = "superseded"
    HOLD_LOST = "hold-lost"
    BUSY = "busy"
    STORAGE_FULL = "storage-full"
    TOO_FEW_REPLICAS = "too-few-replicas"
    NOT_STORED = "not-stored"
    OUTCOME_UNKNOWN = "outcome-unknown"
    UNKNOWN_MESSAGE = "unknown-message"
    """Error of a request of a TYPE that this node does not know."""
    UNKNOWN_TOPIC = "unknown-topic"
    """Error of a replica, for a coordinator: it has no such topic yet; the coordinator sends it and asks again."""
    WRONG_EPOCH = "wrong-epoch"
    """Error of a replica, for a coordinator: the topic has other replicas by now."""
    DELETED = "deleted"
    """Error of a replica, for a node that sends it a topic: a newer register has replaced it."""
    NOT_TRUSTED = "not-trusted"
    """Error of a node or replica that is not trusted, and so learns from the others: its answer is no vote."""


class QuorumqError(Exception):
    """Root of all errors that quorumq raises on purpose."""

    code: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 1


class UsageError(QuorumqError):
    """The caller asked for something that can never work as asked."""

    code: ClassVar[str] = Code.USAGE
    exit_code = 64


class NotFound(UsageError):
    """No such topic, group, node or partition."""

    code = Code.NOT_FOUND
    exit_code = 66


class TooLarge(UsageError):
    """Over a limit. The text names the value and the limit."""

    code = Code.TOO_LARGE


class BadReceipt(UsageError):
    """A receipt that this cluster did not give. Nothing was written."""

    code = Code.BAD_RECEIPT


class Conflict(UsageError):
    """Other bytes are stored under the same message id, or another topic under the same name."""

    code = Code.CONFLICT


class SessionClosed(UsageError):
    """The producer session was closed before the batch was stored: it is not, and cannot be any more."""

    code = Code.SESSION_CLOSED


class StaleGeneration(UsageError):
    """The group was rewound since, and the receipt's delivery is void; or the setting was changed since.

    Attributes:
        number: count of deletions, or of changes, that make a creation late; 0 for any other request.
    """

    code = Code.STALE_GENERATION

    def __init__(self, text: str = "", *, number: int = 0) -> None:
        super().__init__(text)
        self.number = number


class AlreadySettled(UsageError):
    """The message's record is higher than the one asked for."""

    code = Code.ALREADY_SETTLED


class Unauthorized(UsageError):
    """The client is not in the node's clients file, or lacks a right that the request needs; names it."""

    code = Code.UNAUTHORIZED
    exit_code = 77


class UnknownToken(Unauthorized):
    """No client of the node has the token of this connection. A gateway's token is not its users' fault."""

    code = Code.UNKNOWN_TOKEN


class ClusterMismatch(UsageError):
    """Another cluster id, node list or hold_time_max on the other side, or no common version of the protocol."""

    code = Code.CLUSTER_MISMATCH
    exit_code = 78


class Superseded(UsageError):
    """The node's id is known by a newer start, or by another data directory: it must not speak."""

    code = Code.SUPERSEDED
    exit_code = 78


class Transient(QuorumqError):
    """Nothing is wrong with the call, nor with the message: the call may be repeated later, or the message is
    redelivered. A loop over messages can catch this and go on; it loses nothing. But a publish that is
    repeated after `OutcomeUnknown` may make a second message.
    """

    code: ClassVar[str] = "transient"
    exit_code = 75


class HoldLost(Transient):
    """The delivery is over: its hold ran out or was given back, and another may have begun.

    Nothing is to be repeated: the message is redelivered, unless it was settled.
    """

    code = Code.HOLD_LOST
    exit_code = 65


class Busy(Transient):
    """The client asks for more than its quota. Nothing was done. Calls wait, and repeat by themselves.

    Args:
        detail: name of the exceeded quota, in words.
        delay: seconds after which to ask again.
    """

    code = Code.BUSY

    def __init__(self, detail: str = "", *, delay: float = 0.0) -> None:
        super().__init__(detail)
        self.delay = delay


class StorageFull(Transient):
    """The disks of nodes are full, or the memory that these may take: publishes are refused, ACK and FETCH go on.

    Rejecting is refused too, and acks once a disk has no room for them. Nothing was done; the text names the remedy.
    """

    code = Code.STORAGE_FULL


class PeerError(QuorumqError):
    """Bytes on a connection that are not the protocol. Hang up on it and keep serving the others."""

    code = "peer"
    exit_code = 76


class StorageError(QuorumqError):
    """The local disk failed, or holds something that cannot be read. The node stops."""

    code = "storage"
    exit_code = 74


class Unanswered(Exception):
    """The part that `TooFewReplicas` and `OutcomeUnknown` share: fewer replicas answered than the operation needs.

    Neither is the other: code must not separate "not stored" from "may be stored" by the order of clauses.

    Args:
        needed: number of answers that the operation needs.
        answered: number of answers received.
        detail: next step for the caller, in words.
        causes: reasons of missing answers, node by node, each once.
    """

    code: ClassVar[str]

    def __init__(
        self, detail: str = "", *, needed: int = 0, answered: int = 0, causes: Iterable[str] = ()
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.causes = tuple(dict.fromkeys(causes))
        self.needed = needed
        self.answered = answered

    def __str__(self) -> str:
        if not self.needed or (self.detail and self.answered >= self.needed):  # it failed for another reason
            return self.detail
        counts = f"needed {plural(self.needed, 'replica')}, {self.answered} answered"
        return f"{counts}; {self.detail}" if self.detail else counts


class TooFewReplicas(Unanswered, Transient):
    """Fewer replicas answered than the operation needs, and nothing was done."""

    code = Code.TOO_FEW_REPLICAS


class NotStored(TooFewReplicas):
    """Nothing was sent: it is safe to start over."""

    code = Code.NOT_STORED


class OutcomeUnknown(Unanswered, Transient):
    """It may have happened, as too few replicas answered. Retry the same batch, or the same receipts, through any node.

    Args: those of `TooFewReplicas`.
    """

    code = Code.OUTCOME_UNKNOWN


def error_classes() -> dict[str, type[QuorumqError]]:
    """Return every error of the tree above by its code on the wire.

    Why no others: subclasses of other modules, a caller's own included, come from no node.
    """
    classes: dict[str, type[QuorumqError]] = {}
    todo: list[type[QuorumqError]] = [QuorumqError]
    while todo:
        cls = todo.pop()
        assert cls.code not in classes, f"two errors with the code {cls.code}"
        classes[cls.code] = cls
        todo += [each for each in cls.__subclasses__() if each.__module__ == __name__]
    return classes


def error_from(
    code: str, text: str, needed: int = 0, answered: int = 0, delay: float = 0.0, number: int = 0
) -> QuorumqError:
    """Return the exception for a node's answer; the root for a code that this side does not know."""
    cls = error_classes().get(code, QuorumqError)
    if issubclass(cls, Unanswered):
        return cls(text, needed=needed, answered=answered)
    if issubclass(cls, Busy):
        return cls(text, delay=delay)
    if issubclass(cls, StaleGeneration):
        return cls(text, number=number)
    return cls(text)


def utf8(text: str, noun: str) -> bytes:
    """Return ``text`` as UTF-8; UsageError, about ``noun``, for a lone surrogate, as the name of a file may have."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        detail = f"{noun} {text[:80]!r}: its character {error.start} is a lone surrogate, which UTF-8 does not have"
        raise UsageError(detail) from None
