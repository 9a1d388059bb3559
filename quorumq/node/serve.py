"""One node process, from its configuration to its exit code.

The order of a start is the protocol's: read the journal, make this start durable, and only then listen and dial.
The order of a stop too: take nothing new, finish requests that are nearly done, fall silent, journal the
holds, sync, exit.
A failed fsync skips all of that: the node falls silent in the very step that hears of it.

Exit codes: 0 stopped cleanly; 70 a bug; 74 the disk or the data directory; 78 the configuration, or another node
refuses this one; 130 interrupted before it had started.
"""

from __future__ import annotations

import errno
import gc
import hashlib
import random
import resource
import secrets
import signal
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, Final

import trio

from quorumq.core.messages import Admitted, Metadata
from quorumq.core.messages.diskroom import why_full
from quorumq.core.messages.effects import CleanStop
from quorumq.core.messages.records import BatchStored, CleanStopped, JournalRecord, TrustLost
from quorumq.core.node.nodecore import NodeCore
from quorumq.core.node.status import metadata
from quorumq.core.values.errors import StorageError, UsageError
from quorumq.core.values.patterns import NO_TOPIC
from quorumq.core.values.types import NodeId, Now
from quorumq.history import HistoryWriter, boot
from quorumq.node.admission import OPERATOR_SLOTS, ListensFor
from quorumq.node.clock import real_now
from quorumq.node.commits import CommitRunner, CommitThread
from quorumq.node.config import ServeConfig
from quorumq.node.connections import Inbound
from quorumq.node.join import NotAdmitted, cluster_of, wait_to_join
from quorumq.node.links import Dial, address_of, dial_address, dial_from, keep_link
from quorumq.node.logs import make_log
from quorumq.node.node import EXIT_AGAIN, EXIT_BUG, EXIT_OK, EXIT_REFUSED, EXIT_STORAGE, Node
from quorumq.node.reread import ConfigFile
from quorumq.node.tls import Certificates
from quorumq.node.transport import SocketTransport, Transport, listen
from quorumq.node.warmup import warm_up
from quorumq.storage.commit import NoCapacity
from quorumq.storage.disk import Disk
from quorumq.storage.journal import Journal
from quorumq.wire.address import split_address
from quorumq.wire.codec import encode_message

BACKLOG: Final = 1024
SPARE_CONNECTIONS: Final = 72
"""Connections accepted beyond connections_max: peers, operators, and those without a HELLO so far."""

STRANGERS_MAX: Final = 48
"""Most connections without a HELLO so far. One more ends another of them: no mute one keeps out a peer."""

assert STRANGERS_MAX + 9 + OPERATOR_SLOTS < SPARE_CONNECTIONS

OTHER_FILES: Final = 256
"""File descriptors that are no accepted connections: a journal that gets none stops the node."""
FILES_REMEDY: Final = "raise LimitNOFILE (ulimit -n), or lower connections_max"

POLL_S: Final = 0.005
EXIT_INTERRUPTED: Final = 130

EXIT_FULL: Final = -2
"""Not the end of the process: its disk has no room for a start."""

FULL_START_S: Final = 5.0
"""Seconds after which a start begins again, if its disk has no room even without the last reserve."""


def run(file: ConfigFile, newest: bool = False) -> int:
    """Run a node until SIGTERM or SIGINT, or until it must stop. Returns the exit code of the process."""
    config = file.config
    log = make_log(config.log_format, config.log_level, config.node)
    if not __debug__:
        log.error(
            "start_refused", reason="python runs with -O, which leaves out the checks that stop a broken node"
        )
        return EXIT_REFUSED
    try:
        return trio.run(_run, file, log, newest)
    except KeyboardInterrupt:  # once it has started, a signal is a request to stop
        log.warning("node_stops", reason="interrupted while it started", exit_code=EXIT_INTERRUPTED)
        return EXIT_INTERRUPTED
    except BaseException:
        log.error("node_stops", reason="a bug in this node", exit_code=EXIT_BUG, exc_info=True)
        return EXIT_BUG


async def _run(file: ConfigFile, log: Any, newest: bool) -> int:
    _raise_file_limit(file.config, log)
    while (code := await _run_node(file, log, newest)) in (EXIT_AGAIN, EXIT_FULL):
        if code == EXIT_FULL:
            await trio.sleep(FULL_START_S)
        else:
            newest = False
    return code


