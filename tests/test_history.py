"""The history: every kind survives writing and reading, the command prints the schema, and nonsense is named."""

from __future__ import annotations

import gzip
import io
import json
import os
from itertools import takewhile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumq.core.values.errors import NotFound
from quorumq.core.values.types import Incarnation, Owner, ProducerId, Span, Stamp
from quorumq.history import (
    COMMON,
    FIELDS,
    KINDS,
    HistoryError,
    HistoryWriter,
    check_row,
    owner_text,
    parse_owner,
    parse_producer_id,
    producer_id_text,
    spans_value,
    token_text,
)
from quorumq.history.__main__ import lines
from quorumq.history.reader import histories_of, read_history

PAGE = Path(__file__).parents[1] / "docs" / "history.md"
PRODUCER_ID = ProducerId("node-a", 3, (1 << 64) - 1, 7)
OWNER = Owner("node-b", Incarnation(2, 255), Stamp(1 << 57, "node-b"))

EXAMPLES: dict[str, object] = {
    "text": "some text",
    "texts": ["a", "b"],
    "integer": 3,
    "number": 1.5,
    "flag": True,
    "object": {"x": 1},
    "spans": spans_value([Span(PRODUCER_ID, 0, 10)]),
    "owner": owner_text(OWNER),
    "token": token_text(OWNER.ballot),
    "who": "sim",
    "links": [["a", "b"]],
}
WRONG: dict[str, object] = {
    "text": 1,
    "texts": [1],
    "integer": True,
    "number": "1",
    "flag": 1,
    "object": [],
    "spans": [["a.1.ff.1", 5, 5]],
    "owner": "nobody",
    "token": "12@a",
    "who": "c1",
    "links": [["a"]],
}


