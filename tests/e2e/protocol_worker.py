"""A process that sends and receives in one protocol (protocols.py), for tests that kill its gateway and nodes.

python -m tests.e2e.protocol_worker PROTOCOL TOPIC NODES URLS RECORD

NODES and URLS are separated by commas. It sends until its standard input ends, and receives until SIGTERM. RECORD gets
a line for each text: ``sent``, ``shown`` or ``settled``, the text, and a time on the clock of this machine, by which
the text was stored or settled, or before which it cannot have been fetched.
"""

from __future__ import annotations

import itertools
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Final

from tests.e2e.protocols import BATCH, PROTOCOLS, Failed, ProtocolClient

PAUSE_S: Final = 0.5
"""Seconds between two batches that are sent."""
AGAIN_S: Final = 0.1
TRIES: Final = 50
"""Tries to settle messages. They are redelivered afterwards."""


class Record:
    """The file of one process, to which two threads add lines."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._lock = threading.Lock()

    def add(self, event: str, texts: list[str], at: float) -> None:
        """Add lines."""
        with self._lock, self._path.open("a") as file:
            file.write("".join(f"{event} {text} {at}\n" for text in texts))


def send(client: ProtocolClient, name: str, over: threading.Event, record: Record) -> None:
    """Send a batch twice a second. A text that may be stored is not sent again."""
    numbers = itertools.count()
    while not over.wait(PAUSE_S):
        try:
            stored = client.send([f"{name}.{next(numbers)}" for _ in range(BATCH)])
        except Failed:
            continue
        record.add("sent", stored, time.monotonic())


def receive(client: ProtocolClient, over: threading.Event, record: Record) -> None:
    """Receive and settle."""
    while not over.is_set():
        began = time.monotonic() - client.shown_s
        try:
            deliveries = client.receive()
        except Failed:
            over.wait(AGAIN_S)
            continue
        record.add("shown", [one.text for one in deliveries], began)
        for _ in range(TRIES if deliveries else 0):
            try:
                confirmed = client.settle(deliveries)
            except Failed:
                over.wait(AGAIN_S)
                continue
            settled = [one.text for one, is_so in zip(deliveries, confirmed, strict=True) if is_so]
            record.add("settled", settled, time.monotonic())
            break


def main(kind: str, topic: str, nodes: str, urls: str, path: str) -> None:
    sent, over, record = threading.Event(), threading.Event(), Record(path)
    sender, receiver = (PROTOCOLS[kind](topic, nodes.split(","), urls.split(",")) for _ in range(2))
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    failures: list[BaseException] = []

    def guarded(target: object, *args: object) -> None:
        try:
            target(*args)  # type: ignore[operator]
        except BaseException as error:
            failures.append(error)
            sent.set()
            over.set()
            raise

    threads = [
        threading.Thread(target=guarded, args=(send, sender, kind, sent, record)),
        threading.Thread(target=guarded, args=(receive, receiver, over, record)),
    ]
    threading.Thread(target=lambda: (sys.stdin.read(), sent.set()), daemon=True).start()
    for thread in threads:
        thread.start()
    while not over.wait(1.0):
        pass
    sent.set()
    for thread in threads:
        thread.join()
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
