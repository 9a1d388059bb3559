"""One connection's side of the protocol, without a socket.

Every front of the client needs the same four things: a HELLO that is
accepted before anything else, a number for each request, the reply that belongs to a number, and an end
when the other side does not speak the protocol. They are here once. `receive` takes bytes, `hello` and `request`
return bytes to be sent; nothing here waits, sends or looks at a clock.

Promise: each request's number is given out once, and `receive` gives at most one reply for it, of the type
that answers such a request or `Failed`. Anything else is a PeerError, after which the connection is of no use.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from quorumq.core import messages as m
from quorumq.core.messages.handshake import RELEASE
from quorumq.core.values.errors import PeerError, TooLarge, UsageError
from quorumq.wire.codec import UnknownMessage, decode_message, encode_message, error_of
from quorumq.wire.frames import FrameReader
from quorumq.wire.hello import client_hello

SOFTWARE: Final = f"quorumq-client {RELEASE}"

ANSWERS: Final[Mapping[type, type]] = {
    m.Hello: m.Welcome,
    m.OpenSession: m.OpenSessionReply,
    **dict.fromkeys((m.CreateTopic, m.AlterTopic, m.DeleteTopic, m.MovePartition), m.TopicReply),
    **dict.fromkeys((m.SetGroup, m.DeleteGroup, m.PauseGroup, m.LimitGroup), m.GroupReply),
    **dict.fromkeys((m.AckRequest, m.RejectRequest, m.ExtendRequest, m.RedriveRequest), m.SettleReply),
    **dict.fromkeys((m.ReleaseRequest, m.CloseSession), m.NotedReply),
    m.ChangeMembers: m.ChangeMembersReply,
    m.LabelsRequest: m.LabelsReply,
    m.Metadata: m.MetadataReply,
    m.Publish: m.PublishReply,
    m.FindName: m.FindNameReply,
    m.Fetch: m.FetchReply,
    m.PurgeRequest: m.PurgeReply,
    m.PeekRequest: m.PeekReply,
    m.ShowRequest: m.ShowReply,
    m.DeclareSurvivors: m.DeclareSurvivorsReply,
    m.DescribeGroups: m.DescribeGroupsReply,
    m.StatusRequest: m.StatusReply,
}
"""Reply types by request type; any request may be answered by `Failed`."""


class Answer(NamedTuple):
    """A reply, and the number of the request that it answers."""

    request: int
    reply: m.ClientReply


@dataclass(eq=False)
class ClientProtocol:
    """The client's side of one connection.

    Send the bytes of `hello`, then feed `receive` until `welcome` is there; from then on send those of `request`, in
    that order, and feed `receive`.
    """

    cluster_id: str = ""  # the cluster that must answer; "" takes any
    token: str = field(default="", repr=False)  # shows the client's identity; "" if nodes do not ask
    on_behalf: str = ""  # name of the client for which a gateway asks; "" for the client itself
    welcome: m.Welcome | None = None  # the node's answer to HELLO, once received
    _reader: FrameReader = field(default_factory=FrameReader)
    _count: int = 0
    _awaited: dict[int, type] = field(default_factory=dict)  # request number -> type of its reply

    def hello(self, wall_ms: int) -> bytes:
        """Return the first bytes of the connection. A node warns if ``wall_ms``, ms since 1970, is far off."""
        assert self._count == 0, "HELLO is the first frame of a connection"
        who = {"token": self.token, "on_behalf": self.on_behalf}
        hello = client_hello(SOFTWARE, wall_ms, cluster_id=self.cluster_id, **who)
        return b"".join(self.request(hello)[1])

    def request(self, message: m.ClientRequest) -> tuple[int, list[bytes | memoryview]]:
        """Give a request its number.

        Returns:
            its number, and its frame in chunks, to be sent as they are.

        Raises:
            TooLarge: the frame would be over a limit. No number was used up.
            UsageError: a value in it cannot be written: an integer of more than 64 bits, text that is not Unicode, a
                fraction in place of a count. Names the field, its value, and the allowed ones.
        """
        number = self._count + 1
        try:
            chunks = encode_message(message, request=number)
        except TooLarge:
            raise
        except Exception as exc:  # an encoder does not look at types
            from quorumq.wire.misfits import misfits  # rarely needed

            said = next(misfits(message), str(exc))
            raise UsageError(f"{type(message).__name__} cannot be sent: {said}") from exc
        self._count = number
        self._awaited[number] = ANSWERS[type(message)]
        return number, chunks

    def withdraw(self, number: int) -> None:
        """Withdraw request ``number``, which was certainly never sent: no reply will arrive."""
        self._awaited.pop(number, None)

    @property
    def missing_bytes(self) -> int:
        """Bytes that the incomplete reply still lacks; 0 if there is none."""
        return self._reader.missing_bytes

    def receive(self, data: bytes | bytearray | memoryview) -> list[Answer]:
        """Take in bytes from the node; the replies that are complete now, in the order in which they arrived.

        The answer to HELLO is not among them: see `welcome`. METADATA of request 0 comes unasked.

        Raises:
            PeerError: these bytes are not the protocol, or answer no request. Hang up.
            QuorumqError: the node refused HELLO; says why (`ClusterMismatch`, `Unauthorized`, …). Hang up.
        """
        self._reader.feed(data)
        answers: list[Answer] = []
        for frame in self._reader:
            reply: object
            try:
                reply, number, _ = decode_message(frame)
            except UnknownMessage as exc:
                reply, number = m.Failed(exc.code, str(exc)), exc.request
            if number == 0:  # not an answer: else a newer node says something that this client has no use for
                answers += [Answer(0, reply)] if isinstance(reply, m.MetadataReply) else []
                continue
            expected = self._awaited.pop(number, None)
            if expected is None:
                raise PeerError(f"the node answered request {number}, which is not waiting for an answer")
            if isinstance(reply, m.Failed) and expected is m.Welcome:
                raise error_of(reply)
            if not isinstance(reply, expected | m.Failed):
                raise PeerError(
                    f"the node answered request {number} with {type(reply).__name__}, not {expected.__name__}"
                )
            if isinstance(reply, m.Welcome):
                lowest, highest = m.VERSIONS
                if not lowest <= reply.version <= highest:
                    offered = f"{lowest} to {highest} were offered"
                    raise PeerError(f"the node answered HELLO in version {reply.version}; {offered}")
                self.welcome = reply
            else:
                answers.append(Answer(number, reply))  # type: ignore[arg-type]
        return answers

    def close(self) -> None:
        """Note that the node has closed its side; PeerError in the middle of a frame."""
        self._reader.close()