def full_row(kind: str) -> dict[str, object]:
    """A line of this kind with every field that it may have."""
    spec = KINDS[kind]
    writer = spec.writers[0]
    row: dict[str, object] = {
        "run": "r",
        "who": writer if writer == "sim" else f"{writer}:x",
        "at": 1.25,
        "wall_ms": 1_700_000_000_000,
        "within": 0.0,
        "kind": kind,
    }
    for name in (*spec.required, *spec.optional):
        row[name] = EXAMPLES[FIELDS[name].shape]
    if spec.outcomes:
        row["outcome"] = spec.outcomes[-1]
    if kind == "settings":
        row["history"] = 1
    return row


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_kind_survives_writing_and_reading(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    row = full_row(kind)
    with HistoryWriter(path, run="r", who=str(row["who"])) as writer:
        fields = {name: value for name, value in row.items() if name not in ("run", "kind")}
        writer.write(kind, **fields)
    assert list(read_history([path]))[1] == row


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_field_of_every_kind_is_checked(kind: str) -> None:
    row = full_row(kind)
    assert check_row(row) == ""
    for name in (*COMMON, *KINDS[kind].required):
        assert f"'{name}' is missing" in check_row({key: row[key] for key in row if key != name})
    for name in row:
        if name not in ("run", "kind"):
            shape = (COMMON.get(name) or FIELDS[name]).shape
            assert name in check_row({**row, name: WRONG[shape]})


def test_every_field_is_of_use() -> None:
    assert {name for spec in KINDS.values() for name in (*spec.required, *spec.optional)} == set(FIELDS)
    for spec in KINDS.values():
        assert bool(spec.outcomes) <= ("outcome" in (*spec.required, *spec.optional))


def test_the_command_prints_every_kind_and_field() -> None:
    rows = list(lines())
    for name, field in (*COMMON.items(), *FIELDS.items()):
        assert f"  {name} ({field.shape}): {field.meaning}" in rows
    for name, kind in KINDS.items():
        block = takewhile(
            lambda row: row.startswith("    "), rows[rows.index(f"  {name}: {kind.meaning}") + 1 :]
        )
        stated = dict(row.strip().split(": ") for row in block)
        titles = ("written by", "must have", "may have", "outcomes")
        expected = zip(titles, (kind.writers, kind.required, kind.optional, kind.outcomes), strict=True)
        assert stated == {title: ", ".join(names) for title, names in expected if names}


def test_the_example_on_the_page_is_a_history(tmp_path: Path) -> None:
    path = tmp_path / "example.jsonl"
    path.write_text(PAGE.read_text().split("```jsonl\n")[1].split("```")[0])
    rows = list(read_history([path]))
    assert [row["kind"] for row in rows] == ["settings", "publish", "publish", "deliver", "ack", "ack"]
    for row in rows:
        if "token" in row:
            assert token_text(parse_owner(row["owner"]).ballot) == row["token"]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("{", "not JSON"),
        ("[]", "not a JSON object"),
        ('{"run":"r"}', "field 'who' is missing"),
        (json.dumps({**full_row("ack"), "kind": "akc"}), "kind is 'akc'"),
        (json.dumps({**full_row("ack"), "outcome": "acked!"}), "acked_unproven"),
        (json.dumps({**full_row("ack"), "who": "node:a"}), "only client do"),
        (json.dumps({**full_row("crash"), "until": 1.0}), "has no field 'until'"),
        (json.dumps({**full_row("settings"), "history": 9}), "version 9"),
        (json.dumps(full_row("crash")).replace("1.25", "NaN"), "at is nan"),
    ],
)
def test_a_bad_line_is_named_by_file_and_line(line: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(json.dumps(full_row("stop")) + "\n" + line + "\n")
    with pytest.raises(HistoryError, match=r"bad\.jsonl:2: ") as error:
        list(read_history([path]))
    assert text in str(error.value)


def test_a_torn_last_line_is_left_out_and_cut_by_the_next_writer(tmp_path: Path) -> None:
    path = tmp_path / "torn.jsonl"
    with HistoryWriter(path, run="r", who="sim"):
        pass
    path.write_text(path.read_text() + '{"run":"r","wh')
    assert len(list(read_history([path]))) == 1
    with HistoryWriter(path, run="r", who="node:a") as writer:
        writer.write("stop", incarnation=1)
    assert [row["who"] for row in read_history([path])] == ["sim", "node:a", "node:a"]


def test_a_history_may_be_packed(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "a.jsonl.gz"
    path.parent.mkdir()
    text = b"".join(
        json.dumps(
            {"run": "r", "who": "sim", "at": n, "wall_ms": n, "within": 0, "kind": "phase", "phase": "end"}
        ).encode()
        + b"\n"
        for n in range(1000)
    )
    packed = gzip.compress(text)
    path.write_bytes(packed)
    assert histories_of([tmp_path]) == histories_of([path, str(tmp_path)]) == [path]
    with pytest.raises(NotFound, match="no history here"):
        histories_of([tmp_path / "b"])
    assert [row["at"] for row in read_history([path])] == list(range(1000))
    for broken in (
        packed[: len(packed) // 2],
        packed[:100] + b"?????" + packed[105:],
        b"no gzip at all",
        packed + b"rest",
    ):
        path.write_bytes(broken)
        with pytest.raises(HistoryError, match=r"a\.jsonl\.gz:[0-9]+: not to be unpacked"):
            list(read_history([path]))


def test_a_writer_is_bounded(tmp_path: Path) -> None:
    file = io.StringIO()
    writer = HistoryWriter(file, run="r", who="node:a", buffer_bytes=1000, bytes_max=5000)
    for n in range(1000):
        writer.write("stop", incarnation=n)
        assert writer._buffered < 1000
    writer.close()
    rows = [json.loads(line) for line in file.getvalue().splitlines()]
    assert rows[-1]["kind"] == "truncated"
    assert len(file.getvalue()) < 6000
    assert writer.dropped == 1000 - (len(rows) - 2)


def test_a_file_is_for_its_user_alone_and_bounded_over_all_writers(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.touch(0o666)  # as by hand
    before = os.umask(0o022)
    try:
        for _ in range(50):  # starts of a process
            with HistoryWriter(path, run="r", who="node:a", buffer_bytes=100, bytes_max=5000) as writer:
                for n in range(20):
                    writer.write("stop", incarnation=n)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.stat().st_size < 5000 + 50 * 250, "one line for each start beyond it"
    assert writer.dropped == 21


def test_a_writer_refuses_what_is_not_in_the_schema() -> None:
    writer = HistoryWriter(io.StringIO(), run="r", who="node:a")
    with pytest.raises(HistoryError, match="'incarnation' is missing"):
        writer.write("stop")


numbers = st.integers(0, (1 << 64) - 1)
nodes = st.from_regex(r"[a-z0-9-]{1,32}", fullmatch=True)


@given(nodes, numbers, numbers, numbers, st.integers(0, 1 << 40))
def test_values_come_back_from_their_text(node: str, n: int, nonce: int, time: int, start: int) -> None:
    producer_id = ProducerId(node, n, nonce, start)
    owner = Owner(node, Incarnation(n, nonce), Stamp(time, node))
    assert parse_producer_id(producer_id_text(producer_id)) == producer_id
    assert parse_owner(owner_text(owner)) == owner
    assert spans_value([Span(producer_id, start, start + 1)]) == [
        [producer_id_text(producer_id), start, start + 1]
    ]


@given(st.tuples(numbers, nodes), st.tuples(numbers, nodes))
def test_tokens_sort_as_text_as_stamps_do(one: tuple[int, str], two: tuple[int, str]) -> None:
    a, b = Stamp(*one), Stamp(*two)
    assert (token_text(a) < token_text(b)) == (a < b)
