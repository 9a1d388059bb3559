"""A node's data directory, damaged as disks, operators and other programs do it, and the outcome of its starts."""

from __future__ import annotations

import contextlib
import functools
import random
from typing import Any, Final

import cbor2

from quorumq.core import messages as m
from quorumq.core.messages.effects import CleanStop
from quorumq.core.values.errors import StorageError, UsageError
from quorumq.core.values.limits import BATCH_BYTES_MAX
from quorumq.core.values.types import Death, Now, Stamp
from quorumq.node.commits import Finished
from quorumq.node.config import make_config
from quorumq.node.serve import open_node
from quorumq.storage.commit import ASIDE_SUFFIX, Commit
from quorumq.storage.damage import DamagedBatch
from quorumq.storage.disk import PAGE_BYTES
from quorumq.storage.journal import Journal
from quorumq.storage.segment import (
    MAGIC,
    NEW_SUFFIX,
    PREFIX,
    PREFIX_BYTES,
    encode_frame,
    salt_of,
    segment_name,
    segment_number,
)
from sim.memory_disk import MemoryDisk
from sim.shell.memory import Log
from tests.core.cluster import WALL_MS, Cluster
from tests.fuzz import shapes
from tests.fuzz.draw import rng_of
from tests.fuzz.run import Fuzzer

NAME: Final = "b"
DIRECTORY: Final = 77
OTHERS: Final = ((NAME, DIRECTORY + 1), ("c", DIRECTORY))
"""Owners of foreign files: an earlier directory of the node, and another node."""


