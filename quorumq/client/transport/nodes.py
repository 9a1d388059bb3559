"""The nodes a client knows, and a request that goes on until one of them answers.

Any node coordinates any request, so failing over is: ask the next one. That is safe by the protocol's idempotence
(docs/protocol.md, promise G6 and ACK): the same batch, the same receipts. It is bounded by the deadline, which every
request has. It is helpful because the error at the end names the nodes that were asked and the answer of each.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

import trio

from quorumq.client.transport.connection import Connection, Dial, Lost, Orphan, open_connection
from quorumq.client.transport.log import Log
from quorumq.core import messages as m
from quorumq.core.values.errors import (
    Busy,
    NotFound,
    NotStored,
    OutcomeUnknown,
    QuorumqError,
    StorageFull,
    TooFewReplicas,
    Unanswered,
    Unauthorized,
    UsageError,
)
from quorumq.core.values.limits import REQUEST_TIMEOUT_S
from quorumq.core.values.patterns import NO_TOPIC
from quorumq.core.values.types import MemberState
from quorumq.wire.codec import error_of

ATTEMPT_TIMEOUT_S: Final = REQUEST_TIMEOUT_S + 0.5
"""Seconds that one node may take to answer a request that it does not park."""

DOUBT_S: Final = 3.0
"""Seconds for which a node that could not be asked, or gave no sign of life, is asked after all others."""

HANG_UP_S: Final = 0.25
"""Seconds that a node has to finish its replies on a connection that is no longer needed."""

REFRESH_S: Final = 60.0
"""Seconds after which a client asks again for the nodes of the cluster, if it heard of them no later."""

BACKOFF_MIN_S: Final = 0.02
BACKOFF_MAX_S: Final = 1.0
CAUSES_SHOWN: Final = 8

Make = Callable[[], m.ClientRequest]
Checker = Callable[[m.ClientReply], QuorumqError | None]


def left_of(end: float) -> float:
    """Return seconds until ``end``, by trio's clock, for the next request of an operation; 0 when it is over."""
    return max(0.0, end - trio.current_time())


def after_some(error: Unanswered, done: str) -> OutcomeUnknown:
    """Return the error of an operation that failed after it had ``done`` part, such as "purged 3 messages".

    That nothing was sent is true of its last request alone.
    """
    return OutcomeUnknown(
        f"{error.detail}. Before that it {done}",
        needed=error.needed,
        answered=error.answered,
        causes=error.causes,
    )


def was_removed(reply: m.MetadataReply) -> bool:
    """Return True if the node that answers names the nodes of its cluster, and itself not among them."""
    return bool(reply.nodes) and all(info.node != reply.node for info in reply.nodes)


class Watch(Protocol):
    """Observer of each attempt of one request, for the history."""

    def asked(self, via: str, request: m.ClientRequest) -> None:
        """Note that ``request`` is about to be sent to node ``via``."""

    def answered(self, reply: m.ClientReply | None, *, sent: bool) -> None:
        """Note its reply; None if there is none, and ``sent`` says whether the node may have the request."""


CLOSED: Final = "the client is closed: use it inside of its `with`"


class Closed(UsageError):
    """The client is closed: it was called after its ``with``, or while another thread left it."""

    code = "closed"


class Answered(NamedTuple):
    """A reply that is not `Failed`, and the connection that it arrived over."""

    reply: m.ClientReply
    connection: Connection


