"""Hashes that are the same on every node: ranks of nodes for a chunk, and digests that two replicas compare."""

from __future__ import annotations

import functools
import hashlib

MASK = (1 << 64) - 1


@functools.lru_cache(maxsize=1024)
def salt_of(text: str) -> int:
    """Return 64 bits that depend on ``text`` alone (never on Python's hash seed)."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def mix(value: int) -> int:
    """Spread 64 bits (the finaliser of splitmix64): ranks must not follow patterns in the numbers."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)
