"""Check that a benchmark measured a queue that works.

A queue that loses one message in a thousand, or delivers half of them twice, can be very fast. So every
message of a benchmark has its producer, its number, and its time, under a digest of its whole payload. A
consumer that takes it recomputes the digest. The ledger counts, for each message one by one, how often it was acked.
A run counts only if that is once for each message that was published, and none else.
"""

from __future__ import annotations

import hashlib
import struct
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from quorumq.core.values.errors import QuorumqError, UsageError

_HEAD: Final = struct.Struct(">16sQIQQ")
"""digest, run, producer, number, published (nanoseconds of the machine's monotonic clock)"""

DIGEST_BYTES: Final = 16
PAYLOAD_BYTES_MIN: Final = _HEAD.size


class VerificationFailed(QuorumqError):
    """A benchmark's messages were lost, doubled or altered. Its numbers mean nothing, and this is a bug."""

    code = "verification-failed"
    exit_code = 70


class Stamped(NamedTuple):
    """Fields that a payload has of itself."""

    run: int
    producer: int
    number: int
    published_ns: int


class Payloads:
    """Makes and checks the payloads of one run."""

    def __init__(self, run: int, size: int) -> None:
        if size < PAYLOAD_BYTES_MIN:
            raise UsageError(f"--size {size}: a verified payload takes at least {PAYLOAD_BYTES_MIN} bytes")
        self.run = run
        self.size = size
        # Filler that does not compress, the same in all of a run's payloads: making it anew for each message
        # would measure the making.
        self._filler = hashlib.shake_256(run.to_bytes(8, "big")).digest(size - _HEAD.size)

    def make(self, producer: int, number: int, published_ns: int) -> bytes:
        rest = _HEAD.pack(b"", self.run, producer, number, published_ns)[DIGEST_BYTES:] + self._filler
        return hashlib.blake2b(rest, digest_size=DIGEST_BYTES).digest() + rest

    def check(self, payload: bytes) -> Stamped:
        """Return the fields of a payload; VerificationFailed if this run did not publish exactly it."""
        if len(payload) != self.size:
            raise VerificationFailed(
                f"a payload of {len(payload)} bytes was delivered: {self.size} were published"
            )
        digest, run, producer, number, published_ns = _HEAD.unpack_from(payload)
        if hashlib.blake2b(payload[DIGEST_BYTES:], digest_size=DIGEST_BYTES).digest() != digest:
            raise VerificationFailed(f"a payload was altered: its digest is not {digest.hex()}, as it says")
        if run != self.run:
            raise VerificationFailed(
                f"a message of another run was delivered: {run:016x}, not {self.run:016x}"
            )
        return Stamped(run, producer, number, published_ns)


class Ledger:
    """Number of times that each message was settled, as producers and consumers report it."""

    def __init__(self) -> None:
        self._published: dict[int, int] = {}
        self._acked: dict[int, bytearray] = {}
        self.settled = 0  # different messages
        self.outcomes: Counter[str] = Counter()  # messages by verdict
        self.repeats: list[tuple[int, int]] = []

    @property
    def published(self) -> int:
        """Return the number of messages whose publish was answered OK."""
        return sum(self._published.values())

    def add_published(self, producer: int, count: int) -> None:
        """Note that ``producer`` published its messages up to ``count``, and each was answered OK."""
        self._published[producer] = max(count, self._published.get(producer, 0))

    def add_settled(self, runs: Iterable[Sequence[int]]) -> None:
        """Note that acks were answered for these (producer, start, stop) runs of numbers."""
        for producer, start, stop in runs:
            counts = self._acked.setdefault(producer, bytearray())
            if stop > len(counts):
                counts.extend(bytes(max(stop, 2 * len(counts)) - len(counts)))
            for number in range(start, stop):
                if counts[number]:
                    self.repeats.append((producer, number))
                else:
                    self.settled += 1
                counts[number] = min(counts[number] + 1, 255)

    def check(self, *, repeats: bool = False) -> None:
        """Check that every published message was acked exactly once, and nothing else was.

        Args:
            repeats: True if a node was killed: some messages may be acked twice.

        Raises:
            VerificationFailed: with the counts, and the first messages concerned.
        """
        problems = []
        missing = [
            (producer, number)
            for producer, count in sorted(self._published.items())
            for number in range(count)
            if not self._count(producer, number)
        ]
        unknown = [
            (producer, number)
            for producer, counts in sorted(self._acked.items())
            for number in range(self._published.get(producer, 0), len(counts))
            if counts[number]
        ]
        for messages, problem in (
            (missing, "published and never acked"),
            ([] if repeats else self.repeats, "acked more than once"),
            (unknown, "acked and never published"),
        ):
            if messages:
                first = ", ".join(f"{producer}/{number}" for producer, number in messages[:5])
                problems.append(
                    f"{len(messages)} {problem} (producer/number {first}{', …' if len(messages) > 5 else ''})"
                )
        if problems:
            raise VerificationFailed(
                f"of {self.published} messages, {'; '.join(problems)}: the numbers of this run mean nothing. "
                "Please report it, with --keep for the nodes' directories"
            )

    def _count(self, producer: int, number: int) -> int:
        counts = self._acked.get(producer, b"")
        return counts[number] if number < len(counts) else 0


def runs_of(numbers: Iterable[tuple[int, int]]) -> list[list[int]]:
    """Return (producer, number) pairs as [producer, start, stop] runs, in the order given; repeats stay repeats."""
    runs: list[list[int]] = []
    for producer, number in numbers:
        if runs and runs[-1][0] == producer and runs[-1][2] == number:
            runs[-1][2] = number + 1
        else:
            runs.append([producer, number, number + 1])
    return runs


def percentiles(seconds: Sequence[float]) -> dict[str, Any]:
    """Return latencies in milliseconds, by nearest rank; empty if there are none."""
    if not seconds:
        return {}
    ordered = sorted(seconds)

    def rank(per_mille: int) -> float:
        return round(1000 * ordered[-(-per_mille * len(ordered) // 1000) - 1], 3)

    return {
        "count": len(ordered),
        "p50": rank(500),
        "p99": rank(990),
        "p999": rank(999),
        "max": round(1000 * ordered[-1], 3),
    }
