"""One demo, from the first message to the verdict: the work, and the faults in the middle of it."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import trio

from quorumq.cli.probe import Unreachable
from quorumq.client import Client, MessageId, connect
from quorumq.client.client import suspending_clock
from quorumq.core.values.errors import QuorumqError, TooFewReplicas
from quorumq.history import HistoryWriter, producer_id_text
from quorumq.history.reader import read_history
from quorumq.lab.demo_input import Chunk, chunks_of_installation, installation_files, malformed_chunks
from quorumq.lab.demo_verdict import Account, Killed, MessageKey, Stopped, Tail, Verdict, check
from quorumq.lab.demo_view import NodeScene, Scene, View, Worker
from quorumq.lab.demo_worker import Options
from quorumq.lab.leash import end, logged
from quorumq.lab.local import HISTORIES, LocalCluster, NodeDied

TOPIC: Final = "demo"
GROUP: Final = "parsers"
RF: Final = 3
PARTITIONS: Final = 3
HOLD_S: Final = 5.0
"""Seconds of a hold and of hold_time_max: short, so that a person sees when a hold runs out or a quarantine ends."""

WORK_S: Final = 18.0
"""Least time that the work is made to last, in seconds: long enough for a hold to run out and a quarantine to end."""

DURATION_S: Final = 0.5
"""Time that a worker takes for a message, in seconds: well below a hold."""

CONCURRENCY_MAX: Final = 64
STOP_AT: Final = 0.31
KILL_AT: Final = 0.36
KILL_UNTIL: Final = 0.69
"""Shares of acked messages. A worker is stopped at the first, a node killed at the second, both before the last."""

LATE_SHARE: Final = 0.1
LATE_MAX: Final = 60
"""Most messages that are published at the moment of the kill, so that publishes are under way then."""

STOPPED_FOR_S: Final = HOLD_S + 1.5
AGAIN_PATIENCE_S: Final = 120.0
DOWN_FOR_S: Final = 2.0
POLL_S: Final = 0.1
STATUS_EVERY_S: Final = 0.4
PATIENCE_S: Final = 900.0
"""Seconds after which the demo gives up and names the missing messages. On an idle machine it takes half a minute."""

QUARANTINE_PATIENCE_S: Final = HOLD_S * 1.02 + 60.0
WORKER_STOP_S: Final = 60.0
WORKERS: Final = ("w1", "w2", "w3")
STOPPED_WORKER: Final = "w3"
KILLED_NODE: Final = "n2"


@dataclass(eq=False)
class Run:
    """One demo."""

    directory: Path  # for everything; exists and is empty
    out: Any  # the console to draw on
    malformed: dict[MessageKey, None] = field(default_factory=dict)
    dead_letters: dict[MessageKey, str] = field(default_factory=dict)  # at the end, with their error classes
    handed_over: int = 0  # messages to the publisher's client, to be published
    late: trio.Event = field(default_factory=trio.Event)  # the last messages are to be published
    late_answered: trio.Event = field(default_factory=trio.Event)  # the first of them is
    killed: Killed | None = None
    stopped: Stopped | None = None

    def __post_init__(self) -> None:
        self.histories = self.directory / HISTORIES
        self.run_name = f"demo-{time.time_ns() // 1_000_000}"
        self.scene = Scene()
        self.account, self.workers = self.scene.account, self.scene.workers
        self.view = View(self.scene, self.out)
        self.cluster: LocalCluster

    async def main(self) -> Verdict:
        """Run it all.

        Returns:
            the verdict; the cluster is stopped by then.

        Raises:
            NodeDied, QuorumqError: there was an error that is no part of the demo.
        """
        with self.view:
            self.cluster = LocalCluster(
                3, keep=self.directory, hold_time_max=HOLD_S, history=True,
                settings={"cluster_id": self.run_name}, tell=self.view.event,
            )  # fmt: skip
            self.scene.nodes = {name: NodeScene() for name in self.cluster.nodes}
            self.view.event("starting three nodes, and collecting source to parse")
            async with self.cluster:
                try:
                    chunks = await self._collect()
                    self.scene.expected = len(chunks)
                    await self._work(chunks)
                    await trio.to_thread.run_sync(self._stop_workers)
                finally:
                    self._stop_workers(patience=0.0)  # if they still run, it failed or was interrupted
            return self._check(len(chunks))

    # ------------------------------------------------------------------------- the work

    async def _collect(self) -> list[Chunk]:
        collected = await trio.to_thread.run_sync(
            lambda: [*malformed_chunks(), *chunks_of_installation(installation_files())],
            abandon_on_cancel=True,
        )
        # The malformed ones are at regular distances, so that every part of the run has some.
        ours = [chunk for chunk in collected if chunk.malformed]
        rest = [chunk for chunk in collected if not chunk.malformed]
        step = max(1, len(rest) // (len(ours) + 1))
        for index, chunk in enumerate(ours, 1):
            rest.insert(index * (step + 1) - 1, chunk)
        return rest

    async def _work(self, chunks: list[Chunk]) -> None:
        size = sum(len(chunk.source) for chunk in chunks)
        self.view.event(f"{len(chunks):,} messages to publish, {size / 1e6:.1f} MB")
        path = self.histories / "publisher.jsonl"
        with HistoryWriter(path, run=self.run_name, who="client:publisher", settings={"rf": RF}) as history:
            await self._work_through(chunks, history)

    async def _work_through(self, chunks: list[Chunk], history: HistoryWriter) -> None:
        # It learns of the other nodes, and asks this one for as long as it answers.
        async with connect(self.cluster.address(KILLED_NODE), history=history) as client:
            await client.create_topic(TOPIC, rf=RF, partitions=PARTITIONS)
            for name in WORKERS:
                self._start_worker(name, len(chunks))
            with trio.move_on_after(PATIENCE_S) as patience:
                async with trio.open_nursery() as background:
                    background.start_soon(self._watch_histories)
                    background.start_soon(self._watch_nodes)
                    async with trio.open_nursery() as parts:
                        parts.start_soon(self._publish, client, chunks)
                        parts.start_soon(self._stop_a_worker)
                        parts.start_soon(self._kill_a_node)
                        parts.start_soon(self._until_settled)
                    background.cancel_scope.cancel()
            if patience.cancelled_caught:
                self.view.event(f"not finished after {PATIENCE_S:g} s: giving up")
            with contextlib.suppress(TooFewReplicas):  # then they are missed
                async for item in client.peek(TOPIC, GROUP, "dead", complete=True):
                    death = item.peeked.record.death
                    name = "" if death is None else death.error_class or death.reason
                    self.dead_letters.update(dict.fromkeys(map(key_of, item.ids(b"")), name))

    async def _publish(self, client: Client, chunks: list[Chunk]) -> None:
        async def confirm(chunk: Chunk, pending: Any) -> None:
            key = key_of(await pending.wait())
            if self.late.is_set():
                self.late_answered.set()
            if chunk.malformed:
                self.malformed[key] = None
            self.account.published[key] = None

        late = len(chunks) - min(LATE_MAX, int(LATE_SHARE * len(chunks)))
        async with client.producer(TOPIC) as producer, trio.open_nursery() as nursery:
            for number, chunk in enumerate(chunks):
                if number == late:
                    await self.late.wait()
                message = chunk.message()
                pending = await producer.send(message.payload, headers=message.headers)
                self.handed_over += 1
                nursery.start_soon(confirm, chunk, pending)
        count = len(self.account.published)
        self.view.event(f"all {count:,} messages are published: on the disks of two nodes or three")

    def _start_worker(self, name: str, messages: int) -> None:
        at_once = max(2, min(CONCURRENCY_MAX, round(messages * DURATION_S / WORK_S / len(WORKERS))))
        path = self.histories / f"{name}.jsonl"
        nodes = self.cluster.addresses
        options = Options(name, self.run_name, nodes, TOPIC, GROUP, str(path), HOLD_S, at_once, DURATION_S)
        command = [sys.executable, "-m", "quorumq.lab.demo_worker", json.dumps(options)]
        process = logged(command, self.histories / f"{name}.log")
        self.workers[name] = Worker(name, Tail(path), process)

    def _read_histories(self) -> None:
        for worker in self.workers.values():
            for row in worker.tail.read():
                self.account.feed(dict(row))
                worker.account.feed(dict(row))
                if worker.state == "starting":
                    worker.state = "works"

    async def _watch_histories(self) -> None:
        while True:
            self._read_histories()
            for worker in self.workers.values():
                if worker.process.poll() is not None:
                    log = (self.histories / f"{worker.name}.log").read_text(errors="replace")[-2000:]
                    raise NodeDied(
                        f"worker {worker.name} ended with exit code {worker.process.returncode}; the end of its "
                        f"log:\n{log}"
                    )
            self.view.tick()
            await trio.sleep(POLL_S)

    async def _watch_nodes(self) -> None:
        while True:
            for name in self.cluster.nodes:
                fields = await self._status(name)
                if fields is not None:
                    scene = self.scene.nodes[name]
                    scene.held = held_in(fields)
                    scene.messages = sum(part["messages"] for part in fields["partitions"])
                    quarantine_s = fields["quarantine_s"]
                    scene.state = f"quarantine {quarantine_s:.1f} s" if quarantine_s > 0 else "up"
            await trio.sleep(STATUS_EVERY_S)

    async def _status(self, name: str) -> dict[str, Any] | None:
        if not self.cluster.running(name):
            if self.killed is None or self.killed.node != name or self.killed.started_again:
                raise NodeDied(
                    f"node {name} ended by itself; the end of its log:\n{self.cluster.log_tail(name)}"
                )
            return None
        try:
            return await trio.to_thread.run_sync(
                lambda: self.cluster.status(name, timeout=1.0), abandon_on_cancel=True
            )
        except (Unreachable, QuorumqError):
            return None

    async def _until_settled(self) -> None:
        while min(len(self.account.published), self.account.settled()) < self.scene.expected:
            await trio.sleep(POLL_S)
        self.view.event("every message is acked or rejected")

    # ----------------------------------------------------------------------- the faults

    @property
    def acked_share(self) -> float:
        """Return the share of the messages to publish that is acked."""
        return len(self.account.acks) / max(1, self.scene.expected)

    async def _acked(self, share: float) -> None:
        while self.acked_share < share:
            await trio.sleep(POLL_S / 4)

    async def _stop_a_worker(self) -> None:
        """SIGSTOP a worker in the middle of its work for longer than its holds last, and let it go on."""
        worker = self.workers[STOPPED_WORKER]
        await self._acked(STOP_AT)
        while self.acked_share < KILL_UNTIL:
            worker.process.send_signal(signal.SIGSTOP)
            began = time.monotonic()
            self._read_histories()  # it stands still: what it wrote until now is all there is
            held = worker.account.held_by(worker.who, suspending_clock())
            if held:
                break
            worker.process.send_signal(signal.SIGCONT)
            await trio.sleep(POLL_S / 2)
        else:
            return
        worker.state = "stopped"
        self.stopped = Stopped(worker.who, held)
        self.view.event(f"SIGSTOP to {worker.name}, which works on {held} messages: their holds will run out")
        before = self.account.redelivered
        await trio.sleep(STOPPED_FOR_S)
        with trio.move_on_after(AGAIN_PATIENCE_S):  # others may take what else there is first
            while self.account.redelivered <= before:
                await trio.sleep(POLL_S)
        worker.process.send_signal(signal.SIGCONT)
        self.stopped.seconds = time.monotonic() - began
        worker.state = "works"
        self.view.event(
            f"SIGCONT to {worker.name} after {self.stopped.seconds:.1f} s: now it acks what others got meanwhile"
        )

    async def _kill_a_node(self) -> None:
        """SIGKILL a node that has live holds, start it again, and wait for the end of its quarantine."""
        name = KILLED_NODE
        await self._acked(KILL_AT)
        held = 0
        while self.acked_share < KILL_UNTIL:
            fields = await self._status(name)
            held = held_in(fields) if fields is not None else 0
            if held:
                break
            await trio.sleep(POLL_S / 4)
        self.late.set()
        if not held:
            return
        await self.late_answered.wait()
        unanswered = self.handed_over - len(self.account.published)
        self.killed = Killed(name, self.acked_share, held)
        self.cluster.kill(name)
        self._read_histories()
        self.killed.acked_share = self.acked_share
        self.scene.nodes[name] = NodeScene("killed")
        self.view.event(
            f"SIGKILL to {name}, with {held} holds live on it, {unanswered} publishes unanswered and "
            f"{self.acked_share:.0%} of the messages acked"
        )
        await trio.sleep(DOWN_FOR_S)
        await self.cluster.start_async(name)
        self.killed.started_again = True
        self.view.event(
            f"{name} is started again; it votes for no hold until every hold it may have granted is over"
        )
        with trio.move_on_after(QUARANTINE_PATIENCE_S):
            while True:
                fields = await self._status(name)
                if fields is not None and fields["quarantine_s"] == 0:
                    self.killed.out_of_quarantine = True
                    self.view.event(f"{name} is out of quarantine")
                    return
                await trio.sleep(POLL_S)

    # -------------------------------------------------------------------------- the end

    def _stop_workers(self, patience: float = WORKER_STOP_S) -> None:
        """SIGTERM the workers, which finish their messages; kill them after ``patience`` seconds. Safe to repeat."""
        end((worker.process for worker in self.workers.values()), patience)

    def _check(self, expected: int) -> Verdict:
        account = Account()
        for row in read_history(sorted(self.histories.glob("*.jsonl"))):
            account.feed(row)
        account.dead_letters = self.dead_letters
        return check(
            account,
            malformed=self.malformed,
            killed=self.killed,
            stopped=self.stopped,
            hold_time=HOLD_S,
            expected=expected,
            seconds=self.scene.seconds,
        )


def key_of(message_id: MessageId) -> MessageKey:
    """Return a message of the demo as the checker knows it."""
    return TOPIC, message_id.partition.number, producer_id_text(message_id.producer_id), message_id.seq


def held_in(fields: dict[str, Any]) -> int:
    """Return the number of messages that are held for the workers' group at a node, by its status."""
    return sum(
        part["groups"].get(GROUP, {}).get("held", 0)
        for part in fields["partitions"]
        if part["topic"] == TOPIC
    )
