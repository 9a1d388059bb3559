"""The benchmarks themselves: what each tells its workers, and what it makes of what they say."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from quorumq.core.errors import QuorumqError
from quorumq.lab.bench_ledger import Ledger, VerificationFailed, percentiles
from quorumq.lab.leash import Leashed

SILENCE_MAX_S: Final = 60.0
"""When nothing at all comes from any worker for so long, the run has failed."""


class WorkerFailed(QuorumqError):
    """A producer or consumer process ended, or reported an error."""

    code = "worker-failed"
    exit_code = 70


class Told(NamedTuple):
    """A line from a worker."""

    worker: Worker
    line: dict[str, Any]


class Worker:
    """One producer or consumer process: a line of JSON in tells it what to do, lines of JSON come out."""

    def __init__(self, name: str, said: queue.Queue[Told]) -> None:
        self.name = name
        self._process = Leashed(
            [sys.executable, "-m", "quorumq.lab.bench_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._said = said
        threading.Thread(target=self._read, name=f"read {name}", daemon=True).start()

    def tell(self, **command: Any) -> None:
        """Send a command. What comes of it arrives in the queue."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
        except OSError:
            raise WorkerFailed(
                f"the {self.name} process is gone (exit code {self._process.poll()})"
            ) from None

    def stop(self) -> None:
        """End the process."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        try:
            for line in self._process.stdout:
                self._said.put(Told(self, json.loads(line)))
        except ValueError:
            pass  # closed by `stop`, or a line cut short by the end of the process: "gone" says it
        self._said.put(Told(self, {"is": "gone"}))


class Bench:
    """One benchmark on one cluster: `phase` is called for the warm-up and for the measured run.

    Args:
        addresses: of the nodes.
        options: as given on the command line.
        producers, consumers: how many processes of each.
        progress: called with (what, done, total).
    """

    def __init__(
        self,
        addresses: Sequence[str],
        options: Mapping[str, Any],
        producers: int,
        consumers: int,
        progress: Callable[[str, int, int], None],
    ) -> None:
        self.options = options
        self.progress = progress
        self.said: queue.Queue[Told] = queue.Queue()
        self.workers: list[Worker] = []
        self.producers: list[Worker] = []
        self.consumers: list[Worker] = []
        try:
            for index in range(producers):
                self.producers.append(self._worker(f"producer {index}", addresses))
            for index in range(consumers):
                self.consumers.append(self._worker(f"consumer {index}", addresses))
            self._others(addresses)
            self._collect(self.workers, "ready")
        except BaseException:
            self.stop()
            raise

    def _others(self, addresses: Sequence[str]) -> None:
        """More workers, for benchmarks with another division of labour."""

    def _worker(self, name: str, addresses: Sequence[str]) -> Worker:
        worker = Worker(name, self.said)
        self.workers.append(worker)
        worker.tell(do="connect", nodes=list(addresses))
        return worker

    def stop(self) -> None:
        """End all workers."""
        for worker in self.workers:
            worker.stop()

    def phase(self, topic: str, messages: int) -> dict[str, Any]:
        """Run once with so many messages on a topic of its own; what was measured."""
        raise NotImplementedError

    # -------------------------------------------------------------------- steps of a phase

    def setting(self, topic: str) -> dict[str, Any]:
        """What producers and consumers of one phase have to know."""
        run = int.from_bytes(os.urandom(8), "big")
        return {
            "topic": topic,
            "run": run,
            "size": self.options["size"],
            "hold_time": self.options["hold_time"],
        }

    def produce(self, setting: Mapping[str, Any], messages: int) -> None:
        """Tell producers to begin."""
        share, rest = divmod(messages, len(self.producers))
        for index, worker in enumerate(self.producers):
            worker.tell(do="produce", producer=index, count=share + (index < rest), **setting)

    def consume(self, setting: Mapping[str, Any]) -> None:
        """Tell consumers to begin; they go on until `finish`."""
        for worker in self.consumers:
            worker.tell(do="consume", **setting)

    def finish(self) -> list[dict[str, Any]]:
        """Have the consumers end; what each measured."""
        for worker in self.consumers:
            worker.tell(do="stop")
        return self._collect(self.consumers, "consumed")

    def next(self) -> Told:
        """The next line from any worker.

        Raises:
            WorkerFailed: a worker is gone, or says that it failed, or all are silent for a minute.
            VerificationFailed: a worker found a payload that is not what was published.
        """
        try:
            told = self.said.get(timeout=SILENCE_MAX_S)
        except queue.Empty:
            raise WorkerFailed(
                f"nothing came from any worker for {SILENCE_MAX_S:g} s: look at the nodes' logs"
            ) from None
        kind = told.line.get("is")
        if kind == "gone":
            raise WorkerFailed(f"the {told.worker.name} process ended: its last words are above")
        if kind == "failed":
            error = VerificationFailed if told.line["code"] == VerificationFailed.code else WorkerFailed
            raise error(f"{told.worker.name}: {told.line['text']}")
        return told

    def _collect(self, workers: Sequence[Worker], kind: str) -> list[dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        while len(found) < len(workers):
            told = self.next()
            if told.line["is"] == kind:
                found[told.worker.name] = told.line
        return [found[worker.name] for worker in workers]

    def follow(
        self, what: str, ledger: Ledger, messages: int, *, published: bool, settled: bool
    ) -> list[dict[str, Any]]:
        """Take reports until all is published and/or settled; the producers' last lines."""
        producers: list[dict[str, Any]] = []
        seen = 0
        while (published and len(producers) < len(self.producers)) or (settled and ledger.settled < messages):
            told = self.next()
            line = told.line
            if line["is"] == "published":
                producers.append(line)
                ledger.add_published(line["producer"], line["count"])
                seen += line["count"] if not settled else 0
            elif line["is"] == "settled":
                ledger.add_settled(line["runs"])
                ledger.add_outcomes(line["outcomes"])
            elif line["is"] == "publishing" and not settled:
                self.progress(what, line["count"], messages)
            self.progress(what, ledger.settled if settled else seen, messages)
        return producers


