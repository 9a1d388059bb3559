"""Sums of the digests of a node's registers, kept as registers change, so that nodes exchange only what differs.

Each register belongs to one of `BUCKETS` buckets. A bucket's sum is that of the digests of its registers. A node sends
the sum of all its registers. A peer that has another sum answers with the sums of its buckets, and gets the registers
of those that differ. So a deleted name, whose register is kept for good, costs nothing on the wire.

Places and digests are keyed with a secret of the cluster, because clients choose names: they could aim all of them at
one bucket, or have digests cancel out (docs/decisions/0021).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final

from quorumq.core.values.limits import DIGEST_BYTES, REGISTER_BUCKETS
from quorumq.core.values.types import Group, Latest, Topic

BUCKETS: Final = REGISTER_BUCKETS
_SUMS_END: Final = 1 << 8 * DIGEST_BYTES


class RegisterSums:
    """The sum of each bucket, and the registers in it.

    Args:
        key: secret that all nodes share, and no client knows.
    """

    __slots__ = ("_key", "_registers", "_sums")

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._sums = [0] * BUCKETS
        self._registers: list[dict[object, Topic | Group]] = [{} for _ in range(BUCKETS)]

    def bucket_of(self, register: Topic | Group) -> int:
        """Return the number of the bucket that a register belongs to. It depends on the name alone."""
        return self._hash(repr(_name_of(register)), 1)

    def replace(self, before: Topic | Group | None, after: Topic | Group | None) -> None:
        """Count ``after`` in the place of ``before``, a register of the same name; None stands for no register."""
        register = before or after
        if register is None or before == after:
            return
        at = self.bucket_of(register)
        change = (self._digest(after) if after else 0) - (self._digest(before) if before else 0)
        self._sums[at] = (self._sums[at] + change) % _SUMS_END
        if after is None:
            del self._registers[at][_name_of(register)]
        else:
            self._registers[at][_name_of(after)] = after

    def root(self) -> bytes:
        """Return the sum of all registers."""
        return (sum(self._sums) % _SUMS_END).to_bytes(DIGEST_BYTES, "big")

    def all(self) -> bytes:
        """Return the sums of all buckets."""
        return b"".join(each.to_bytes(DIGEST_BYTES, "big") for each in self._sums)

    def differing(self, theirs: bytes) -> tuple[list[Topic], list[Group]]:
        """Return the registers in buckets that have other sums in ``theirs``, which is as `all` returns it."""
        topics: list[Topic] = []
        groups: list[Group] = []
        for number, total in enumerate(self._sums):
            if (
                total.to_bytes(DIGEST_BYTES, "big")
                != theirs[number * DIGEST_BYTES : (number + 1) * DIGEST_BYTES]
            ):
                for register in self._registers[number].values():
                    if isinstance(register, Topic):
                        topics.append(register)
                    else:
                        groups.append(register)
        return topics, groups

    def check(self, registers: Iterable[Topic | Group]) -> None:
        """Assert that the sums equal those computed anew from all registers."""
        anew = RegisterSums(self._key)
        for register in registers:
            anew.replace(None, register)
        assert self._sums == anew._sums, "sums of registers: kept are others than those computed anew"
        assert self._registers == anew._registers, "a register is in a bucket, and not there"

    def _digest(self, register: Topic | Group) -> int:
        # Numbers may be of another type on the node that a request came to first.
        if isinstance(register, Topic):
            times = (float(register.retention_s), float(register.ttl_s), tuple(map(float, register.backoff)))
            register = register._replace(retention_s=times[0], ttl_s=times[1], backoff=times[2])
            return self._hash(repr(tuple(register)), DIGEST_BYTES)
        return self._hash(repr(tuple(register._replace(latest=Latest(register.latest)))), DIGEST_BYTES)

    def _hash(self, text: str, size: int) -> int:
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=size, key=self._key).digest(), "big")


def _name_of(register: Topic | Group) -> object:
    return (register.topic, register.name) if isinstance(register, Group) else register.name
