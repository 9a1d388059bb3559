"""The messages of core/messages as frames, and back.

A frame's header is the CBOR array [TYPE, request, stamp, *fields]; values.py encodes the fields. The
table below gives each message its TYPE, for ever. A number is never reused, and a field never moved or
removed. If a field is new, it is appended with a default. docs/wire-format.md is the same for readers in
other languages, and a test compares the two.

Promise: `decode_message` returns a message if every field has its type and range. For any other bytes
in a frame it raises PeerError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, Union, cast

from quorumq.core import messages as m
from quorumq.core.values.errors import Busy, Code, PeerError, QuorumqError, Unanswered, error_from
from quorumq.core.values.limits import STAMPS_END, WORDS_END
from quorumq.wire import cbor
from quorumq.wire.bodies import Body, Lift
from quorumq.wire.bounds import TEXT_CHARS_MAX
from quorumq.wire.cbor import BadValue, bad
from quorumq.wire.frames import Frame, encode_frame
from quorumq.wire.receipts import open_items
from quorumq.wire.values import Decoders, Encoders, SignedNamed

TYPES: Final[Mapping[int, type]] = {
    # the first frames of a connection, and the answer to anything that failed
    1: m.Hello, 2: m.Welcome, 3: m.Failed, 4: m.Challenge, 5: m.Proof, 6: m.Admitted,
    # node to node
    10: m.Store, 11: m.StoreReply, 12: m.Hold, 13: m.HoldReply, 14: m.Release, 15: m.ReleaseReply,
    16: m.Extend, 17: m.ExtendReply, 18: m.Ack, 19: m.AckReply, 20: m.Reject, 21: m.RejectReply,
    22: m.Merge, 23: m.MergeReply, 24: m.PutTopic, 25: m.PutGroup, 26: m.PutReply, 27: m.ReplicaPeekRequest,
    28: m.ReplicaPeekReply,
    29: m.Heartbeat, 30: m.SyncDigests, 31: m.SyncState, 32: m.SyncPull, 33: m.SyncTopics,
    34: m.RemoteFetch, 35: m.RemoteFetchReply, 36: m.RemoteGone,
    37: m.SyncListed, 38: m.SyncRegisters,
    40: m.HoldsRequest, 41: m.HoldsReply, 42: m.ResyncRequest, 43: m.ResyncReply,
    44: m.Prepare, 45: m.Accept, 46: m.ProposalReply,
    50: m.ReplicaList, 51: m.ReplicaListReply, 52: m.GroupsRequest, 53: m.GroupsReply, 54: m.CloseRequest,
    55: m.CloseReply,
    56: m.RegistersRequest, 57: m.RegistersReply, 58: m.SurvivorsRequest, 59: m.SurvivorsReply,
    60: m.SlotRequest, 61: m.SlotReply, 62: m.SourceRequest, 63: m.SourceReply, 7: m.PutCluster,
    # client to node and back
    64: m.OpenSession, 65: m.OpenSessionReply, 66: m.CreateTopic, 67: m.TopicReply,
    68: m.Metadata, 69: m.MetadataReply, 70: m.Publish, 71: m.PublishReply, 72: m.Fetch, 73: m.FetchReply,
    74: m.AckRequest, 75: m.RejectRequest, 76: m.ExtendRequest, 77: m.ReleaseRequest, 78: m.RedriveRequest,
    79: m.SettleReply, 80: m.NotedReply, 81: m.PeekRequest, 82: m.PeekReply, 83: m.StatusRequest, 84: m.StatusReply,
    85: m.AlterTopic, 87: m.DeleteTopic,
    90: m.SetGroup, 91: m.GroupReply, 92: m.PurgeRequest, 93: m.PurgeReply,
    94: m.DeclareSurvivors, 95: m.DeclareSurvivorsReply, 96: m.DeleteGroup,
    98: m.CloseSession, 100: m.ShowRequest, 101: m.ShowReply,
    104: m.MovePartition,
    106: m.LabelsRequest, 107: m.LabelsReply, 108: m.PauseGroup,
    110: m.FindName, 111: m.FindNameReply, 118: m.DescribeGroups, 119: m.DescribeGroupsReply,
    112: m.ChangeMembers, 113: m.ChangeMembersReply, 120: m.LimitGroup,
}  # fmt: skip

TYPE_OF: Final[Mapping[type, int]] = {cls: number for number, cls in TYPES.items()}

Message = Union[m.PeerMessage, m.ClientRequest, m.ClientReply, m.Challenge, m.Proof]

_DECODERS: Final = Decoders(TYPES)
_ENCODERS: Final = Encoders(TYPE_OF)


class UnknownMessage(PeerError):
    """A well-formed frame of a TYPE that this side does not know: the other side is newer.

    The connection can be used on. If it is a request, a node answers with `Failed` (code "unknown-message").
    If it is none (``request`` is 0), the node skips it.
    """

    code = Code.UNKNOWN_MESSAGE

    def __init__(self, text: str, *, type: int = -1, request: int = 0) -> None:
        super().__init__(text)
        self.type = type
        self.request = request


class BadFields(PeerError):
    """A request of a known TYPE with a field that has another type, or is over a limit.

    Later frames can be read. A node answers it with `Failed` (code "usage"), which names field and value.
    """

    code = "bad-fields"

    def __init__(self, text: str, *, request: int = 0) -> None:
        super().__init__(text)
        self.request = request


class Decoded(NamedTuple):
    """One message as its frame has it.

    ``request`` is 0 between nodes (quorum requests carry rounds); from a client it is the client's number, which
    the reply repeats. ``stamp`` is the sender's hybrid logical clock; 0 from a client, which has none.
    """

    message: Message
    request: int
    stamp: int


def encode_message(
    message: Message,
    *,
    request: int = 0,
    stamp: int = 0,
    read: Callable[[m.Slice], bytes | memoryview] | None = None,
) -> list[bytes | memoryview]:
    """Return ``message`` as the chunks of one frame, for one join or sendmsg.

    Args:
        message: any message. Items of AckRequest and its like are `SignedNamed` (see `signed_items`);
            deliveries in `FetchReply` are signed (receipts.sign_fetched).
        request: the client's number of the request, in the request and in its reply; 0 between nodes.
        stamp: the sender's clock.
        read: function that returns the body bytes of a `Slice`: of its batch, from the end of record ``first - 1`` to
            the end of record ``stop - 1``. Needed if slices are this node's own. Its exceptions pass.

    Raises:
        TooLarge: the frame would be over a limit; nothing may be sent.
        Corrupt: ``read`` gave another number of bytes than the slice has.
    """
    kind = type(message)
    lift = Lift(read)
    header = _ENCODERS[kind](message, lift, request, stamp)
    return encode_frame(header, lift.bodies, kind.__name__)


def compile_all() -> Iterator[None]:
    """Compile the encoders and decoders that were not needed yet: one of them for each item.

    Why: when a node meets a message for the first time, as in a move of a partition, it would stop for up to 15 ms.
    """
    for number, kind in TYPES.items():
        for table, key in ((_ENCODERS, kind), (_DECODERS, number)):
            if key not in table:
                table[key]  # type: ignore[index]
                yield


def decode_message(frame: Frame) -> Decoded:
    """Return the message in ``frame``.

    `FetchReply` and `PeekReply` get `WireSlice` items, whose bodies are views of the frame;
    AckRequest and its like with `SignedNamed` items (`open_request` makes the core's of them); a `Batch` has had
    its body's CRC checked.

    Raises:
        UnknownMessage: a TYPE of a newer version; the connection can go on.
        BadFields: a request has fields that are not valid; the connection can go on.
        PeerError: the frame is wrong in another way; end the connection.
    """
    name, asked = "a frame header", 0
    try:
        data = cbor.load(frame.header)
        if type(data) is not tuple or len(data) < 3:
            bad("the frame header", data, "must be an array of TYPE, request, stamp and fields")
        number, request, stamp = data[:3]
        if type(number) is not int or not 0 <= number < WORDS_END:
            bad("TYPE", number, f"must be an integer from 0 to {WORDS_END - 1}")
        if type(request) is not int or not 0 <= request < WORDS_END:
            bad("request", request, f"must be an integer from 0 to {WORDS_END - 1}")
        if type(stamp) is not int or not 0 <= stamp < STAMPS_END:
            bad("stamp", stamp, f"must be an integer from 0 to {STAMPS_END - 1}")
        decode = _DECODERS[number]
        if decode is None:
            raise UnknownMessage(
                f"a message of TYPE {number}, which version {m.VERSIONS[1]} of the protocol does not have",
                type=number,
                request=request,
            )
        name, asked = TYPES[number].__name__, request
        body = Body(frame.body)
        message = decode(data[3:], body)
        if body.at != len(body.view):
            body.check_finished()
    except BadValue as exc:
        if asked:
            raise BadFields(f"{name}: {exc}", request=asked) from None
        raise PeerError(f"{name}: {exc}") from None
    return _new_decoded(Decoded, (message, request, stamp))


_new_decoded: Final[Callable[[type[Decoded], tuple[object, ...]], Decoded]] = tuple.__new__


def signed_items(items: Iterable[SignedNamed]) -> tuple[m.ReceiptPart, ...]:
    """Return ``items`` for the ``items`` field of AckRequest, RejectRequest, ExtendRequest or ReleaseRequest.

    The core's messages are typed for the node, which opens receipts; a client fills in the signed ones.
    """
    return cast("tuple[m.ReceiptPart, ...]", tuple(items))


def open_request(message: Message, *, keys: Mapping[int, bytes]) -> Message:
    """Return a client's request as the core takes it, with receipts opened. If it has none, it is returned unchanged.

    Raises:
        BadReceipt: a receipt does not verify; answer with it. Nothing was done.
    """
    if not isinstance(message, m.SETTLING):
        return message
    items = cast("Iterable[SignedNamed]", message.items)
    return cast("Message", cast("Any", message)._replace(items=open_items(items, keys=keys)))


def failed(error: QuorumqError) -> m.Failed:
    """Return ``error`` as the answer to a request."""
    if isinstance(error, Unanswered):
        return m.Failed(error.code, error.detail[:TEXT_CHARS_MAX], error.needed, error.answered)
    delay = error.delay if isinstance(error, Busy) else 0.0
    return m.Failed(error.code, str(error)[:TEXT_CHARS_MAX], delay=delay)


def error_of(reply: m.Failed) -> QuorumqError:
    """Return the exception that a node's `Failed` stands for: the inverse of `failed`."""
    return error_from(reply.code, reply.detail, reply.needed, reply.answered, reply.delay, reply.number)
