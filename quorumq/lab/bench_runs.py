"""The benchmarks themselves: the commands that each gives its workers, and its evaluation of their reports."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple

from quorumq.core.values.errors import QuorumqError, UsageError
from quorumq.lab.bench_ledger import Ledger, VerificationFailed, percentiles
from quorumq.lab.leash import Leashed, end
from quorumq.lab.local import LocalCluster

SILENCE_MAX_S: Final = 60.0
"""Time without a line from any worker, in seconds, after which the run has failed."""


STOP_S: Final = 5.0
"""Time that workers may take to end, in seconds."""


class WorkerFailed(QuorumqError):
    """A producer or consumer process ended, or reported an error."""

    code = "worker-failed"
    exit_code = 70


class Told(NamedTuple):
    """A line from a worker."""

    worker: Worker
    line: dict[str, Any]


class Worker:
    """One producer or consumer process, with commands and reports as lines of JSON."""

    def __init__(self, name: str, said: queue.Queue[Told]) -> None:
        self.name = name
        self.process = Leashed(
            [sys.executable, "-m", "quorumq.lab.bench_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._said = said
        threading.Thread(target=self._read, name=f"read {name}", daemon=True).start()

    def tell(self, **command: Any) -> None:
        """Send a command. Its results arrive in the queue."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(command) + "\n")
            self.process.stdin.flush()
        except OSError:
            raise WorkerFailed(f"the {self.name} process is gone (exit code {self.process.poll()})") from None

    def close(self) -> None:
        """Give the pipes back after the process has ended."""
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        try:
            for line in self.process.stdout:
                self._said.put(Told(self, json.loads(line)))
        except ValueError:
            pass  # closed by `stop`, or a line cut short by the end of the process: "gone" says it
        self._said.put(Told(self, {"is": "gone"}))