class Attempts:
    """Attempts of one request, for the error at its end."""

    def __init__(self, action: str) -> None:
        self.action = action
        self.sent = False  # whether any node may have carried it out
        self.needed = 0
        self.answered = 0
        self.causes: dict[tuple[str, str], int] = {}
        self.refused: QuorumqError | None = None  # the last refusal that is the nodes' own, not the network's
        self.other = False  # there was another cause than refusals of that kind
        self.failed = False  # the last reply is `Failed`
        self.missing: NotFound | None = None  # the last answer of this round that there is no such thing
        self.full: StorageFull | None = None  # the last refusal, as long as all are of this kind
        self.refusing = False  # a node refused it for now
        self.silent = False  # a node may have it, and did not answer

    def note(self, where: str, cause: str, *, sent: bool = False) -> None:
        """Note that ``where`` did not do it, for this reason."""
        self.sent = self.sent or sent
        self.causes[(where, cause)] = self.causes.get((where, cause), 0) + 1
        self.other = True

    def refuse(self, where: str, error: QuorumqError) -> None:
        """Note that ``where`` answered that it could not do it now."""
        other = self.other or (self.refused is not None and type(error) is not type(self.refused))
        self.note(where, str(error), sent=isinstance(error, OutcomeUnknown))
        self.other = other
        if isinstance(error, Unanswered):
            self.needed, self.answered = error.needed or self.needed, error.answered
            self.other = True
        else:
            self.refused = error

    def take(self, where: str, request: m.ClientRequest, reply: m.ClientReply, error: QuorumqError) -> bool:
        """Note an answer; raise it if it is the last word. Return True if an earlier attempt may have succeeded."""
        self.failed = isinstance(reply, m.Failed)
        if isinstance(error, NotFound):
            self.note(where, str(error))
            self.missing = error
            return False
        if self.sent and isinstance(request, m.Publish) and isinstance(error, UsageError):
            # An earlier attempt may have stored it at replicas that this one did not ask.
            self.note(where, str(error))
            return True
        if not isinstance(error, Unanswered | StorageFull | Busy):
            raise error
        self.full = error if isinstance(error, StorageFull) and (self.full or not self.refusing) else None
        self.refusing = True
        self.refuse(where, error)
        return False

    def end_round(self, seconds: float, *, writes: bool, waits_for_space: bool) -> None:
        """Raise the error that the round shows, if to ask again is of no use. Else forget the round."""
        if self.missing is not None and not self.refusing and not self.silent:
            if not (writes and self.sent):
                raise self.missing
            if self.failed:  # a name of a topic or group that is gone stays so
                raise self.error(seconds, writes=writes) from self.missing
        if self.full is not None and not (waits_for_space or self.missing or self.sent):
            raise self.full
        self.missing = self.full = None
        self.refusing = self.silent = False

    def error(self, seconds: float, *, writes: bool) -> QuorumqError:
        """Return the error to raise now that the time is over."""
        alike: dict[str, dict[str, int]] = {}  # counts of the nodes that say the same
        for (where, cause), count in self.causes.items():
            alike.setdefault(cause, {})[where] = count
        causes = [
            f"{', '.join(wheres)}: {cause}" + (f" ({count} times)" if count > 1 else "")
            for cause, wheres in alike.items()
            for count in (sum(wheres.values()),)
        ]
        more = f"; and {len(causes) - CAUSES_SHOWN} more" if len(causes) > CAUSES_SHOWN else ""
        tried = (
            f". Tried {'; '.join(causes[-CAUSES_SHOWN:])}{more}" if causes else ", too little to try a node"
        )
        text = f"{self.action} did not succeed within {seconds:.3g} s{tried}"
        if self.refused is not None and not self.sent:
            if not self.other:  # all nodes say the same: once is enough
                text = f"{self.action} did not succeed within {seconds:.3g} s: {self.refused}"
            return type(self.refused)(text)
        if not writes:
            reasons = [cause for _, cause in self.causes]
            return TooFewReplicas(text, needed=self.needed, answered=self.answered, causes=reasons)
        if self.sent:
            return OutcomeUnknown(
                f"{text}. It may have happened: repeat it through any node",
                needed=self.needed,
                answered=self.answered,
            )
        return NotStored(f"{text}. Nothing was sent", needed=self.needed, answered=self.answered)