async def _run_node(file: ConfigFile, log: Any, newest: bool) -> int:
    """Run one node until it stops; EXIT_AGAIN and EXIT_FULL if another one is to be built from its directory."""
    config = file.config
    if config.exposed and not config.insecure:
        log.error(
            "start_refused",
            reason=f"{config.exposed} is not only this machine: others could read what is said there, or do "
            "whatever they like. Give tls_cert, tls_key, tls_ca and clients_file, or insecure = true if nobody else "
            "is on that network",
        )
        return EXIT_REFUSED
    if config.exposed:
        log.warning("insecure", reason=f"insecure = true: who reaches {config.exposed} may do everything")
    try:
        sockets = _bind(config.listen, "listen")
        of_peers = _bind(config.peer_listen, "peer_listen")
        seen_from = _bind(config.http_listen, "http_listen")
        for sock in seen_from:
            sock.listen()  # a client that asks before the node has started waits
    except UsageError as error:
        log.error("start_refused", reason=str(error))
        return EXIT_REFUSED
    dialled, here = config.elsewhere
    if dialled:
        log.warning(
            "listens_elsewhere",
            reason=f"the other nodes dial {dialled}, and this one listens on {here}: they reach "
            "it only where something forwards that. Leave listen out to listen on the address in nodes",
        )
    bound = (*sockets, *of_peers, *seen_from)
    commits = CommitThread()
    try:
        certificates = None
        if config.tls_cert:
            certificates = Certificates(config.tls_cert, config.tls_key, config.tls_ca, log)
        node = await _open(file, log, commits, newest, certificates, seen_from)
        if node is None:
            await _close(bound, commits)
            return EXIT_OK
    except NoCapacity as error:
        log.error("start_waits", reason=str(error), again_s=FULL_START_S, data_dir=config.data_dir)
        await _close(bound, commits)
        return EXIT_FULL
    except (StorageError, UsageError) as error:  # anything else is a bug, and no configuration mends it
        log.error("start_refused", reason=str(error), data_dir=config.data_dir)
        return EXIT_STORAGE if isinstance(error, StorageError) else EXIT_REFUSED
    node.turns.waits_here = True
    commits.call_soon = node.turns.call_soon
    service = Service(node, dial_from(partial(address_of, node), certificates), certificates)
    gc.collect()
    gc.freeze()  # replayed objects live as long as the node: leave them out of every later collection
    try:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async with trio.open_nursery() as nursery:

                async def wait_for_signal() -> None:
                    async for number in signals:
                        log.info("stop_asked", signal=signal.Signals(number).name)
                        service.stop()
                        return

                nursery.start_soon(wait_for_signal)
                nursery.start_soon(warm_up)
                if seen_from:
                    from quorumq.node.http import HttpServer  # with its imports: only if it is used

                    nursery.start_soon(HttpServer(node).run, seen_from)
                code = await service.run(sockets, of_peers)
                nursery.cancel_scope.cancel()
    finally:
        for sock in bound:
            sock.close()
    if code == EXIT_AGAIN:
        await trio.to_thread.run_sync(commits.close)  # it may be writing to the directory
        node.store.abandon()
    return code


async def _close(sockets: Iterable[socket.socket], commits: CommitThread) -> None:
    for sock in sockets:
        sock.close()
    await trio.to_thread.run_sync(commits.close)


async def _open(
    file: ConfigFile,
    log: Any,
    commits: CommitThread,
    newest: bool,
    certificates: Certificates | None,
    seen_from: Sequence[socket.socket],
) -> Node | None:
    """Open the node. With an empty directory and ``join`` it asks to be let in first; None if it was stopped before."""
    config = file.config

    def opened(admitted: Admitted | None = None) -> Node:
        return open_node(
            config, config.data_dir, log=log, commits=commits, newest=newest, admitted=admitted, file=file
        )

    try:
        return opened()
    except NotAdmitted:
        admitted = await wait_to_join(
            config, partial(dial_address, certificates=certificates), log, seen_from
        )
        if isinstance(admitted, str):
            raise UsageError(admitted) from None
        return opened(admitted) if admitted is not None else None


def _bind(address: str, key: str) -> list[socket.socket]:
    """Return the sockets for an address of the configuration, none if it is empty; UsageError if it is taken."""
    try:
        return listen(*split_address(address)) if address else []
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        advice = "something else listens there" if taken else "give an address of this machine"
        raise UsageError(f"cannot listen on {address} ({key}): {error.strerror}: {advice}") from None


