"""The demo's input: the same on every run, shorter with few files, and malformed in at least three ways."""

from __future__ import annotations

from pathlib import Path

from quorumq.core.values.limits import MESSAGE_BYTES_MAX, PAYLOAD_BYTES_MAX
from quorumq.lab.demo_input import (
    MALFORMED,
    Chunk,
    chunks_of_installation,
    installation_files,
    malformed_chunks,
    parse_source,
)
from quorumq.wire.batch import encode_record


def death_of(chunk: Chunk) -> str:
    try:
        parse_source(chunk.source, chunk.encoding)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as exc:
        return type(exc).__name__
    return ""


def write(folder: Path, **files: str | bytes) -> list[Path]:
    paths = []
    for name, text in files.items():
        path = folder / f"{name}.py"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        paths.append(path)
    return paths


def test_the_malformed_files_die_in_at_least_three_ways_on_any_python() -> None:
    chunks = malformed_chunks()
    deaths = {chunk.path: death_of(chunk) for chunk in chunks}
    assert "" not in deaths.values(), f"these parse: {[path for path, name in deaths.items() if not name]}"
    assert {"SyntaxError", "IndentationError", "TabError", "UnicodeDecodeError"} <= set(deaths.values())
    assert all(chunk.malformed and chunk.message().headers[MALFORMED] is True for chunk in chunks)


def test_files_are_cut_into_functions_and_classes_that_parse(tmp_path: Path) -> None:
    source = (
        "import os\n\x0c\n@cache\n@other(\n    1)\ndef first():\n    return 1\n\n\nasync def second():\n    pass\n"
        "\nNUMBER = 1\n\nclass Third:\n    '''\ndef not():\n'''\n    def method(self):\n        return 'ä'\n"
    )
    files = write(tmp_path, some=source, none="NUMBER = 1\n", empty="\n", broken="def f(:\n")
    chunks = {Path(chunk.path).name: chunk for chunk in chunks_of_installation(files)}
    assert sorted(chunks) == ["broken.py", "none.py", "some.py:10", "some.py:15", "some.py:3"]
    assert chunks["some.py:3"].source == b"@cache\n@other(\n    1)\ndef first():\n    return 1\n"
    assert [name for name, chunk in chunks.items() if death_of(chunk)] == ["broken.py"]


def test_a_cut_chunk_is_utf8_whatever_its_file_was(tmp_path: Path) -> None:
    text = "# coding: latin-1\r\n\r\ndef name():\r\n    # coding: ascii\r\n    return 'Zoë'\r\n"
    (chunk,) = chunks_of_installation(write(tmp_path, latin=text.encode("latin-1")))
    assert "Zoë" in chunk.source.decode("utf-8")
    assert death_of(chunk) == ""


def test_no_more_is_sent_than_asked_for(tmp_path: Path) -> None:
    files = write(tmp_path, a="def f():\n    pass\n", b="x = 1\n", c="y = 2\n", d="z = 3\n")
    chunks = list(chunks_of_installation(files))
    assert sorted(Path(chunk.path).name for chunk in chunks) == ["a.py:1", "b.py", "c.py", "d.py"]
    assert list(chunks_of_installation(files, messages_max=3)) == chunks[:3]


def test_the_installation_gives_thousands_of_messages_in_the_same_order_twice() -> None:
    files = installation_files()
    assert files == sorted(set(files))
    assert len(files) > 500
    # Enough of it to see that it is enough; all of it takes seconds.
    once = [chunk.path for chunk in chunks_of_installation(files, messages_max=300)]
    assert once == [chunk.path for chunk in chunks_of_installation(reversed(files), messages_max=300)]
    assert len(once) == 300


def test_a_chunk_at_the_limit_fits_into_a_message(tmp_path: Path) -> None:
    path = "/" + "p" * 2000 + ".py"
    record = encode_record(Chunk(b"x" * PAYLOAD_BYTES_MAX, path, "utf-8", True).message())
    assert len(record) <= MESSAGE_BYTES_MAX
    assert list(chunks_of_installation(write(tmp_path, huge="x = 1 \n" * (PAYLOAD_BYTES_MAX // 7 + 1)))) == []