@dataclass(eq=False)
class Bench:
    """One benchmark on one cluster: `phase` is called for the warm-up and for the measured run."""

    addresses: Sequence[str]  # addresses of the nodes
    options: Mapping[str, Any]  # as given on the command line
    progress: Callable[[str, int, int], None]  # called with what is done, how much of it, and of how much
    cluster: LocalCluster | None = None  # the nodes, if they were made for this
    timeline: list[tuple[float, int]] = field(default_factory=list)
    """Progress of the last step that `follow` followed: (seconds of the monotonic clock, messages done by then)."""
    processor: list[tuple[float, int]] = field(default_factory=list)
    """The same with seconds of processor time that the nodes had used, if that can be seen."""
    said: queue.Queue[Told] = field(default_factory=queue.Queue)
    workers: list[Worker] = field(default_factory=list)

    produces: ClassVar = "produce"
    """Command that producers get."""

    def __post_init__(self) -> None:
        try:
            self.producers = [
                self._worker(f"producer {index}") for index in range(self.options.get("producers", 1))
            ]
            consumers = self.options.get("consumers", self.options.get("groups", 1))
            self.consumers = [self._worker(f"consumer {index}") for index in range(consumers)]
            self._collect(self.workers, "ready")
        except BaseException:
            self.stop()
            raise

    def _worker(self, name: str) -> Worker:
        worker = Worker(name, self.said)
        self.workers.append(worker)
        worker.tell(do="connect", nodes=list(self.addresses))
        return worker

    def stop(self) -> None:
        end((worker.process for worker in self.workers), STOP_S)
        for worker in self.workers:
            worker.close()

    def phase(self, topic: str, messages: int) -> dict[str, Any]:
        """Run once with ``messages`` messages on a topic of its own; return the measurements."""
        raise NotImplementedError

    # -------------------------------------------------------------------- steps of a phase

    def setting(self, topic: str) -> dict[str, Any]:
        """Return the settings of one phase that producers and consumers need."""
        run = int.from_bytes(os.urandom(8), "big")
        return {
            "topic": topic,
            "run": run,
            "size": self.options["size"],
            "hold_time": self.options["hold_time"],
            **{
                name: self.options[name]
                for name in ("single", "tenths", "connections")
                if name in self.options
            },
        }

    def produce(self, setting: Mapping[str, Any], messages: int) -> None:
        share, rest = divmod(messages, len(self.producers))
        for index, worker in enumerate(self.producers):
            worker.tell(do=self.produces, producer=index, count=share + (index < rest), **setting)

    def consume(self, setting: Mapping[str, Any]) -> None:
        """Start the consumers; they go on until `finish`."""
        for worker in self.consumers:
            worker.tell(do="consume", **setting)

    def finish(self) -> list[dict[str, Any]]:
        """Have the consumers end; return the measurements of each."""
        for worker in self.consumers:
            worker.tell(do="stop")
        return self._collect(self.consumers, "consumed")

    def next(self) -> Told:
        """Return the next line from any worker.

        Raises:
            WorkerFailed: a worker is gone, or says that it failed, or all are silent for a minute.
            VerificationFailed: a worker found a payload that was not published.
        """
        try:
            message = self.said.get(timeout=SILENCE_MAX_S)
        except queue.Empty:
            raise WorkerFailed(
                f"nothing came from any worker for {SILENCE_MAX_S:g} s: look at the nodes' logs"
            ) from None
        kind = message.line.get("is")
        if kind == "gone":
            raise WorkerFailed(f"the {message.worker.name} process ended: its last words are above")
        if kind == "failed":
            error = VerificationFailed if message.line["code"] == VerificationFailed.code else WorkerFailed
            raise error(f"{message.worker.name}: {message.line['text']}")
        return message

    def _collect(self, workers: Sequence[Worker], kind: str) -> list[dict[str, Any]]:
        lines: dict[str, dict[str, Any]] = {}
        while len(lines) < len(workers):
            message = self.next()
            if message.line["is"] == kind:
                lines[message.worker.name] = message.line
        return [lines[worker.name] for worker in workers]

    def follow(
        self,
        label: str,
        ledgers: Mapping[str, Ledger],
        messages: int,
        *,
        published: bool = False,
        settled: bool = False,
        halfway: Callable[[], None] | None = None,
    ) -> list[dict[str, Any]]:
        """Take reports until all is published and/or settled by each group; the producers' last lines.

        Args:
            published, settled: reports to wait for.
            halfway: called when half of them are settled.
        """
        producers: list[dict[str, Any]] = []
        counts: dict[str, int] = {}
        total = messages * (len(ledgers) if settled else 1)
        done = 0
        self.timeline, self.processor = [(time.monotonic(), 0)], [(self.nodes_cpu_s() or 0.0, 0)]
        while (published and len(producers) < len(self.producers)) or (settled and done < total):
            message = self.next()
            line = message.line
            if line["is"] == "published":
                producers.append(line)
                for ledger in ledgers.values():
                    ledger.add_published(line["producer"], line["count"])
            elif line["is"] == "settled":
                ledgers[line["group"]].add_settled(line["runs"])
                ledgers[line["group"]].outcomes.update(line["outcomes"])
            if line["is"] in ("published", "publishing"):
                counts[message.worker.name] = line["count"]
            done = sum(one.settled for one in ledgers.values()) if settled else sum(counts.values())
            self.timeline.append((time.monotonic(), done))
            if self.options.get("tenths"):
                self.processor.append((self.nodes_cpu_s() or 0.0, done))
            self.progress(label, done, total)
            if halfway is not None and 2 * done >= total:
                halfway()
                halfway = None
        return producers

    def _of_nodes(self, file: str) -> list[list[str]]:
        """Return the words of a file of /proc for each node's process; nothing if there is no such file."""
        try:
            pids = [self.cluster.pid(name) for name in self.cluster.nodes] if self.cluster else []
            return [Path(f"/proc/{pid}/{file}").read_text().rpartition(")")[2].split() for pid in pids]
        except OSError:
            return []

    def memory_bytes(self) -> int | None:
        """Return the memory of the nodes in bytes, or None if it cannot be seen."""
        pages = [int(words[1]) for words in self._of_nodes("statm")]
        return sum(pages) * os.sysconf("SC_PAGE_SIZE") if pages else None

    def nodes_cpu_s(self) -> float | None:
        """Return processor seconds that the nodes have used so far; None if that cannot be seen."""
        ticks = [int(words[11]) + int(words[12]) for words in self._of_nodes("stat")]
        return sum(ticks) / os.sysconf("SC_CLK_TCK") if ticks else None


