"""Inbound connections: clients and peers, on one port or each on their own.

The first frame is HELLO, from a stranger: small, and within a few seconds. From then on a connection is a
client's or a peer's. If bytes are outside the protocol, they end that connection, with one line in the log, and
concern no other.

Bounds, per connection: the number of requests under way, and their bytes. If either is reached, nothing more is read
until something is answered. A request counts until its reply is in the socket or in front of it. Replies wait as
values. They are encoded, and their bodies read, only when everything before them has left. So if a client asks and
never reads, it costs its requests, one encoded reply, and the buffer of the kernel.

A FETCH's reply was checked against its deadline in the step that made it. If it has to wait for the client to
read, it is not sent late: it is given back (`Unsent`), and the client gets an error that says to ask again.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import InitVar, dataclass, field
from functools import partial
from typing import Final, get_args

import trio

from quorumq.core import messages as m
from quorumq.core.messages.effects import Event, Gone, Raised, Received, Request, Unsent
from quorumq.core.requests.publish import producer_ids_begun
from quorumq.core.values.errors import (
    BadReceipt,
    Busy,
    Code,
    NotFound,
    PeerError,
    StorageError,
    TooLarge,
    Unauthorized,
)
from quorumq.core.values.fairqueue import Caller
from quorumq.core.values.limits import INFLIGHT_REQUESTS_MAX, KIB, MIB
from quorumq.core.values.types import NodeId
from quorumq.node.admission import OPERATOR_SLOTS, ListensFor, admitted, is_operator, wrong_listener
from quorumq.node.clients import Credentials
from quorumq.node.inflow import Inflow
from quorumq.node.intake import foreign_bytes, stale_after, weight_of
from quorumq.node.node import EXIT_STORAGE, Node
from quorumq.node.quotas import UNREFUSED
from quorumq.node.shares import SPANS, price
from quorumq.node.transport import ConnectionLost, Outflow, Transport
from quorumq.storage.damage import DamagedBatch
from quorumq.wire.cbor import BadValue
from quorumq.wire.codec import BadFields, UnknownMessage, decode_message, encode_message, failed
from quorumq.wire.frames import Frame
from quorumq.wire.proofs import DIALLER, LISTENER, Handshake, fresh_nonce
from quorumq.wire.receipts import sign_fetched, sign_session
from quorumq.wire.requests import check_header, oversize
from quorumq.wire.rights import Client, public, visible

INFLIGHT_BYTES_MAX: Final = 8 * MIB
"""Most bytes of requests of one connection that are under way; one request is always let in."""

FLUSH_BYTES: Final = 256 * KIB
"""Encoded replies of one step are sent together up to this size."""

CLIENT_REQUESTS: Final = frozenset(set(get_args(m.ClientRequest)) - {m.Hello})
PEER_MESSAGES: Final = frozenset(get_args(m.PeerMessage))
Counted = m.Fetch | m.AckRequest | m.RejectRequest | m.ShowRequest
"""Requests that are needed for their answers: of most the node keeps count (readers.py)."""

HAS_NAMES: Final = (m.MetadataReply, m.ShowReply, m.Failed)
"""Answers that may contain names hidden from some clients (wire/rights.py, `visible`)."""

HINT_COST: Final = 16
"""Cost of looking for the name that was meant, in small requests (shares.py)."""

# Without a call for each.
_new_envelope: Final[Callable[[type[m.Envelope], tuple[object, ...]], m.Envelope]] = tuple.__new__
_new_received: Final[Callable[[type[Received], tuple[m.Envelope]], Received]] = tuple.__new__


@dataclass(eq=False)
class Inbound:
    """One accepted connection, from its first byte to its last."""

    node: Node
    transport: Transport  # connected
    address: str  # address of the other side, for the log
    nursery: InitVar[trio.Nursery]  # for sending what the transport does not take at once
    peers: dict[NodeId, Inbound]  # the inbound connection of each peer, so that a newer one replaces an older
    clients: Counter[str]  # how many of them each address has
    listens_for: ListensFor = "all"  # kind of the address that it was made to
    hello: m.Hello | None = None
    software: str = ""
    is_client: bool = False
    credentials: Credentials | None = None  # credentials of a client, if the node asks for them
    closed: bool = False
    _welcomed: bool = False
    whose: str = ""  # name or address of the client
    _caller: Caller = 0  # the client, for the core: by name or address, and the key of its HELLO
    _producer: tuple[str, str] = ("", "")  # the client, for the comparison of clocks
    _open: dict[int, tuple[int, int, Counted | None]] = field(default_factory=dict)
    """By key: the client's number, the weight, and the request if it is a FETCH, ACK or REJECT."""
    _weight: int = 0
    _queue: deque[tuple[int, m.ClientReply, float]] = field(default_factory=deque)  # (key, reply, since when)
    _answering: dict[int, tuple[int, m.FetchReply]] = field(default_factory=dict)
    """By key, offsets in the stream at which encoded FETCH replies begin."""
    _queued_bytes: int = 0
    _changed: trio.Event = field(default_factory=trio.Event)
    _resting: trio.Event = field(default_factory=trio.Event)  # ends its wait for a share

    def __post_init__(self, nursery: trio.Nursery) -> None:
        node, timeout = self.node, self.node.config.stall_timeout
        self.host = self.address.rpartition(":")[0]
        self.name = self.address  # name for the log
        self._in = Inflow(node.turns, node.intake, self.transport, self, timeout)
        self._out = Outflow(self.transport, nursery, timeout, node.driver, self._on_lost, self._on_drained)

    # -------------------------------------------------------------------------- life

    async def run(self) -> None:
        """Read until the other side is gone, breaks the protocol, or the node hangs up."""
        config = self.node.config
        try:
            with trio.move_on_after(config.hello_timeout) as waiting:
                welcome = await self._handshake()
            if waiting.cancelled_caught:
                raise PeerError(f"no HELLO within {config.hello_timeout:g} s")
            if not welcome:
                return
            assert self.hello is not None
            if self.is_client:
                await self._in.serve(self.node.feed, self._take_requests)
            else:
                await self._serve_peer(self.hello)
        except ConnectionLost as lost:
            self.node.log.debug("connection_lost", client=self.name, reason=str(lost))
        except PeerError as error:
            self.give_up(str(error))
        except Exception:  # one connection's trouble stays its own
            self.node.log.error("connection_bug", client=self.name, exc_info=True)
        finally:
            self.close()

    def close(self) -> None:
        """Hang up. Open requests are given up; replies that were never begun are given back."""
        if self.closed:
            return
        self.closed = True
        node = self.node
        node.shown.pop(id(self), None)
        self._out.drop()
        self._in.release()
        self.transport.close()
        if self.hello is not None and self.peers.get(self.hello.node) is self:
            del self.peers[self.hello.node]
        if self.is_client:
            node.health.clients -= 1
            self.clients[self.host] -= 1
            if not self.clients[self.host]:
                del self.clients[self.host]
        never_begun = {key: reply for key, reply, _ in self._queue if isinstance(reply, m.FetchReply)}
        never_begun |= {
            key: reply for key, (begins, reply) in self._answering.items() if begins >= self._out.sent
        }
        for reply in never_begun.values():
            node.trace.given_back(reply, "the client is gone")
        queued = {key for key, _, _ in self._queue}
        self._queue.clear()
        events: list[Event] = [Unsent(key) for key in never_begun]
        for key in self._open:
            if node.callers.pop(key, None) is not None and key not in queued:
                events.append(Gone(key))
        self._open.clear()
        node.intake.take(-self._weight)
        node.intake.begun(self, 0)
        self._weight = 0
        self._changed.set()
        self._resting.set()
        if events:
            node.feed(*events)

    def give_up(self, reason: str) -> None:
        """Hang up, and say why in the log."""
        if not self.closed:
            self.node.health.count("connections_broken")
            self.node.log.warning("connection_broken", client=self.name, reason=reason)
            self.close()

    def _on_lost(self, reason: str) -> None:
        if not self.closed:
            self.node.log.debug("connection_lost", client=self.name, reason=reason)
            self.close()

    # --------------------------------------------------------------------- handshake

    async def _handshake(self) -> bool:
        """Take HELLO and answer it. Return True if it was accepted."""
        frame = await self._in.next_frame()
        decoded = decode_message(frame)
        hello = decoded.message
        if not isinstance(hello, m.Hello):
            raise PeerError(f"the first message was {type(hello).__name__}, not Hello")
        self.hello = hello
        self.software = hello.software
        self.name = f"{hello.node or hello.software or 'client'} at {self.address}"
        if wrong := wrong_listener(self.node.config, self.listens_for, hello):
            code = Code.UNKNOWN_TOKEN if hello.on_behalf else Code.UNAUTHORIZED
            return await self._turn_away(decoded.request, code, wrong)
        if hello.node and self.node.config.tls_ca and hello.node not in self.transport.names:
            shown = ", ".join(sorted(self.transport.names)) or "nobody"
            detail = f"{self.name} shows the certificate of {shown}: a node's has its id as a DNS name"
            return await self._turn_away(decoded.request, Code.UNAUTHORIZED, detail)
        if hello.node and not await self._prove(frame, decoded.request):
            return False
        if not hello.node and self.node.clients is not None:
            self.credentials = Credentials(
                self.node.clients, hello.token, lambda: self.node.clock().mono, hello.on_behalf
            )
            self.node.shown[id(self)] = self  # also while the core has not answered its HELLO
        if self.credentials is not None and (unknown := self.credentials.problem()):
            return await self._turn_away(decoded.request, unknown.code, str(unknown))
        if not hello.node and (crowd := self._crowd()):
            self.node.log.warning("connections_max", reason=crowd, client=self.name)
            detail = f"node {self.node.config.node} has {crowd}: ask another node"
            return await self._turn_away(decoded.request, Code.NOT_STORED, detail)
        if self.credentials is not None:
            self.name = f"{self.credentials.who} at {self.address}"
        key = self._admit(decoded.request, 0)
        client = self.credentials.client.name if self.credentials is not None else ""
        self.whose = client or self.host
        self._caller = (self.whose, key)
        self._producer = (client or self.software, self.host)
        self.node.feed(Request(key, hello))
        while key in self._open:
            await self._wait_for_change()
        if self.closed:
            raise ConnectionLost("closed")
        if not self._welcomed:
            await self._finish_sending()
            return False
        self._in.reader.open_up()
        if not hello.node:
            self.node.shares.spend(self.whose, 1)
            self.is_client = True
            self.node.health.clients += 1
            self.clients[self.host] += 1
        return True

    async def _turn_away(self, request: int, code: str, detail: str) -> bool:
        """Say why HELLO is not accepted, and wait until that has left. Returns False."""
        self.put(encode_message(m.Failed(code, detail), request=request))
        if code in (Code.UNAUTHORIZED, Code.UNKNOWN_TOKEN):
            who = {"peer": self.name} if self.hello and self.hello.node else {"client": self.name}
            self.node.log.warning(f"{next(iter(who))}_refused", reason=detail, **who)
        await self._finish_sending()
        return False

    def clients_changed(self) -> None:
        """Hang up if the client has lost the right to be here, or to the answer that it waits for."""
        if self.credentials is None:
            return
        waits = [request for _, _, request in self._open.values() if isinstance(request, m.Fetch)]
        try:
            for request in (m.Metadata(), *waits):
                self.credentials.allow(request, self.node.core.catalogue)
        except Unauthorized as error:
            self.give_up(str(error))

    def _crowd(self) -> str:
        """Return the kind of clients that has no room for one more, with its limit; "" if there is room."""
        config = self.node.config
        most = config.connections_max
        if is_operator(self.credentials, self.software):
            return "" if self.node.health.clients < most + OPERATOR_SLOTS else f"{most} clients and operators"
        if self.node.health.clients >= most:
            return f"{config.connections_max} clients, its connections_max"
        if self.clients[self.host] >= config.connections_per_address:
            return f"{config.connections_per_address} clients from {self.host}, its connections_per_address"
        return ""

    @property
    def is_stranger(self) -> bool:
        """True if it has not yet shown its identity."""
        return not (self._welcomed or self.closed)

    async def _prove(self, hello: Frame, request: int) -> bool:
        """Have the node that dialled show that it knows the cluster's secret, and show it in return.

        The core gets a HELLO only then, because it adopts the contents.
        """
        node = self.node
        challenge = fresh_nonce()
        self.put(encode_message(m.Challenge(challenge, node.config.node)))
        self._out.flush()
        answer = decode_message(await self._in.next_frame()).message
        if not isinstance(answer, m.Proof):
            raise PeerError(f"the answer to Challenge was {type(answer).__name__}, not Proof")
        said = Handshake(bytes(hello.header), node.config.node, challenge, answer.nonce)
        secret = said.proven(answer.digest, node.keys.values(), DIALLER)
        if secret is None:
            detail = f"{self.name} does not know the secret of node {node.config.node}: give all nodes the same one"
            return await self._turn_away(request, Code.UNAUTHORIZED, detail)
        self.put(encode_message(m.Proof(answer.nonce, said.prove(secret, LISTENER))))
        return True

    async def _finish_sending(self) -> None:
        """Wait until a last reply has left, so that it is read before the connection ends."""
        self._out.flush()
        while self._out.waiting and not self.closed:
            await self._wait_for_change()

    # ------------------------------------------------------------------------- peers

    async def _serve_peer(self, hello: m.Hello) -> None:
        """Take a peer's messages, until it is gone. Ours to it go over our own link."""
        node = self.node
        older = self.peers.get(hello.node)
        self.peers[hello.node] = self
        if older is not None:
            older.close()
        node.peer_dialled(hello.node)
        node.log.debug(
            "peer_connected", peer=hello.node, incarnation=hello.incarnation.n, address=self.address
        )
        await self._in.serve(node.feed, lambda events: self._take_words(hello, events))

    def _take_words(self, peer: m.Hello, events: list[Event]) -> bool:
        """Take the complete frames of a peer, as events. Returns True: none of them has to wait."""
        node = self.node
        me, mine = node.config.node, node.core.state.incarnation
        reader, sender, theirs = self._in.reader, peer.node, peer.incarnation
        while (frame := reader.next_frame()) is not None:
            try:
                message, _, stamp = decode_message(frame)
            except UnknownMessage as error:
                node.log.warning("unknown_message", peer=peer.node, reason=str(error))
                continue
            if type(message) not in PEER_MESSAGES:
                raise PeerError(f"a node sent {type(message).__name__}, which nodes do not send each other")
            envelope = _new_envelope(m.Envelope, (sender, theirs, me, mine, stamp, message))
            events.append(_new_received(Received, (envelope,)))
        return True

    # ----------------------------------------------------------------------- clients

    def _take_requests(self, events: list[Event]) -> bool:
        """Take the complete frames of a client, as events. Return False if some have to wait."""
        intake, shares, reader = self.node.intake, self.node.shares, self._in.reader
        while not self.closed:
            if shares.is_spent(self.whose):
                return not reader.pending_bytes
            if (frame := reader.next_frame()) is None:
                break
            shares.spend(self.whose, price(len(frame.header), len(frame.body)))
            if (event := self._take(frame)) is not None:
                events.append(event)
            if self._full or intake.pressed or intake.paused:
                return False
        return True

    def may_read(self) -> bool:
        """Return True if it is this client's turn. A peer's words are read in every turn."""
        shares = self.node.shares
        return not (self.is_client and (self.whose in shares.lines or shares.is_spent(self.whose)))

    async def rest(self) -> None:
        """Wait until there is room for requests."""
        while self._full and not self.closed:
            await self._wait_for_change()
        await self.node.intake.wait()
        if not self.may_read() and not self.closed:
            self._resting = trio.Event()
            await self.node.shares.wait(self.whose, self._resting)

    @property
    def _full(self) -> bool:
        return len(self._open) >= INFLIGHT_REQUESTS_MAX or self._weight >= INFLIGHT_BYTES_MAX

    async def _wait_for_change(self) -> None:
        self._changed = trio.Event()
        await self._changed.wait()

    def _take(self, frame: Frame) -> Event | None:
        """Take one request; return the event for the core, or None if it was answered here."""
        number, size = 0, len(frame.header) + len(frame.body)
        check_header(frame.header)
        try:
            message, number, _ = decode_message(frame)
            if type(message) not in CLIENT_REQUESTS:
                self._note_broken(size)
                refusal = m.Failed(Code.USAGE, f"{type(message).__name__} is not a request of clients")
                self._answer(number, refusal)
                return None
            core = self.node.core
            new_producer_ids = partial(producer_ids_begun, core.replicas)
            request = admitted(
                message, size, self.node.keys, self.credentials, core.catalogue, new_producer_ids
            )
        except UnknownMessage as error:
            self._note_broken(size)
            if error.request:
                self._answer(error.request, failed(error))
            return None
        except Busy as error:
            self._hold_back(error)
            self._answer(number, failed(error))
            return None
        except (BadReceipt, NotFound, TooLarge, Unauthorized) as error:
            self.node.changes.refused(message, self, error.code)
            if (
                self.credentials is not None
                and isinstance(message, UNREFUSED)
                and not self.credentials.problem()
            ):
                self.credentials.usage.forged = True
            self._answer(number, failed(error))
            return None
        except BadFields as error:
            self._note_broken(size)
            self._answer(error.request, oversize(frame) or m.Failed(Code.USAGE, str(error)))
            return None
        if self.node.trace.on and isinstance(request, m.ReleaseRequest | m.RejectRequest):
            self.node.trace.give_up(request, self.node.core.catalogue.topics)
        weight = weight_of(request, size)
        counted = request if isinstance(request, Counted) else None
        key = self._admit(number, weight, counted)
        if isinstance(counted, m.Fetch):
            self.node.readers.fetching(counted, self.software, self.host, self.node.clock().mono)
        elif isinstance(request, m.Publish):
            now, header = self.node.clock(), request.batch.header
            self.node.shares.spend(self.whose, len(header.spans) // SPANS)
            ahead_ms = header.published_ms - (now.wall_ms - request.age_ms)
            self.node.producer_clocks.published(self._producer, ahead_ms, now.mono)
        return Request(key, request, self._caller)

    def _admit(self, number: int, weight: int, counted: Counted | None = None) -> int:
        key = self.node.key()
        self.node.callers[key] = self
        self._open[key] = (number, weight, counted)
        self._weight += weight
        self.node.intake.take(weight)
        return key

    def _note_broken(self, size: int) -> None:
        if self.credentials is not None and not self.credentials.problem():
            self.credentials.usage.note_broken(size, self.node.clock().mono)

    def _hold_back(self, error: Busy) -> None:
        """Hold back a request beyond the client's quota."""
        assert self.credentials is not None
        self.node.health.count("requests_beyond_quota")
        if not self.credentials.usage.held_back:
            self.credentials.usage.held_back = True
            self.node.log.warning("client_held_back", client=self.name, reason=str(error))

    def _answer(self, number: int, refusal: m.Failed) -> None:
        """Answer a request that never reached the core, in its turn."""
        key = self._admit(number, KIB)
        self.node.callers.pop(key).reply(key, refusal)

    # ----------------------------------------------------------------------- replies

    def reply(self, key: int, reply: m.ClientReply) -> None:
        """Encode the reply now, or queue it if earlier ones wait for the client to read."""
        if self._out.draining:
            size = foreign_bytes(reply)
            if self._queued_bytes + size > INFLIGHT_BYTES_MAX:
                if isinstance(reply, m.FetchReply):
                    reply, size = self._too_late(key, reply), 0
                elif isinstance(reply, m.PeekReply):
                    reply, size = reply._replace(slices=()), 0
            self._queued_bytes += size
            self._queue.append((key, reply, self.node.clock().mono))
            return
        self._encode(key, reply)
        self.node.dirty(self)

    def flush(self) -> None:
        self._out.flush()
        if not self._out.waiting:
            self._answering.clear()

    def _encode(self, key: int, reply: m.ClientReply) -> None:
        number, weight, counted = self._open.pop(key)
        if isinstance(reply, m.Welcome):
            self._welcomed = True
        try:
            reply = public(reply)
            if isinstance(reply, HAS_NAMES):
                reply = self._visible(reply, counted)
            if isinstance(reply, m.OpenSessionReply):
                node = self.node
                signature = sign_session(reply.producer_id, secret=node.secret, key=node.secret_number)
                chunks = encode_message(reply._replace(signature=signature), request=number)
            elif isinstance(reply, m.FetchReply) and reply.slices:
                chunks = self._encode_fetched(key, number, reply)
                if isinstance(counted, m.Fetch):
                    now = self.node.clock().mono
                    self.node.readers.delivered(counted, reply, self.software, self.host, now)
            else:
                chunks = encode_message(reply, request=number, read=self.node.read_slice)
                if isinstance(counted, m.AckRequest | m.RejectRequest) and isinstance(reply, m.SettleReply):
                    self.node.readers.settled(counted, reply, self.node.clock().mono)
        except DamagedBatch as error:
            self.node.damaged(error.number, error)
            detail = f"node {self.node.config.node} has a damaged copy of a batch: ask another node"
            chunks = self._refuse(key, number, reply, m.Failed(Code.TOO_FEW_REPLICAS, detail, 1, 0))
        except KeyError:  # forgotten since the core answered: its topic was deleted, or its group rewound
            detail = "a batch of this answer was dropped while it waited to be sent: ask again"
            chunks = self._refuse(key, number, reply, m.Failed(Code.TOO_FEW_REPLICAS, detail, 1, 0))
        except (TooLarge, BadValue) as error:
            refusal = m.Failed(Code.TOO_LARGE, f"the answer cannot be sent: {error}; ask for less at once")
            chunks = self._refuse(key, number, reply, refusal)
        except StorageError as error:
            self.node.fail(EXIT_STORAGE, str(error))
            return
        except Exception as error:
            self.node.raised(Raised(type(reply).__name__, error))
            detail = f"it was done, but a bug keeps node {self.node.config.node} from saying what came of it"
            chunks = self._refuse(key, number, reply, m.Failed(Code.OUTCOME_UNKNOWN, detail))
        self.node.shares.answered(self.whose, size := sum(map(len, chunks)))
        if self.credentials is not None and not self.credentials.problem():
            self.credentials.usage.answered(reply, size, self.node.clock().mono)
        # Before it is sent: if that ends the connection, `close` takes back the rest.
        self._weight -= weight
        self.node.intake.take(-weight)
        self.put(chunks)
        self._changed.set()

    def _visible(self, reply: m.ClientReply, asked: Counted | None) -> m.ClientReply:
        """Return the reply with nothing but the names that this client may see."""
        if isinstance(reply, m.Failed) and reply.topic:
            self.node.shares.spend(self.whose, HINT_COST)
        client = None
        if self.credentials is not None:
            client = Client("") if self.credentials.problem() else self.credentials.client
        return visible(client, reply, self.node.core.catalogue, asked)  # type: ignore[no-any-return]

    def _encode_fetched(self, key: int, number: int, reply: m.FetchReply) -> list[bytes | memoryview]:
        signed = sign_fetched(reply, secret=self.node.secret, key=self.node.secret_number)
        chunks = encode_message(signed, request=number, read=self.node.read_slice)
        self._answering[key] = (self._out.sent + self._out.waiting, reply)
        self.node.trace.answered(reply, self.node.core.replicas)
        return chunks

    def _refuse(
        self, key: int, number: int, reply: m.ClientReply, refusal: m.Failed
    ) -> list[bytes | memoryview]:
        """Send ``refusal`` instead of ``reply``, which could not be encoded; its deliveries are given back."""
        if isinstance(reply, m.FetchReply):
            self.node.trace.given_back(reply, refusal.detail)
            self.node.feed(Unsent(key))
        return encode_message(refusal, request=number)

    def put(self, chunks: Sequence[bytes | memoryview]) -> None:
        self._out.put(chunks)
        if self._out.waiting >= FLUSH_BYTES:
            self._out.flush()

    def _on_drained(self) -> None:
        """Go on with the replies that wait: everything encoded has left."""
        self._answering.clear()
        now = self.node.clock().mono
        while self._queue and not self._out.draining and not self.closed and not self.node.silent:
            key, reply, since = self._queue.popleft()
            self._queued_bytes -= foreign_bytes(reply)
            if isinstance(reply, m.FetchReply) and reply.slices and now - since > stale_after(reply):
                reply = self._too_late(key, reply)
            self._encode(key, reply)
        if not self.node.silent:
            self._out.flush()
        self._changed.set()

    def _too_late(self, key: int, reply: m.FetchReply) -> m.Failed:
        """Give back the holds of a FETCH, because its client does not read; return the answer instead."""
        self.node.health.count("replies_late")
        self.node.trace.given_back(reply, "the client did not read")
        self.node.feed(Unsent(key))
        detail = "the client did not read for too long; what was held for it was given back: fetch again"
        return m.Failed(Code.TOO_FEW_REPLICAS, detail)

    # ------------------------------------------------------------------------- facts

    @property
    def waiting_bytes(self) -> int:
        """Bytes encoded and not sent."""
        return self._out.waiting

    @property
    def busy(self) -> bool:
        """True if a request is under way, or bytes wait to be sent."""
        return bool(self._open or self._queue or self._out.waiting)

    def stop_waiting(self) -> None:
        """Give up holds that the open FETCHes may have won, as the node stops, and refer the client to another node."""
        for key, (_, _, counted) in list(self._open.items()):
            if isinstance(counted, m.Fetch) and self.node.callers.pop(key, None) is not None:
                self.node.feed(Gone(key))
                detail = f"node {self.node.config.node} is stopping: ask another node"
                self.reply(key, m.Failed(Code.TOO_FEW_REPLICAS, detail))
