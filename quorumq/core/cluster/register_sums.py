"""Sums of the digests of a node's registers, kept as registers change, so that nodes exchange only what differs.

Each register belongs to one of `BUCKETS` buckets. A bucket's sum is that of the digests of its registers. A node sends
the sum of all its registers. A peer that has another sum answers with the sums of its buckets, and gets the registers
of those that differ. So a deleted name, whose register is kept for good, costs nothing on the wire. Registers that are
packed are summed up by `DeletedNames`, under the same digests, because nodes pack them at different times.

Places and digests are keyed with a secret of the cluster, because clients choose names: they could aim all of them at
one bucket, or have digests cancel out (docs/decisions/0021).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from quorumq.core.cluster.deleted_names import PAGES, SUMS_END, DeletedNames, key_of_register
from quorumq.core.values.limits import DIGEST_BYTES
from quorumq.core.values.types import Group, Latest, Topic

BUCKETS: Final = PAGES


class RegisterSums:
    """The sum of each bucket, and the registers in it that are not packed.

    Args:
        deleted: packed registers.
    """

    __slots__ = ("_deleted", "_registers", "_sums")

    def __init__(self, deleted: DeletedNames) -> None:
        self._deleted = deleted
        self._sums = [0] * BUCKETS
        self._registers: dict[int, dict[bytes, Topic | Group]] = {}  # by bucket, none if it is empty

    def bucket_of(self, register: Topic | Group) -> int:
        """Return the number of the bucket that a register belongs to. It depends on the name alone."""
        return self._deleted.index_of(key_of_register(register))

    def replace(self, before: Topic | Group | None, after: Topic | Group | None) -> None:
        """Count ``after`` in the place of ``before``, a register of the same name; None stands for no register."""
        register = before or after
        if register is None or before == after:
            return
        key = key_of_register(register)
        at = self._deleted.index_of(key)
        change = (self._digest(after) if after else 0) - (self._digest(before) if before else 0)
        self._sums[at] = (self._sums[at] + change) % SUMS_END
        if after is None:
            del self._registers[at][key]
            if not self._registers[at]:
                del self._registers[at]
        else:
            self._registers.setdefault(at, {})[key] = after

    def register_at(self, key: bytes) -> Topic | Group | None:
        """Return the register of this key, if there is one that is not packed."""
        return self._registers.get(self._deleted.index_of(key), {}).get(key)

    def of_bucket(self, bucket: int) -> list[Topic | Group]:
        """Return the registers of a bucket that are not packed."""
        return list(self._registers.get(bucket, {}).values())

    def root(self) -> bytes:
        return ((sum(self._sums) + sum(self._deleted.sums)) % SUMS_END).to_bytes(DIGEST_BYTES, "big")

    def all(self) -> bytes:
        return b"".join(self._totals())

    def _totals(self) -> Iterator[bytes]:
        for ours, packed in zip(self._sums, self._deleted.sums, strict=True):
            yield ((ours + packed) % SUMS_END).to_bytes(DIGEST_BYTES, "big")

    def differing(self, theirs: bytes) -> list[int]:
        """Return the buckets that have other sums in ``theirs``, which is as `all` returns it."""
        return [
            number
            for number, total in enumerate(self._totals())
            if total != theirs[number * DIGEST_BYTES : (number + 1) * DIGEST_BYTES]
        ]

    def check(self, registers: Iterable[Topic | Group]) -> None:
        """Assert that the sums equal those computed anew from all registers that are not packed."""
        anew = RegisterSums(self._deleted)
        for register in registers:
            anew.replace(None, register)
        assert self._sums == anew._sums, "sums of registers: kept are others than those computed anew"
        assert self._registers == anew._registers, "a register is in a bucket, and not there"

    def _digest(self, register: Topic | Group) -> int:
        packed = self._deleted.pack(register) if register.deleted else None
        if packed is not None:
            return self._deleted.digest(packed)
        # Numbers may be of another type on the node that got the request from the client.
        if isinstance(register, Topic):
            times = (float(register.retention_s), float(register.ttl_s), tuple(map(float, register.backoff)))
            register = register._replace(retention_s=times[0], ttl_s=times[1], backoff=times[2])
            return self._deleted.digest(repr(tuple(register)).encode())
        return self._deleted.digest(repr(tuple(register._replace(latest=Latest(register.latest)))).encode())
