"""Scans of a segment: its records, its gaps, and the torn last write."""

from __future__ import annotations

import pytest
from crc32c import crc32c

from quorumq.storage.records import BATCH_STORED, DURABLE_MARK, SNAPSHOT_END
from quorumq.storage.scan import Frame, Gap, Scan
from quorumq.storage.segment import encode_frame
from quorumq.wire import cbor

SALT = 5
OTHER = 20


def record(kind: int, durable: int = 0, body: bytes = b"", salt: int = SALT) -> bytes:
    return encode_frame(b"\x82" + cbor.uint(kind) + cbor.uint(durable), len(body), crc32c(body), salt) + body


HEAD = record(1, salt=0) + record(OTHER) + record(SNAPSHOT_END)
BATCH = record(BATCH_STORED, body=b"payload")
ONE = record(OTHER)


def mark(*before: bytes) -> bytes:
    """A record that says that everything before it was durable."""
    return record(DURABLE_MARK, sum(map(len, before)))


def scan_of(data: bytes, *, check_bodies: bool = True) -> Scan:
    return Scan(lambda at, length: data[at : at + length], len(data), SALT, check_bodies=check_bodies)


def shown(scan: Scan, newest: bool = True) -> list[tuple[str, int]]:
    return [
        ("gap" if isinstance(item, Gap) else "damaged" if item.body_ok is False else "record", item.offset)
        for item in scan.records(newest=newest)
    ]


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.mark.parametrize("check_bodies", [True, False])
def test_a_last_write_that_is_not_all_there_is_torn_and_so_is_what_follows(check_bodies: bool) -> None:
    start = len(HEAD) + len(ONE)
    body = start + len(BATCH) - 1
    for data, reason in (
        (HEAD + ONE + BATCH[:-1], "a record reaches beyond byte"),
        (HEAD + ONE + BATCH[:9], "only 9 bytes are left"),
        (HEAD + ONE + flipped(BATCH, 0) + ONE, "no record begins here"),
        (flipped(HEAD + ONE + BATCH, body), "the body of the batch does not match"),
        (flipped(HEAD + ONE + BATCH + ONE, body), "the body of the batch does not match"),
        (flipped(HEAD + ONE + BATCH + bytes(30), body), "the body of the batch does not match"),
    ):
        scan = scan_of(data, check_bodies=check_bodies)
        assert shown(scan)[-1] == ("record", len(HEAD)), reason
        assert scan.torn is not None
        assert scan.torn.offset == start
        assert reason in scan.torn.reason
        assert scan.durable == len(HEAD), "the snapshot was, whatever is torn"


def test_an_unreadable_write_before_a_durable_mark_is_damage() -> None:
    before = HEAD + ONE + BATCH
    data = before + ONE + mark(before, ONE)
    scan = scan_of(flipped(data, len(before) - 1))
    assert ("damaged", len(HEAD + ONE)) in shown(scan)
    assert scan.torn is None
    assert scan.durable == len(before + ONE)

    scan = scan_of(flipped(data, len(before)))
    items = []
    for item in scan.records(newest=True):
        items.append(item)
        if len(HEAD) <= item.offset <= len(before):
            assert item.offset < scan.durable, "the witness counts before it comes itself"
    in_tail = [item.offset for item in items if item.offset >= len(HEAD)]
    assert in_tail == [len(HEAD), len(HEAD + ONE), len(before), len(before + ONE)]
    (gap,) = [item for item in items if isinstance(item, Gap)]
    assert (gap.offset, gap.stop) == (len(before), len(before + ONE))
    assert gap.witness is not None
    assert gap.witness.offset == gap.stop
    assert [item.offset for item in items] == sorted(item.offset for item in items), (
        "in the order of the file"
    )
    assert scan.torn is None


def test_a_torn_record_whose_header_is_there_is_a_witness_too() -> None:
    torn = record(BATCH_STORED, len(HEAD + ONE + ONE), b"payload")[:-1]
    scan = scan_of(HEAD + ONE + ONE + torn)
    assert len(shown(scan)) == 5
    assert scan.durable == len(HEAD + ONE + ONE)
    assert scan.torn is not None
    assert scan.torn.offset == scan.durable

    scan = scan_of(HEAD + ONE + flipped(ONE, 0) + torn)
    assert shown(scan)[-1] == ("gap", len(HEAD + ONE)), "damaged, and what is behind it torn"
    assert scan.torn is not None
    assert scan.torn.offset == len(HEAD + ONE + ONE)


def test_records_come_in_order_and_those_of_the_tail_once_they_are_known_to_be_durable() -> None:
    data = HEAD + ONE + ONE + mark(HEAD, ONE) + ONE
    scan = scan_of(data)
    known = [(item.offset, scan.durable) for item in scan.records(newest=True) if isinstance(item, Frame)]
    durable = len(HEAD + ONE)
    assert [offset for offset, _ in known] == [offset for _, offset in shown(scan_of(data), newest=False)]
    assert [seen for offset, seen in known if offset >= len(HEAD)] == [durable] * 4


def test_nothing_in_a_snapshot_or_in_an_older_segment_is_torn() -> None:
    bad = len(record(1, salt=0))
    for newest in (True, False):
        scan = scan_of(flipped(HEAD + ONE, bad))
        assert shown(scan, newest)[1] == ("gap", bad)
        assert scan.torn is None
    scan = scan_of(HEAD + BATCH[:-1])
    (*_, last) = scan.records()
    assert isinstance(last, Gap)
    assert last.frame is not None
    assert last.frame.type == BATCH_STORED
    assert scan.torn is None
    unended = flipped(HEAD, len(HEAD) - 1) + ONE[:-1]
    scan = scan_of(unended)
    assert shown(scan)[-1][0] == "gap"
    assert scan.torn is None, (
        "where the end of the snapshot cannot be read, nobody knows that this is the tail"
    )


def test_a_hole_is_passed_over_and_an_empty_file_has_nothing() -> None:
    data = flipped(HEAD, len(record(1, salt=0)))
    first = len(record(1, salt=0))
    holes = {first: first + len(record(OTHER))}
    items = list(scan_of(data).records(holes=holes))
    assert [item.offset for item in items] == [0, holes[first]]
    assert not any(isinstance(item, Gap) for item in items)
    to_the_end = {first: holes[first], holes[first]: len(data)}
    assert [item.offset for item in scan_of(data).records(holes=to_the_end)] == [0]
    assert list(scan_of(b"").records()) == []
    assert "the file is empty" in str(scan_of(b"").frame(0))