def open_node(
    config: ServeConfig,
    disk: Disk | str,
    *,
    log: Any,
    commits: CommitRunner,
    clock: Callable[[], Now] = real_now,
    rng: random.Random | None = None,
    newest: bool = False,
    history: HistoryWriter | None = None,
    admitted: Admitted | None = None,
    file: ConfigFile | None = None,
) -> Node:
    """Read the journal, build the core from it, and make this start durable. Blocks for the disk.

    Args:
        rng: for pauses, jitter and ids; a fresh one if None.
        newest: an operator says that this directory is the newest there is, although it was copied.
        admitted: answer of the cluster that an empty directory with ``join`` begins with.
        file: the file that ``config`` was read from, if the node is to follow its changes.

    Raises:
        NotAdmitted: it is such a directory, and there is no answer.
        StorageError: the directory is in use, another node's, damaged beyond other nodes' help, or the disk
            refused.
        UsageError: the journal is another node's or cluster's.
    """
    rng = rng or random.Random(secrets.randbits(64))
    store = Journal.open(
        disk,
        node=config.node,
        cluster_id=config.cluster_id,
        new_directory_id=lambda: rng.getrandbits(64) or 1,
        segment_bytes=config.segment_bytes,
        reserve_bytes=config.disk_reserve_bytes,
        salvage=True,
    )
    try:
        replayed = list(store.replayed)
        made, layout = cluster_of(config, replayed, admitted)
        records: Iterable[JournalRecord] = replayed
        if store.salvaged:  # the others know what was forgotten: the core resyncs before it votes
            records = chain(records, [TrustLost(0, f"the data directory is damaged: {store.not_trusted}")])
        core = NodeCore(
            config.core(made, layout),
            records,
            nonce=rng.getrandbits(64),
            directory=store.directory,
            now=clock(),
            rng=rng,
            location=store.location,
            boot=boot_number(boot()),
            newest=newest,
        )
        core.take_position(store.position)
        damaged = [damage.record for damage in store.damaged]
        core.load_damaged([record for record in damaged if isinstance(record, BatchStored)], clock())
        core.state.next_batch = max(core.state.next_batch, store.next_number)
        if core.trust.moved:
            log.warning(
                "directory_moved", reason=core.trust.explain_moved(core.context), data_dir=config.data_dir
            )
        elif newest:
            reason = (
                "nothing is asked of the others"
                if core.trust.is_elsewhere
                else "nothing was in doubt: it was not moved"
            )
            log.warning("directory_is_newest", reason=reason, data_dir=config.data_dir)
        elif core.trust.journal_location is not None and core.trust.journal_location.why:
            log.info(
                "directory_was_moved",
                reason=core.trust.journal_location.why,
                by_start=core.trust.journal_location.n,
            )
        if core.state.moved_s:
            log.warning(
                "time_of_day_moved",
                seconds=round(core.state.moved_s, 3),
                reason="since the last record of this boot; what was stored since the machine was booted ages by its "
                "monotonic clock, all else by the time of day",
            )
        for note in store.notes:
            log.warning("journal_note", note=note)
        if store.not_trusted:
            _check_others_can_help(core, store.not_trusted)
            log.warning("directory_damaged", reason=store.not_trusted, data_dir=config.data_dir)
        for damage in store.damaged:
            log.error("batch_damaged", batch=damage.record.number, segment=damage.position.segment)
        node = Node(
            core, store, config, clock=clock, rng=rng, commits=commits, log=log, history=history, file=file
        )
        node.start()
    except BaseException:
        store.abandon()
        raise
    return node


def boot_number(boot_id: str) -> int:
    """Return 60 bits that stand for a boot of a machine; 0 if the system does not say."""
    return int.from_bytes(hashlib.blake2b(boot_id.encode(), digest_size=8).digest()) >> 4 if boot_id else 0


def _check_others_can_help(core: NodeCore, damage: str) -> None:
    """Refuse to go on from a damaged directory, by StorageError, if no other node knows the lost records."""
    alone = sorted({each.topic.name for each in core.replicas.values() if each.members == (core.state.me,)})
    others = len(core.catalogue.cluster.present) > 1
    if others and not alone:
        return
    description = (
        f"the only replica of topics: {', '.join(map(repr, alone[:5]))}"
        + (f" and {len(alone) - 5} more" if len(alone) > 5 else "")
        if others
        else "a cluster of one node"
    )
    raise StorageError(
        f"{damage}; and this is {description}: nobody else knows which of its messages were acked. Keep a copy of the "
        "directory (`quorumq export` reads the messages out of it), and start with an empty one, or with a backup"
    )


