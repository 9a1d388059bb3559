"""`quorumq journal inspect` on real segments: sound, torn, damaged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from quorumq.cli.main import main
from quorumq.storage.disk import RealDisk
from tests.storage.samples import every_kind, open_store


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A data directory with one record of each kind."""
    store = open_store(RealDisk(tmp_path))
    list(store.replayed)
    store.roll([])
    store.commit()
    *first, last = every_kind()[1:]
    store.append(first)
    store.commit()
    store.append([last])  # says that everything before it was durable
    store.commit()
    store.close()
    return tmp_path


def segment(directory: Path) -> Path:
    return sorted(directory.glob("*.journal"))[-1]


def inspect(*arguments: str | Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, ["journal", "inspect", *map(str, arguments)])
    return result.exit_code, result.stdout, result.stderr


def test_every_record_is_a_line(directory: Path) -> None:
    code, out, err = inspect(segment(directory))
    assert code == 0
    lines = out.splitlines()
    for record in every_kind()[1:]:
        assert sum(f"  {type(record).__name__} " in f"{line} " for line in lines) >= 1, type(record).__name__
    assert "no such account" in out
    assert "1 BatchStored" in err


def test_json_output_has_every_field(directory: Path) -> None:
    code, out, err = inspect(directory, "--json", "--type", "TopicPut")
    assert (code, err) == (0, "")
    (line,) = map(json.loads, out.splitlines())
    assert line["fields"]["topic"]["name"] == "orders"
    assert line["fields"]["topic"]["replicas"] == [["n1", "n2", "n3"], ["n2", "n3", "n1"]]
    assert Path(line["file"]) == segment(directory)


def test_only_what_is_bad_is_nothing_in_a_sound_journal(directory: Path) -> None:
    assert inspect(directory, "--bad")[:2] == (0, "")


def test_damage_below_what_was_durable_ends_with_74(directory: Path) -> None:
    path = segment(directory)
    data = bytearray(path.read_bytes())
    data[data.index(b"payload 0")] ^= 1
    path.write_bytes(data)
    code, out, err = inspect(path, "--bad")
    assert "! the body is damaged (messages 0 of 1)" in out
    assert "everything below" in out
    assert code == 74
    assert "1 place is damaged" in err
    assert "keep a copy" in err


def test_a_torn_tail_is_shown_and_is_no_error(directory: Path) -> None:
    path = segment(directory)
    path.write_bytes(path.read_bytes()[:-3])
    code, out, _ = inspect(path, "--bad")
    assert code == 0
    assert "torn tail" in out


def test_no_such_file_says_so(tmp_path: Path) -> None:
    code, _, err = inspect(tmp_path / "gone.journal")
    assert code == 74
    assert "gone.journal" in err
    code, _, err = inspect(tmp_path)
    assert code == 64
    assert str(tmp_path) in err


def test_a_type_that_no_record_has_is_refused_with_those_there_are(directory: Path) -> None:
    code, out, err = inspect(directory, "--type", "TopicPuts")
    assert (code, out) == (2, "")
    assert "--type TopicPuts: there is no such type of record" in err
    assert "TopicPut," in err
