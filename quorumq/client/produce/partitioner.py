"""Choice of the partition of a message.

With a key, always the same one, in any process, version of Python or number of producers: the
hash is BLAKE2b, not `hash`. Without a key, one partition for a while and then the next, so that batches fill
instead of being spread thin.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable

from quorumq.core.values.errors import UsageError

Partitioner = Callable[[bytes | None, int], int]
"""Function of the key and the number of partitions (1 or more) to the number of the partition, from 0."""


def partition_of_key(key: bytes, partitions: int) -> int:
    """Return the partition of ``key``: BLAKE2b of 8 bytes, big-endian, modulo ``partitions``.

    Part of the API: it never changes.
    """
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big") % partitions


class DefaultPartitioner:
    """By key; without one, round robin that stays for ``sticky`` messages.

    Args:
        sticky: messages without a key that go to one partition before the next one's turn.
        rng: for the partition to begin with.
    """

    __slots__ = ("_at", "_remaining", "_sticky")

    def __init__(self, sticky: int = 64, rng: random.Random | None = None) -> None:
        if sticky < 1:
            raise UsageError(f"sticky is {sticky}: it must be at least 1")
        self._sticky = sticky
        self._remaining = sticky
        self._at = (rng or random.Random()).randrange(1 << 16)

    def __call__(self, key: bytes | None, partitions: int) -> int:
        if partitions == 1:
            return 0
        if key is not None:
            return partition_of_key(key, partitions)
        return self.runs(1, partitions)[0][0]

    def runs(self, count: int, partitions: int) -> list[tuple[int, int]]:
        """Return the partitions of ``count`` messages without a key, each with its number of messages, in order."""
        if partitions == 1:
            return [(0, count)]
        runs = []
        while count:
            if self._remaining == 0:
                self._at += 1
                self._remaining = self._sticky
            run = min(count, self._remaining)
            self._remaining -= run
            count -= run
            runs.append((self._at % partitions, run))
        return runs