@dataclass(eq=False)
class Service:
    """A started node with its connections."""

    node: Node  # made by `open_node`
    dial: Dial  # how to reach a peer
    certificates: Certificates | None = None  # None if dialling sides do not speak TLS
    _inbound: dict[int, Inbound] = field(default_factory=dict)
    _strangers: list[Inbound] = field(default_factory=list)  # some of them may have said who they are
    _peers: dict[NodeId, Inbound] = field(default_factory=dict)
    _links: dict[NodeId, trio.CancelScope] = field(default_factory=dict)
    _clients: Counter[str] = field(default_factory=Counter)
    _stop: trio.Event = field(default_factory=trio.Event)
    _nursery: trio.Nursery | None = None

    def __post_init__(self) -> None:
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._inbound_max = self.node.config.connections_max + SPARE_CONNECTIONS
        if files != resource.RLIM_INFINITY:
            self._inbound_max = min(self._inbound_max, max(SPARE_CONNECTIONS, files - OTHER_FILES))
        self.node.health.outbox_bytes = lambda: sum(
            connection.waiting_bytes for connection in self._inbound.values()
        )

    def stop(self) -> None:
        """Ask for a clean stop; `run` returns when it is done."""
        self._stop.set()

    async def run(self, sockets: Sequence[socket.socket], of_peers: Sequence[socket.socket] = ()) -> int:
        """Serve until `stop` is called or the node fails. Returns the exit code.

        Args:
            sockets: bound, not listening yet; the caller closes them.
            of_peers: the same, for nodes alone; if there are any, `sockets` are for clients alone.
        """
        node = self.node
        listeners: list[tuple[socket.socket, ListensFor]] = [
            (sock, "clients" if of_peers else "all") for sock in sockets
        ]
        listeners += [(sock, "peers") for sock in of_peers]
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            accepting = trio.CancelScope()
            nursery.start_soon(node.run_timers)
            nursery.start_soon(node.turns.run)
            nursery.start_soon(node.shares.run)
            nursery.start_soon(node.watch)
            nursery.start_soon(self._set_when, node.ended)
            self._link_members()
            node.when_members_change = self._on_members
            try:
                for sock, _ in listeners:
                    sock.listen(BACKLOG)
                nursery.start_soon(self._accept_all, listeners, accepting)
            except OSError as error:  # another process bound it too, while neither listened, and was first
                host, port = sock.getsockname()[:2]
                reason = f"cannot listen on {host}:{port}: {error.strerror}: something else listens there"
                node.fail(EXIT_REFUSED, reason)
            now = node.clock()
            node.log.info(
                "node_started",
                listen=node.config.listen,
                incarnation=node.core.state.incarnation.n,
                quarantine_s=round(max(0.0, node.core.state.quarantine_until - now.mono), 3),
                batches=len(node.store),
                peers=[peer for peer in node.core.catalogue.cluster.present if peer != node.config.node],
            )
            await self._stop.wait()
            if node.failed is None:
                accepting.cancel()
                await self._finish()
            nursery.cancel_scope.cancel()
        return self._close()

    def _on_members(self) -> None:
        """Say that the members of the cluster have changed, to clients, too, and have links to them."""
        node, cluster = self.node, self.node.core.catalogue.cluster
        node.log.info("members_changed", layout=cluster.layout.number, members=list(cluster.present))
        self._link_members()
        said = encode_message(metadata(node.core.context, Metadata((NO_TOPIC,)), node.clock()))
        for inbound in list(self._inbound.values()):
            if inbound.is_client and not (inbound.closed or node.silent):
                inbound.put(said)
                node.dirty(inbound)

    def _link_members(self) -> None:
        """Keep a link to each other member, and none to a node that is no member any more.

        A node that was removed and added again in one turn is dialled anew, because the core has ended its link.
        """
        node, nursery = self.node, self._nursery
        assert nursery is not None, "the service runs"
        present, linked = node.core.catalogue.cluster.present, node.core.state.links
        for peer in [
            peer for peer in self._links if peer not in present or (peer in node.links and peer not in linked)
        ]:
            self._links.pop(peer).cancel()
            if peer in self._peers:
                self._peers[peer].give_up("it is no member of the cluster any more")
        for peer in present:
            if peer != node.config.node and peer not in self._links:
                scope = self._links[peer] = trio.CancelScope()
                nursery.start_soon(self._keep_link, peer, scope, nursery)

    async def _keep_link(self, peer: NodeId, scope: trio.CancelScope, nursery: trio.Nursery) -> None:
        rng = random.Random(f"{self.node.core.state.incarnation.nonce} {peer}")
        with scope:
            await keep_link(self.node, peer, self.dial, rng, nursery)

    async def _set_when(self, ended: trio.Event) -> None:
        await ended.wait()
        self._stop.set()

    async def _finish(self) -> None:
        """Do the clean part of a stop: answer requests that end soon, fall silent, and journal the holds."""
        node = self.node
        node.intake.paused = True
        for inbound in list(self._inbound.values()):
            inbound.stop_waiting()
        with trio.move_on_after(node.config.stop_timeout):
            while any(inbound.busy for inbound in self._inbound.values()) or any(
                link.waiting for link in node.links.values()
            ):
                await trio.sleep(POLL_S)
        node.fall_silent()
        node.feed(CleanStop())
        await node.settled()

    def _close(self) -> int:
        """Give the data directory back; the exit code."""
        node = self.node
        node.trace.stopped(
            node.core.state.incarnation, node.failed[1] if node.failed is not None else "asked to"
        )
        if node.failed is not None:
            # Else its thread still writes to the files: the end of the process closes them.
            if not node.committer.committing and node.failed[0] != EXIT_AGAIN:
                node.store.abandon()
            return node.failed[0]
        try:
            if node.committer.stalled:
                raise NoCapacity("a commit waits for room on the disk")
            node.store.close()
            if node.core.state.no_capacity(CleanStopped):
                raise NoCapacity(why_full(node.core.state.disk_shortage, node.config.node))
        except NoCapacity as error:  # unwritten records were promised to no client
            node.store.abandon()
            node.log.warning("node_stopped", clean=False, reason=str(error))
            return EXIT_OK
        except StorageError as error:
            node.fail(EXIT_STORAGE, str(error))
            return EXIT_STORAGE
        node.log.info("node_stopped", clean=True)
        return EXIT_OK

    # --------------------------------------------------------------------- accepting

    async def _accept_all(
        self, listeners: Sequence[tuple[socket.socket, ListensFor]], accepting: trio.CancelScope
    ) -> None:
        with accepting:
            async with trio.open_nursery() as nursery:
                for sock, listens_for in listeners:
                    nursery.start_soon(self._accept, sock, listens_for)
        for sock, _ in listeners:
            sock.close()

    async def _accept(self, listener: socket.socket, listens_for: ListensFor) -> None:
        while True:
            await trio.lowlevel.wait_readable(listener)
            try:
                sock, address = listener.accept()
            except (BlockingIOError, ConnectionAbortedError, InterruptedError):
                continue
            except OSError as error:  # no file descriptors left, most likely: some will be closed soon
                self.node.log.error("accept_failed", reason=f"{error.strerror}: {FILES_REMEDY}")
                await trio.sleep(0.1)
                continue
            transport = SocketTransport(sock)
            certificates = self.certificates
            self.serve(
                transport if certificates is None else certificates.accepted(transport),
                f"{address[0]}:{address[1]}",
                listens_for,
            )

    def _make_capacity(self) -> bool:
        """Return True if one more connection may be accepted. One that has not said who it is may end for it.

        The oldest one ends, of the address that has the most of them: an address that floods a node crowds out itself.
        """
        self._strangers = strangers = [it for it in self._strangers if it.is_stranger]
        if len(strangers) < STRANGERS_MAX and len(self._inbound) < self._inbound_max:
            return True
        if not strangers:
            return False
        hosts = Counter(it.host for it in strangers)
        most = max(hosts.values())
        oldest = next(it for it in strangers if hosts[it.host] == most)
        oldest.give_up(f"{len(strangers)} connections have not said who they are, {most} from {oldest.host}")
        return True

    def serve(self, transport: Transport, address: str, listens_for: ListensFor = "all") -> None:
        """Serve an accepted connection until it ends; hang up if there is no room for it."""
        assert self._nursery is not None, "the service runs"
        if not self._make_capacity():
            self.node.log.warning("connections_max", connections=len(self._inbound), client=address)
            transport.close()
            return
        inbound = Inbound(
            self.node, transport, address, self._nursery, self._peers, self._clients, listens_for
        )
        self._inbound[id(inbound)] = inbound
        self._strangers.append(inbound)
        self.node.health.connections = len(self._inbound)
        self._nursery.start_soon(self._run_inbound, inbound)

    async def _run_inbound(self, inbound: Inbound) -> None:
        try:
            await inbound.run()
        finally:
            del self._inbound[id(inbound)]
            self.node.health.connections = len(self._inbound)


def _raise_file_limit(config: ServeConfig, log: Any) -> None:
    """Take as many file descriptors as the system gives; say so if connections_max does not fit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = needed = config.connections_max + SPARE_CONNECTIONS + OTHER_FILES
    if hard != resource.RLIM_INFINITY:
        count = min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
    if count < needed:
        log.warning(
            "file_limit", reason=f"{needed} files may be needed, and {hard} may be open: {FILES_REMEDY}"
        )