def _span_s(lines: Sequence[Mapping[str, Any]]) -> float:
    """Seconds from the first start to the last end."""
    return float(max(line["ended_ns"] for line in lines) - min(line["began_ns"] for line in lines)) / 1e9


class Drain(Bench):
    def phase(self, topic: str, messages: int) -> dict[str, Any]:
        setting, ledger = self.setting(topic), Ledger()
        self.produce(setting, messages)
        produced = self.follow("publish", ledger, messages, published=True, settled=False)
        self.consume(setting)
        self.follow("consume", ledger, messages, published=False, settled=True)
        consumed = self.finish()
        ledger.check()
        publish_s, consume_s = _span_s(produced), _span_s(consumed)
        return {
            "publish": {"seconds": round(publish_s, 3), "messages_per_s": round(messages / publish_s)},
            "consume": {"seconds": round(consume_s, 3), "messages_per_s": round(messages / consume_s)},
            "publish_ms": percentiles([value for line in produced for value in line["latencies"]]),
            "ack_ms": percentiles([value for line in consumed for value in line["ack_latencies"]]),
            "redelivered": sum(line["redelivered"] for line in consumed),
            "outcomes": ledger.outcomes,
        }


class Stream(Bench):
    def phase(self, topic: str, messages: int) -> dict[str, Any]:
        setting, ledger = self.setting(topic), Ledger()
        self.consume(setting)
        self.produce(setting, messages)
        produced = self.follow("stream", ledger, messages, published=True, settled=True)
        consumed = self.finish()
        ledger.check()
        began = min(line["began_ns"] for line in produced)
        seconds = (max(line["ended_ns"] for line in consumed) - began) / 1e9
        publish_s = _span_s(produced)
        return {
            "stream": {"seconds": round(seconds, 3), "messages_per_s": round(messages / seconds)},
            "publish": {"seconds": round(publish_s, 3), "messages_per_s": round(messages / publish_s)},
            "publish_ms": percentiles([value for line in produced for value in line["latencies"]]),
            "publish_to_delivery_ms": percentiles(
                [value for line in consumed for value in line["latencies"]]
            ),
            "ack_ms": percentiles([value for line in consumed for value in line["ack_latencies"]]),
            "redelivered": sum(line["redelivered"] for line in consumed),
            "outcomes": ledger.outcomes,
        }


class Latency(Bench):
    """One worker does everything: what is measured is one message alone, so nothing competes for its interpreter."""

    def _others(self, addresses: Sequence[str]) -> None:
        self.alone = self._worker("client", addresses)

    def phase(self, topic: str, messages: int) -> dict[str, Any]:
        setting, ledger = self.setting(topic), Ledger()
        self.alone.tell(do="one-by-one", count=messages, **setting)
        while True:
            line = self.next().line
            if line["is"] == "settled":
                ledger.add_published(0, line["published"])
                ledger.add_settled(line["runs"])
                ledger.add_outcomes(line["outcomes"])
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
        }


# --------------------------------------------------------------------------------------- a run