def _rate(messages: int, seconds: float) -> dict[str, Any]:
    return {"seconds": round(seconds, 3), "messages_per_s": round(messages / seconds)}


def _span_s(lines: Sequence[Mapping[str, Any]]) -> float:
    """Return seconds from the first start to the last end."""
    return float(max(line["ended_ns"] for line in lines) - min(line["began_ns"] for line in lines)) / 1e9


def tenths(points: Sequence[tuple[float, int]]) -> list[float]:
    """Return the cost of each tenth of all that was done, in the unit of the first item of each point."""
    total = points[-1][1]
    ends: list[float] = [points[0][0]]
    for (since, before), (at, done) in pairwise(points):
        while done > before and done * 10 >= len(ends) * total and len(ends) <= 10:
            # There are some reports a second: progress in between is taken for even.
            ends.append(since + (at - since) * (len(ends) * total / 10 - before) / (done - before))
    return [after - before for before, after in pairwise(ends)]


def by_tenth(timeline: Sequence[tuple[float, int]]) -> list[int]:
    """Return messages a second in each tenth of the run."""
    return [round(timeline[-1][1] / 10 / seconds) for seconds in tenths(timeline)]


def cpu_by_tenth(processor: Sequence[tuple[float, int]]) -> list[float]:
    """Return microseconds of processor time a message in each tenth of the run."""
    return [round(1e6 * seconds / (processor[-1][1] / 10), 1) for seconds in tenths(processor)]


def longest_pause_s(timeline: Sequence[tuple[float, int]]) -> float:
    """Return the longest time in which nothing was done."""
    times = [timeline[0][0], *(at for (_, before), (at, done) in pairwise(timeline) if done > before)]
    return max((after - before for before, after in pairwise(times)), default=0.0)


def _outcome(ledgers: Iterable[Ledger], produced: list[Any], consumed: list[Any]) -> dict[str, Any]:
    """Return the results that all workloads have."""
    outcomes: Counter[str] = Counter()
    for ledger in ledgers:
        outcomes.update(ledger.outcomes)
    legs = {
        "publish_ms": [value for line in produced for value in line["latencies"]],
        "publish_to_delivery_ms": [value for line in consumed for value in line["latencies"]],
        "ack_ms": [value for line in consumed for value in line["ack_latencies"]],
    }
    return {
        **{name: percentiles(values) for name, values in legs.items() if values},
        "redelivered": sum(line["redelivered"] for line in consumed),
        "outcomes": dict(outcomes),
        "clients_cpu_s": round(sum(line["cpu_s"] for line in [*produced, *consumed]), 3),
    }


class Drain(Bench):
    def phase(self, topic: str, messages: int) -> dict[str, Any]:
        setting, ledgers = self.setting(topic), {"bench": Ledger()}
        memory = self.memory_bytes()
        self.produce(setting, messages)
        produced = self.follow("publish", ledgers, messages, published=True)
        rates, cpu = {"publish": by_tenth(self.timeline)}, {"publish": self.processor}
        full = self.memory_bytes()
        restart_s = (
            self.restart_s() if self.options.get("tenths") and not topic.endswith("-warm-up") else None
        )
        self.consume(setting)
        self.follow("consume", ledgers, messages, settled=True)
        rates["consume"], cpu["consume"] = by_tenth(self.timeline), self.processor
        consumed = self.finish()
        ledgers["bench"].check()
        for line in consumed:  # how long messages waited for consumers to begin says nothing
            line["latencies"] = []
        figures = {
            "publish": _rate(messages, _span_s(produced)),
            "consume": _rate(messages, _span_s(consumed)),
            **_outcome(ledgers.values(), produced, consumed),
        }
        if not self.options.get("tenths"):
            return figures
        figures["tenths"] = rates
        if memory is not None and full is not None and self.cluster is not None:
            figures["node_bytes_a_message"] = round((full - memory) / messages / len(self.cluster.nodes))
        if any(points[-1][0] for points in cpu.values()):
            figures["cpu_tenths"] = {step: cpu_by_tenth(points) for step, points in cpu.items()}
            figures["nodes_cpu_s"] = round(sum(points[-1][0] - points[0][0] for points in cpu.values()), 3)
        if restart_s is not None:
            figures["restart_s"] = round(restart_s, 2)
        return figures

    def restart_s(self) -> float | None:
        """Kill a node, and start it again: how long until it answers."""
        if self.cluster is None:
            return None
        name = self.cluster.nodes[-1]
        self.cluster.kill(name)
        began = time.monotonic()
        self.cluster.start(name, timeout=SILENCE_MAX_S)
        return time.monotonic() - began


