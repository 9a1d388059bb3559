"""docs/file-format.md is enough to read a journal: the reader below knows only that page, struct and CBOR."""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Any

import cbor2

from quorumq.core.messages.records import BatchStored, RecordsMerged, Reserved
from quorumq.core.values.types import Kind
from quorumq.storage.disk import RealDisk
from quorumq.storage.records import TYPE_OF
from quorumq.wire.batch import Message, build_batch
from sim.memory_disk import MemoryDisk
from tests.storage.samples import (
    PARTITION,
    PRODUCER_ID,
    batch,
    clean_stop,
    dead,
    newest,
    open_store,
    start,
    tombstone,
)

DOC = Path(__file__).parents[2] / "docs" / "file-format.md"


# ------------------------------------------------------------------ a reader written from the page alone


def castagnoli(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


class Reader:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.batches: dict[int, tuple[list[Any], bytes]] = {}
        self.records: dict[tuple[tuple[bytes, int], str, tuple[Any, ...], int], list[Any]] = {}
        self.damaged: list[int] = []
        name = max(path.name for path in directory.glob("*.journal"))
        self.gone: dict[int, set[int]] = {}  # by segment; 0: everywhere
        start = self.read(name, None, None)
        newest, self.batches = self.batches, {}
        for segment, length, _ in start[6]:
            self.read(
                f"{segment:012d}.journal", length, {offset for s, offset in start[8 - 1] if s == segment}
            )
        for number, stored in newest.items():
            if number not in self.gone.get(0, ()):
                self.batches[number] = stored

    def header(self, data: bytes, at: int, salt: bytes) -> tuple[list[Any], int, int] | None:
        """Header, begin of the body, end of the record."""
        if data[at : at + 4] != b"qjR1" or len(data) < at + 20:
            return None
        crc, head, body, _ = struct.unpack_from("<IIII", data, at + 4)
        if head > 16 << 20 or body > 4 << 20 or castagnoli(salt + data[at + 8 : at + 20 + head]) != crc:
            return None
        return cbor2.loads(data[at + 20 : at + 20 + head]), at + 20 + head, at + 20 + head + body

    def read(self, name: str, length: int | None, known_damaged: set[int] | None) -> list[Any]:
        data = (self.directory / name).read_bytes()[:length]
        header = self.header(data, 0, b"")
        assert header is not None
        start = header[0]
        assert (start[0], start[2]) == (1, 1)
        salt = struct.pack("<QQ", start[5], start[6])
        at = header[2]
        while at < len(data):
            header = self.header(data, at, salt)
            torn = header is None or header[2] > len(data)
            if header is not None and not torn:
                fields, body_at, end = header
                good = castagnoli(data[body_at:end]) == struct.unpack_from("<I", data, at + 16)[0]
                if not good:
                    torn = length is None and not self.said_durable(data, at, salt)
                if not torn:
                    if not good or (known_damaged and at in known_damaged):
                        self.damaged.append(fields[2])
                    elif fields[0] == 23 or (fields[0] == 6 and not fields[3]):
                        number, batch_header = fields[2:4] if fields[0] == 23 else fields[2][:2]
                        if number not in self.gone.get(start[6], set()) | self.gone.get(0, set()):
                            self.batches[number] = (cbor2.loads(batch_header), data[body_at:end])
                    elif fields[0] == 5 and length is None:
                        for first, stop in fields[2]:
                            self.gone.setdefault(fields[3], set()).update(range(first, stop))
                    elif fields[0] == 24 and length is None:
                        self.merge(fields)
                    at = end
                    continue
            assert length is None, f"damage in {name} at {at}"
            assert not self.said_durable(data, at, salt), f"damage in {name} at {at}"
            break
        return [None, *start[1:6], start[7], start[8]]

    def said_durable(self, data: bytes, at: int, salt: bytes) -> bool:
        hits = [hit.start() for hit in re.finditer(b"qjR1", data) if hit.start() > at]
        return any(
            header is not None and header[0][1] > at
            for hit in hits
            for header in [self.header(data, hit, salt)]
        )

    def merge(self, fields: list[Any]) -> None:
        _, _, (topic, partition), group, entries, again = fields[:6]
        for entry, other in again:
            death = entries[entry][1][3]
            death[1:15] = entries[other][1][3][1:15]
        for (producer_id, first, stop), record in entries:
            for seq in range(first, stop):
                key = ((topic, partition), group, tuple(producer_id), seq)
                generation, n, kind = record[:3]
                rank = (generation, kind == 4, n, kind)
                old = self.records.get(key)
                if old is None or rank > (old[0], old[2] == 4, old[1], old[2]):
                    self.records[key] = record

    def dead_letters(self) -> list[tuple[int, str, bytes]]:
        """(seq, the dead letter's message, payload)."""
        rows = []
        for key, record in self.records.items():
            if record[2] == 2:
                partition, _, producer_id, seq = key
                rows.append((seq, record[3][3], self.payload(partition, producer_id, seq)))
        return sorted(rows)

    def payload(self, partition: tuple[bytes, int], producer_id: tuple[Any, ...], seq: int) -> bytes:
        for header, body in self.batches.values():
            index = 0
            for *who, first, count in header[3]:
                if (
                    tuple(who) == producer_id
                    and first <= seq < first + count
                    and (header[1], header[2]) == partition
                ):
                    ends = (0, *struct.unpack(f"<{len(header[5]) // 4}I", header[5]))
                    index += seq - first
                    payload: bytes = cbor2.loads(body[ends[index] : ends[index + 1]])[2]
                    return payload
                index += count
        raise LookupError(f"{producer_id} {seq}")


# ------------------------------------------------------------------ tests


def test_the_reader_from_the_page_finds_every_batch_and_dead_letter(tmp_path: Path) -> None:
    store, _ = start(RealDisk(tmp_path))
    state: list[Any] = []

    def append(*records: Any) -> None:
        store.append(records)
        state.extend(record for record in records if isinstance(record, RecordsMerged))

    many = build_batch(
        PARTITION, PRODUCER_ID, 100, 5, [Message(f"part {n}".encode(), headers={"n": n}) for n in range(5)]
    )
    append(batch(0), batch(1, partition=1), dead(0, "first"), dead(1, "acked later"), Reserved(5))
    store.commit()
    store.roll(list(state))
    append(batch(2), batch(3), tombstone(1), dead(3, "third"))
    store.commit()
    store.roll(list(state))
    append(BatchStored(4, many, 6), dead(102, "in the middle of a batch"), *map(batch, range(5, 9)))
    store.drop([6])
    store.roll(list(state))
    store.drop([2])  # leaves 3 alone in its segment: it is moved, and has to be found once
    store.commit()
    store.compact()
    assert store._index.get(3).segment == max(store.live)  # type: ignore[union-attr]
    store.drop([5])
    store.commit()
    both = [dead(number, "of both").entries[0] for number in (7, 8)]
    append(tombstone(0, Kind.PURGED), RecordsMerged(PARTITION, "billing", tuple(both)), clean_stop())
    store.close()
    with open(sorted(tmp_path.glob("*.journal"))[-1], "ab") as file:
        file.write(b"qjR1 a torn tail")

    reader = Reader(tmp_path)
    assert sorted(reader.batches) == [0, 1, 3, 4, 7, 8]
    assert reader.batches[4][1] == many.body
    assert reader.dead_letters() == [
        (3, "third", bytes(cbor2.loads(bytes(batch(3).batch.body))[2])),
        (7, "of both", bytes(cbor2.loads(bytes(batch(7).batch.body))[2])),
        (8, "of both", bytes(cbor2.loads(bytes(batch(8).batch.body))[2])),
        (102, "in the middle of a batch", b"part 2"),
    ]
    store, replayed = start(RealDisk(tmp_path))
    assert [record.number for record in replayed if isinstance(record, BatchStored)] == [
        0, 1, 3, 4, 7, 8,
    ]  # fmt: skip
    store.close()
    assert sorted(Reader(tmp_path).batches) == [0, 1, 3, 4, 7, 8], "the snapshot says what was forgotten"


def test_the_page_lists_every_record_type_with_its_fields() -> None:
    rows = re.findall(r"^\| (\d+) \| ([A-Z]\w+) \|([^|]*)\|$", DOC.read_text(), re.MULTILINE)
    listed = {
        int(number): (name, [f.strip() for f in fields.split(",") if f.strip()])
        for number, name, fields in rows
    }
    assert listed == {number: (cls.__name__, list(cls._fields)) for cls, number in TYPE_OF.items()}


def example() -> bytes:
    disk = MemoryDisk()
    store = open_store(disk)
    list(store.replayed)
    store.roll([])
    store.append([BatchStored(7, build_batch(PARTITION, PRODUCER_ID, 0, 1000, [Message(b"hello")]), 1001)])
    store.commit()
    return disk.read(newest(disk), 0, 1 << 20)


def dump(data: bytes) -> str:
    lines = []
    for at in range(0, len(data), 16):
        row = data[at : at + 16]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{at:08x}  {row.hex(' '):<47}  {text}")
    return "\n".join(lines)


def test_the_dump_in_the_page_is_what_the_code_writes() -> None:
    assert DOC.read_text().split("```")[-2].strip("\n") == dump(example())
