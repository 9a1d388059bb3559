"""Records that another version of quorumq wrote: with more fields at the end of an array, or with fewer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from quorumq.core.messages import SpanRecord
from quorumq.core.messages.records import RecordsMerged
from quorumq.core.values.errors import StorageError
from quorumq.core.values.types import Kind, Record, Span
from quorumq.storage.records import decode_record, encode_record
from quorumq.wire import cbor
from spark.schemas import schema
from spark.source.journals import RECORDS_MERGED
from spark.source.options import read_options
from spark.source.stream import DeathsStream
from tests.spark.cluster_on_disk import ORDERS, PRODUCER_ID, DiskCluster, cause_of, mark, rows_of

Array = tuple[Any, ...]
Edit = Callable[[Array], Any]
EDITS: dict[str, Edit] = {
    "one more": lambda array: (*array, "new"),
    "one less": lambda array: array[:-1],
    "two less": lambda array: array[:-2],
    "null": lambda array: None,
}


def arrays(value: Any, path: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    """Yield the path to each array in a header, but for the one with its type."""
    if isinstance(value, tuple):
        if path:
            yield path
        for at, item in enumerate(value):
            yield from arrays(item, (*path, at))


def edited(value: Array, path: tuple[int, ...], edit: Edit) -> Any:
    if not path:
        return edit(value)
    at, *rest = path
    return (*value[:at], edited(value[at], tuple(rest), edit), *value[at + 1 :])


def header_of(record: RecordsMerged) -> Array:
    fields = cbor.load(encode_record(record, 0)[0], "a header")
    assert isinstance(fields, tuple)
    return fields


def seen(cluster: DiskCluster) -> list[list[dict[str, Any]]]:
    """Return the rows of a read, and of a stream."""
    data = ",".join(map(str, cluster.data[:1]))
    stream = DeathsStream(
        read_options({"table": "deadletters", "data": data}, stream=True), schema("deadletters")
    )
    tasks = stream.partitions({}, stream.latestOffset({}, None))
    rows = [row for task in tasks for batch in stream.read(task) for row in batch.to_pylist()]
    stream.stop()
    return [rows_of("deadletters", cluster.data[:1]), rows]


@pytest.mark.parametrize("name", EDITS)
def test_readers_take_a_record_like_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    cluster = DiskCluster(tmp_path)
    key = cluster.keys[0]
    assert key.topic == ORDERS
    cluster.publish(key, (Span(PRODUCER_ID, 0, 8),), 1_000)
    dead = [Record(0, 0, Kind.DEAD, cause_of(ballot, 1_000, "the same")) for ballot in (3, 4)]
    spans = (Span(PRODUCER_ID, 0, 1), Span(PRODUCER_ID, 1, 3), Span(PRODUCER_ID, 5, 8))
    records = (*dead, Record(0, 0, Kind.ACKED))
    entries = tuple(SpanRecord(span, record) for span, record in zip(spans, records, strict=True))
    merged = RecordsMerged(key, "billing", entries)
    cluster.nodes[0].store.append([merged])
    mark(cluster)
    load, whole = cbor.load, header_of(merged)
    for path in arrays(whole):
        changed = edited(whole, path, EDITS[name])
        try:
            plain = header_of(decode_record(changed))  # type: ignore[arg-type]
        except cbor.BadValue:
            plain = None
        results: list[Any] = []
        for given in (changed, plain):
            if given is None:
                continue

            def loaded(source: bytes, title: str = "CBOR", given: Array = given) -> Any:
                fields = load(source, title)
                if (
                    isinstance(fields, tuple)
                    and fields[0] == RECORDS_MERGED
                    and title == "the record's header"
                ):
                    return (*fields[:2], *given[2:])
                return fields

            monkeypatch.setattr(cbor, "load", loaded)
            try:
                results.append(seen(cluster))
            except StorageError as error:
                results.append("the record is intact but cannot be read" in str(error))
            monkeypatch.setattr(cbor, "load", load)
        assert results[0] == (True if plain is None else results[1]), path
    cluster.close()