def worn(name: str, directory: int) -> MemoryDisk:
    """The directory of a node that has worked a while: several segments, snapshots, deliveries, dead letters."""
    cluster = Cluster()
    disk = MemoryDisk()
    store = Journal.open(
        disk, node=name, cluster_id="test", new_directory_id=lambda: directory, reserve_bytes=0
    )
    list(store.replayed)
    store.roll([])
    store.commit()
    written = 0

    def write() -> None:
        nonlocal written
        for record in cluster.journals[name][written:]:
            store.append([record])
            written += 1
            if written % 3 == 0:
                store.commit()
        store.commit()

    topic = cluster.topic(partitions=2)
    for life in range(4):
        producer_id = cluster.ask("abc"[life % 3], m.OpenSession()).producer_id  # type: ignore[union-attr]
        for first in range(0, 12, 2):
            body = [b"payload %d " % first * (200 if first == 4 else 1), b"x"]
            cluster.ask("a", m.Publish(cluster.batch(topic, producer_id, first, body, first // 2 % 2)))
        reply: Any = cluster.ask("b", m.Fetch(("jobs",), "g", 9, 1 << 20, 1, 0.0, 5.0, 0.0))
        items = tuple(
            m.ReceiptPart(delivery.receipt, (delivery.receipt.span,))
            for part in reply.slices
            for delivery in part.deliveries
        )
        dead = Death(Stamp(0, ""), "rejected", "ValueError", "no such account")
        cluster.ask("b", m.RejectRequest(items[:2], 0.0, dead))
        cluster.ask("b", m.RejectRequest(items[2:3], 3.0))
        cluster.ask("b", m.AckRequest(items[3:]))
        cluster.advance(6.0)
        write()
        if life < 3:
            store.roll(lambda: cluster.nodes[name].snapshot(cluster.now))
            store.commit()
    store.close()
    return disk


Files = dict[str, bytes]


@functools.cache
def template(name: str = NAME, directory: int = DIRECTORY) -> Files:
    disk = worn(name, directory)
    return {file: disk.read(file, 0, disk.size(file)) for file in disk.list()}


def disk_of(files: Files) -> MemoryDisk:
    disk = MemoryDisk()
    for name, data in sorted(files.items()):
        file = disk.create(name)
        disk.append(file, [data])
        disk.sync(file)
        disk.close(file)
    disk.sync_dir()
    return disk


# ----------------------------------------------------------------------------------- damage


def a_range(rng: random.Random, data: bytes) -> tuple[int, int]:
    start = rng.randrange(len(data) + 1)
    return start, min(len(data), start + rng.choice((1, 4, 20, 100, 512, PAGE_BYTES)))


def flip(rng: random.Random, files: Files, name: str) -> None:
    data = bytearray(files[name])
    for _ in range(rng.choice((1, 1, 2, 20)) if data else 0):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    files[name] = bytes(data)


def zero(rng: random.Random, files: Files, name: str) -> None:
    start, stop = a_range(rng, files[name])
    files[name] = files[name][:start] + bytes(stop - start) + files[name][stop:]


def truncate(rng: random.Random, files: Files, name: str) -> None:
    files[name] = files[name][: rng.choice((0, 1, 20, rng.randint(0, len(files[name]))))]


def extend(rng: random.Random, files: Files, name: str) -> None:
    more = (bytes(rng.choice((1, 20, PAGE_BYTES))), rng.randbytes(30), MAGIC, files[name], files[name][-200:])
    files[name] += rng.choice(more)


def move_range(rng: random.Random, files: Files, name: str) -> None:
    """Blocks written to a wrong position: of this file or another one, in place or between."""
    chunk = files[rng.choice(sorted(files))]
    chunk = chunk[slice(*a_range(rng, chunk))]
    at = rng.randrange(len(files[name]) + 1)
    files[name] = files[name][:at] + chunk + files[name][at + rng.choice((0, len(chunk))) :]


def swap(rng: random.Random, files: Files, name: str) -> None:
    other = rng.choice(sorted(files))
    files[name], files[other] = files[other], files[name]


def duplicate(rng: random.Random, files: Files, name: str) -> None:
    number = rng.choice((0, 1, 2, 5, 6, 999_999_999_999))
    files[rng.choice((segment_name(number), name + NEW_SUFFIX, name + ASIDE_SUFFIX))] = files[name]


def delete(rng: random.Random, files: Files, name: str) -> None:
    del files[name]


def foreign_segment(rng: random.Random, files: Files, name: str) -> None:
    """A file of another directory, in place of one or beside it."""
    other = template(*rng.choice(OTHERS))
    segment = rng.choice(sorted(other))
    files[rng.choice((name, segment, segment_name(5)))] = other[segment]


def foreign_file(rng: random.Random, files: Files, name: str) -> None:
    files[rng.choice(FOREIGN)] = rng.choice((b"", b"hello", bytes(PAGE_BYTES), files[name]))


FOREIGN: Final = (
    "notes.txt", ".hidden", "lost+found", "1.journal", "000000000009.journal~", "00000000000x.journal",
    "000000000009.journal.new.new", "\u0660" * 12 + ".journal", "-000000000009.journal", "x" * 200,
    "000000000006.journal", "000000000006.journal.new", "000000000002.journal.damaged",
)  # fmt: skip


def reseal(rng: random.Random, files: Files, name: str) -> None:
    """Another record in place of one, with the right checksum: no disk does that, but software may."""
    data, number = files[name], segment_number(name)
    offsets, at = [], 0
    while data[at : at + len(MAGIC)] == MAGIC and len(data) >= at + PREFIX_BYTES:
        _, _, header, body, _ = PREFIX.unpack_from(data, at)
        offsets.append(at)
        at += PREFIX_BYTES + header + body
    if not offsets or number is None:
        return
    at = rng.choice(offsets)
    _, _, length, body, crc = PREFIX.unpack_from(data, at)
    try:
        fields = shapes.thaw(cbor2.loads(data[at + PREFIX_BYTES : at + PREFIX_BYTES + length]))
    except (cbor2.CBORError, ValueError):
        return
    if not isinstance(fields, list) or body > BATCH_BYTES_MAX:  # its length is damaged already
        return
    shapes.bend(rng, fields, lambda: shapes.strange(rng))
    changed = encode_frame(shapes.encode(fields), body, crc, salt_of(DIRECTORY, number) if at else 0)
    files[name] = data[:at] + changed + data[at + PREFIX_BYTES + length :]


DAMAGE: Final = (
    flip, flip, flip, zero, zero, truncate, extend, move_range, swap, duplicate, delete,
    foreign_segment, foreign_file, reseal, reseal, reseal,
)  # fmt: skip


def make(seed: int, n: int) -> tuple[Files, bool]:
    """Case ``n``: contents of the directory, and if a right checksum covers wrong bytes there."""
    rng, files, resealed = rng_of(seed, n), dict(template()), False
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        if files:
            damage = rng.choice(DAMAGE)
            damage(rng, files, rng.choice(sorted(files)))
            resealed |= damage is reseal
    return files, resealed


# ----------------------------------------------------------------------------------- starts


class AtOnce:
    """Runs each commit at once."""

    def start(self, commit: Commit, finished: Finished, *, here: bool) -> None:
        error: BaseException | None = None
        try:
            commit.run()
        except Exception as exc:
            error = exc
        finished(commit, error, 0.0)

    def close(self) -> None:
        pass


CONFIG: Final = make_config(
    {
        "node": NAME,
        "cluster_id": "test",
        "secret": "0123456789abcdef",
        "data_dir": "/nonexistent",
        "nodes": {name: f"127.0.0.1:{7401 + at}" for at, name in enumerate("abc")},
        "disk_reserve_bytes": 0,
    }
)


def use(disk: MemoryDisk, seconds: float) -> str:
    """Start a node on ``disk``, read all it has, let time pass, stop it; return its report of the directory.

    Raises:
        StorageError, UsageError: it did not start.
    """
    clock, log = [Now(seconds, WALL_MS + int(seconds * 1000))], Log()
    node = open_node(
        CONFIG, disk, log=log, commits=AtOnce(), clock=lambda: clock[0], rng=random.Random(int(seconds))
    )
    store = node.store
    for number in range(min(store.next_number, 1000)):
        if number in store:
            with contextlib.suppress(DamagedBatch):
                store.read_slice(number)
    for _ in range(3):
        clock[0] = Now(clock[0].mono + 20.0, clock[0].wall_ms + 20_000)
        node.feed()
    node.core.check(clock[0])
    store.check()
    said = "is not trusted" if store.not_trusted else "damaged batches" if store.damaged else ""
    node.fall_silent()
    node.feed(CleanStop())
    assert node.failed is None, (node.failed, log.lines[-3:])
    store.close()
    return said or ("said something" if store.notes else "sound")


def case(seed: int, n: int) -> tuple[str]:
    files, resealed = make(seed, n)
    disk = disk_of(files)
    try:
        said = use(disk, 1000.0)
    except (StorageError, UsageError) as error:
        return ("refused: " + type(error).__name__,)
    try:
        again = use(disk, 2000.0)
    except StorageError:
        if resealed:  # wrong content was believed, which only the next start can see
            return ("refused: at the next start",)
        raise
    assert resealed or again in ("sound", said), f"the first start said {said!r}, the next one {again!r}"
    return (said,)


DIRECTORIES: Final = Fuzzer(
    "directories", "Starts of a node on damaged data directories.", case, "directories"
)