@dataclass(eq=False, kw_only=True)
class Nodes:
    """Addresses and connections of the cluster."""

    addresses: list[str]  # "host:port" of some nodes; others are learned from METADATA
    cluster_id: str  # must be the nodes'; "" takes any
    dial: Dial  # opens a stream to an address
    spawn: Callable[..., None]  # runs an async function in the background, as long as the client lives
    clock: Callable[[], float]  # monotonic, in seconds: stamps FETCH and EXTEND, and every deadline of a hold
    wall_ms: Callable[[], int]  # the time of day in milliseconds since 1970
    rng: random.Random  # for jitter, and for the node to begin with
    connect_timeout: float  # seconds to dial a node and have HELLO answered
    attempt_timeout: float = ATTEMPT_TIMEOUT_S  # seconds that a node may take, before the next is asked
    token: str = ""  # shows nodes the client's identity
    on_behalf: str = ""  # name of the client for which a gateway asks; "" for the client itself
    ids: dict[str, str] = field(default_factory=dict)
    """Address of each node id, as far as known: the reached one, else the one that METADATA named first."""
    hold_time_max: float | None = None
    """The longest hold that the cluster allows, in seconds, once METADATA has said it."""
    _said: dict[str, str] = field(default_factory=dict)  # by node, from the last METADATA
    _layout: int = 0  # number of the cluster layout that this was of
    _learned_at: float = 0.0  # when it was received, by trio's clock
    _stale: trio.Event = field(default_factory=trio.Event)  # a node could not be asked, or hung up, since
    _connections: dict[tuple[str, str], Connection] = field(default_factory=dict)  # by pool and address
    _dialling: dict[tuple[str, str], trio.Lock] = field(default_factory=dict)
    _failed: dict[str, tuple[float, str]] = field(default_factory=dict)  # when dialling failed last, and why
    _doubted: dict[str, float] = field(default_factory=dict)  # until when
    _closed: bool = False

    def __post_init__(self) -> None:
        if not self.addresses:
            raise UsageError("no address of a node is given: name at least one, as host:port")
        self.addresses = list(dict.fromkeys(self.addresses))
        self._given = tuple(self.addresses)
        self._key = self.rng.randbytes(16)
        self._home = self._choose(self.addresses)
        self._first = self._home  # asked first, for as long as it answers
        self._run = trio.lowlevel.current_trio_token()
        self._time = trio.lowlevel.current_clock().current_time
        self.log = Log(self._time)

    # ------------------------------------------------------------------ known nodes

    def learn(self, reply: m.MetadataReply) -> None:
        """Take note of the nodes in METADATA, for when those given cannot be reached, and of the longest hold.

        Addresses that it no longer names are dropped, but those that were given.
        """
        self.hold_time_max = reply.hold_time_max
        if reply.layout < self._layout:
            return  # the node that answered knows less than another one
        self._layout, self._learned_at = reply.layout, self._time()
        named = {info.node: info.address for info in reply.nodes if info.address}
        for node in [node for node in self._said if node not in named]:
            del self._said[node]
            self.ids.pop(node, None)
        for info in reply.nodes:
            if info.address and self._said.get(info.node) != info.address:
                self._said[info.node] = info.address
                self.ids.setdefault(info.node, info.address)
        self.addresses = list(dict.fromkeys((*self._given, *self._said.values())))
        serving = [info.address for info in reply.nodes if info.address and info.state == MemberState.JOINED]
        self._home = self._choose(serving or self.addresses)
        if self._first not in self.addresses:
            self._first = self._home
        for address in [it for it in (*self._failed, *self._doubted) if it not in self.addresses]:
            self._failed.pop(address, None)
            self._doubted.pop(address, None)

    def _choose(self, addresses: Sequence[str]) -> str:
        """Return the client's home: each node is that of as many clients, and a new one that of its share of them."""
        return min(addresses, key=lambda one: hashlib.blake2b(one.encode(), key=self._key).digest())

    async def _go_home(self) -> None:
        """Ask the home first again, if it can be reached.

        Why: after a restart of each node, one by one, one of them would have all clients, and new ones would have none.
        """
        if self._first != (home := self._home) and await self._reaches(home):
            self._first = home

    async def home_among(self, nodes: Iterable[str], pool: str = "") -> str:
        """Return the address of the client's home among some nodes, if it can be reached over a pool; else ""."""
        addresses = self.addresses_of(nodes)
        home = self._choose(addresses) if addresses else ""
        return home if home and await self._reaches(home, pool) else ""

    async def _reaches(self, address: str, pool: str = "") -> bool:
        if not self._is_uncertain(address):
            with suppress(Lost, QuorumqError):
                await self.connection(address, timeout=self.connect_timeout, pool=pool)
                return True
        return False

    async def keep_learning(self) -> None:
        """Ask for the nodes of the cluster once a minute, and soon after one could not be asked, or hung up.

        Runs until cancelled. A node tells its clients when members change, so an idle one has to be connected to one.
        """
        while True:
            while (remaining := self._learned_at + REFRESH_S - self._time()) > 0 and not self._stale.is_set():
                with trio.move_on_after(remaining):
                    await self._stale.wait()
                await self._go_home()
            self._learned_at = self._time()
            self._stale = trio.Event()
            try:
                answer = await self.ask(
                    lambda: m.Metadata((NO_TOPIC,)), action="metadata", timeout=REFRESH_S / 4, writes=False
                )
                self.learn(answer.reply)  # type: ignore[arg-type]
            except QuorumqError:
                self._stale = trio.Event()  # none can be asked: again in a minute
            await trio.sleep(DOUBT_S)

    def address_of(self, node: str) -> str:
        """Return the address of a node named by its id or its address; NotFound if no such node is known."""
        if node in self.ids:
            known = self.ids[node]
            return self._said.get(node, known) if known in self._failed else known
        if node in self.addresses:
            return node
        raise NotFound(
            f"no node {node!r} is known; known are {', '.join(sorted(self.ids)) or 'none yet'} at "
            f"{', '.join(self.addresses)}"
        )

    def addresses_of(self, nodes: Iterable[str]) -> tuple[str, ...]:
        """Return the known addresses of node ids, two of one that was reached elsewhere than METADATA says now."""
        addresses = [at.get(node) for node in nodes for at in (self.ids, self._said)]
        return tuple(filter(None, dict.fromkeys(addresses)))

    async def connection(self, address: str, *, timeout: float, pool: str = "") -> Connection:
        """Return the connection to ``address``, dialled if there is none; those of a pool are apart from all others.

        Raises:
            Lost: it cannot be reached, or not within ``timeout`` seconds.
            UsageError: it refused HELLO.
        """
        known = self._connections.get((pool, address))
        if known is not None and not known.lost:
            return known
        with trio.move_on_after(timeout):
            return await self._connect(address, pool)
        raise Lost(f"no connection within {timeout:.3g} s", sent=False)

    async def _connect(self, address: str, pool: str) -> Connection:
        began = trio.current_time()
        async with self._dialling.setdefault((pool, address), trio.Lock()):
            known = self._connections.get((pool, address))
            if known is not None and not known.lost:
                return known
            failed_at, cause = self._failed.get(address, (-1.0, ""))
            if failed_at > began:  # while this waited for its turn: one dial is enough for all waiters
                raise Lost(cause, sent=False)
            if self._closed:
                raise Lost("the client is closed", sent=False)
            try:
                made = await open_connection(
                    address,
                    dial=self.dial,
                    cluster_id=self.cluster_id,
                    wall_ms=self.wall_ms(),
                    timeout=self.connect_timeout,
                    token=self.token,
                    on_behalf=self.on_behalf,
                )
            except Lost as exc:
                self._failed[address] = (trio.current_time(), exc.cause)
                raise
            if not self.cluster_id:
                # The first one decides; no wandering between clusters.
                self.cluster_id = made.welcome.cluster_id
            self._failed.pop(address, None)
            self.ids[made.node] = address
            self._connections[(pool, address)] = made
            made.on_members = self._on_members
            self.spawn(self._run_connection, made)
            return made

    async def _run_connection(self, connection: Connection) -> None:
        """Run a connection. If the node ends it, ask others soon for the nodes of the cluster.

        Why: the node may have left, and no other one would tell an idle client about later changes.
        """
        await connection.run()
        if not connection.ended_here:
            self._stale.set()

    def _on_members(self, reply: m.MetadataReply) -> None:
        """Take note of the nodes of the cluster. If the node that says so was removed, ask another one soon."""
        self.learn(reply)
        if was_removed(reply):
            self._stale.set()

    async def hang_up(self, pool: str) -> list[m.ClientReply]:
        """End the connections of a pool, and with them the requests that nodes have parked. Takes `HANG_UP_S` at most.

        Returns:
            Replies that nodes had begun by then: their messages are still held.
        """
        ending = [self._connections.pop(key) for key in [*self._connections] if key[0] == pool]
        for key in [key for key in self._dialling if key[0] == pool]:
            del self._dialling[key]
        with trio.move_on_after(HANG_UP_S):
            async with trio.open_nursery() as nursery:
                for connection in ending:
                    nursery.start_soon(connection.finish)
        for connection in ending:
            connection.close()
            await connection.ended.wait()
        return [reply for connection in ending for reply in connection.late]

    def has_orphans(self, pool: str) -> bool:
        """Return True if nodes may have messages for requests of a pool that were cancelled."""
        return any(it.has_orphans for (name, _), it in self._connections.items() if name == pool)

    def check_open(self) -> None:
        """Raise Closed once the client is closed, and UsageError in another trio run: it would wait for ever."""
        if self._closed:
            raise Closed(CLOSED)
        if trio.lowlevel.current_trio_token() is not self._run:
            raise UsageError(
                "this client belongs to another trio.run: make one here too, or share one of quorumq.client.blocking"
            )

    def close(self) -> None:
        """Hang up everywhere. Waiters hear that the connection was closed."""
        self._closed = True
        for connection in self._connections.values():
            connection.close()

    async def reach(self, timeout: float) -> Connection:
        """Return a connection to any node; TooFewReplicas if none is reached within ``timeout`` seconds."""
        until = trio.current_time() + timeout
        attempts = Attempts("connecting")
        backoff = BACKOFF_MIN_S
        while True:
            for address in self._order((), ""):
                remaining = until - trio.current_time()
                if remaining <= 0:
                    break
                try:
                    return await self.connection(address, timeout=remaining)
                except Lost as exc:
                    attempts.note(address, exc.cause)
            remaining = until - trio.current_time()
            if remaining <= 0:
                raise attempts.error(timeout, writes=False)
            await trio.sleep(min(remaining, self.rng.uniform(0.5, 1.0) * backoff))
            backoff = min(BACKOFF_MAX_S, 2 * backoff)

    # ------------------------------------------------------------------------ asking

    async def ask(
        self,
        make: Make,
        *,
        action: str,
        timeout: float,
        writes: bool,
        only: Sequence[str] = (),
        first: str = "",
        pool: str = "",
        attempt_timeout: float | None = None,
        waits_for_space: bool = True,
        check: Checker | None = None,
        orphan: Orphan | None = None,
        watch: Watch | None = None,
        once: bool = False,
    ) -> Answered:
        """Send a request to one node after the other until one does it.

        Args:
            make: gives the request, anew for each attempt.
            action: name of the request, for the error: "publish of 3 messages to jobs/0".
            writes: whether it changes anything: decides between NotStored, OutcomeUnknown and TooFewReplicas.
            first: the address to ask first.
            pool: over which connections: see `connection`.
            waits_for_space: False raises `StorageFull` once every node that could be reached has answered so, as it is
                about the node that is to get messages.
            once: whether to fail when each node has been asked once.
            check: looks at a reply; an error that it returns has the next node asked.

        Raises:
            UsageError: a node refused it for good. `NotFound` only once every node that could be reached has said so:
                a node that was away may not have heard of a new topic yet. Of a publish only if no earlier attempt may
                have been carried out; else OutcomeUnknown, from that.
            NotStored, OutcomeUnknown, TooFewReplicas, StorageFull, Busy: the time is over, or would be by when a quota
                lets it go on; the text says what was tried.
        """
        clock = self._time
        began = clock()
        until = began + timeout
        attempts = Attempts(action)
        backoff = BACKOFF_MIN_S
        while True:
            pause = 0.0
            for address in self._order(only, first):
                remaining = until - clock()
                if remaining <= 0:
                    break
                where, asked = address, False
                try:
                    connection = await self.connection(address, timeout=remaining, pool=pool)
                    where = f"{connection.welcome.node} ({address})"
                    wait = min(attempt_timeout or self.attempt_timeout, max(until - clock(), 0.001))
                    request = make()
                    if watch is not None:
                        watch.asked(connection.node, request)
                        asked = True
                    reply = await connection.ask(request, timeout=wait, orphan=orphan)
                except Lost as exc:
                    if watch is not None and asked:
                        watch.answered(None, sent=exc.sent)
                    self._note_lost(address, where, exc, attempts)
                    continue
                except Unauthorized:  # its file of clients may not be that of the others yet
                    self._doubted[address] = clock() + DOUBT_S  # they are asked first
                    raise
                self._doubted.pop(address, None)
                if watch is not None:
                    watch.answered(reply, sent=True)
                error = error_of(reply) if isinstance(reply, m.Failed) else check and check(reply)
                if isinstance(reply, m.MetadataReply) and was_removed(reply):
                    self.learn(reply)  # the next nodes to ask, but what it has is of the past
                    self._doubted[address] = clock() + DOUBT_S
                    attempts.note(where, f"node {reply.node} was removed from the cluster")
                    attempts.failed = False
                    continue
                if error is None:
                    if not only:
                        self._first = address
                    return Answered(reply, connection)
                if attempts.take(where, request, reply, error):
                    raise attempts.error(clock() - began, writes=writes) from error
                if not isinstance(error, NotFound):
                    self.log.info(("refused", address), "%s: %s: %s; it is tried again", action, where, error)
                if isinstance(error, Busy):  # so will others be, or it would be no quota
                    pause = error.delay
                    break
            attempts.end_round(clock() - began, writes=writes, waits_for_space=waits_for_space)
            remaining = until - clock()
            if remaining <= pause:
                raise attempts.error(timeout, writes=writes)
            if pause:
                await trio.sleep(pause)
                continue
            if once:
                raise attempts.error(clock() - began, writes=writes)
            await trio.sleep(min(remaining, self.rng.uniform(0.5, 1.0) * backoff))
            backoff = min(BACKOFF_MAX_S, 2 * backoff)

    def _note_lost(self, address: str, where: str, lost: Lost, attempts: Attempts) -> None:
        """Note that a node did not answer: for the error, for the order of the next round, and in the log."""
        self._doubted[address] = self._time() + DOUBT_S
        self._stale.set()
        attempts.silent = attempts.silent or lost.sent
        attempts.note(where, lost.cause, sent=lost.sent)
        if not self._closed:
            text = "%s: %s: %s; another node is asked"
            self.log.info(("lost", address), text, attempts.action, where, lost.cause)

    def _order(self, only: Sequence[str], first: str) -> Iterator[str]:
        """Yield nodes in the order to ask: the one that answered last, those connected, the others, the uncertain."""
        known = only or self.addresses
        head = first or self._first
        asked = head in known and not self._is_uncertain(head)
        if asked:  # mostly no other node is needed
            yield head
        ring = [address for address in known if address != head or not asked]  # as it is now
        self.rng.shuffle(ring)  # so that no node gets all clients of one that is down
        there = [
            at for (pool, at), connection in self._connections.items() if not pool and not connection.lost
        ]
        ring.sort(key=lambda at: (self._is_uncertain(at), at != head, at not in there))
        yield from ring

    def _is_uncertain(self, address: str) -> bool:
        """Return True if the node could not be asked just now, or gives no sign of life on any connection."""
        if self._doubted.get(address, 0.0) > self._time():
            return True
        silent = [
            at
            for (_, at), connection in self._connections.items()
            if connection.silent and not connection.lost
        ]
        return address in silent