class FanIn(Drain):
    produces = "fan-in"


class Stream(Bench):
    repeats = False
    """True if a message may be acked twice."""

    def phase(self, topic: str, messages: int) -> dict[str, Any]:
        setting = self.setting(topic)
        groups = [f"bench-{index}" for index in range(self.options.get("groups", 1))]
        ledgers = {group: Ledger() for group in groups}
        for index, worker in enumerate(self.consumers):
            worker.tell(do="consume", **setting, group=groups[index % len(groups)])
        self.produce(setting, messages)
        produced = self.follow(
            "stream", ledgers, messages, published=True, settled=True, halfway=self.halfway(topic)
        )
        consumed = self.finish()
        for ledger in ledgers.values():
            ledger.check(repeats=self.repeats)
        began = min(line["began_ns"] for line in produced)
        seconds = (max(line["ended_ns"] for line in consumed) - began) / 1e9
        figures = {"stream": _rate(messages, seconds), "publish": _rate(messages, _span_s(produced))}
        if len(groups) > 1:
            figures["deliveries"] = _rate(messages * len(groups), seconds)
        return {**figures, **self.more(), **_outcome(ledgers.values(), produced, consumed)}

    def halfway(self, topic: str) -> Callable[[], None] | None:
        """Return the action for when half of the messages are through, or None."""
        return None

    def more(self) -> dict[str, Any]:
        return {}


class Degraded(Stream):
    repeats = True

    def halfway(self, topic: str) -> Callable[[], None] | None:
        if topic.endswith("-warm-up"):
            return None
        if self.cluster is None:
            raise UsageError("a node is killed: leave out --node, so that a cluster is made for it")
        self._killed_at = 0.0
        return self._kill

    def _kill(self) -> None:
        assert self.cluster is not None
        self.cluster.kill(self.cluster.nodes[-1])
        self._killed_at = time.monotonic()

    def more(self) -> dict[str, Any]:
        if not getattr(self, "_killed_at", 0.0):
            return {}
        before = [point for point in self.timeline if point[0] < self._killed_at]
        after = self.timeline[len(before) :]
        if not after:  # both halves were in one report
            return {}
        first, last = before[-1], after[-1]
        return {
            "before": _rate(first[1], first[0] - before[0][0]),
            "after": _rate(last[1] - first[1], last[0] - self._killed_at),
            "longest_pause_ms": round(1000 * longest_pause_s([first, *after])),
        }


class Latency(Bench):
    """One worker does everything: one message is measured alone, so nothing competes for its interpreter."""

    def phase(self, topic: str, messages: int) -> dict[str, Any]:
        setting, ledger = self.setting(topic), Ledger()
        self.producers[0].tell(do="one-by-one", count=messages, **setting)
        while True:
            line = self.next().line
            if line["is"] == "settled":
                ledger.add_published(0, line["published"])
                ledger.add_settled(line["runs"])
                ledger.outcomes.update(line["outcomes"])
                self.progress("one by one", ledger.settled, messages)
            elif line["is"] == "done":
                break
        ledger.check()
        return {
            "publish_ms": percentiles(line["publish"]),
            "publish_to_delivery_ms": percentiles(line["delivery"]),
            "ack_ms": percentiles(line["ack"]),
            "whole_ms": percentiles(line["whole"]),
            "redelivered": line["redelivered"],
            "outcomes": ledger.outcomes,
            "clients_cpu_s": round(line["cpu_s"], 3),
        }
