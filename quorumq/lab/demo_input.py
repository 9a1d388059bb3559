"""Messages that the demo publishes.

The input is real and on every machine: the Python source of the installation that runs the demo. When a worker
parses it, that is real work. Most of it succeeds, and if it fails, it has a reason of its own. A bare Debian Python
has 668 files and none that fail, so a few malformed ones are added; they are marked, and reported apart.

Promises: the same installation gives the same messages in the same order; every message is below the limit of
the wire; nothing is imported or run, only read.
"""

from __future__ import annotations

import ast
import hashlib
import io
import os
import sys
import sysconfig
import tokenize
import warnings
from collections.abc import Iterable, Iterator
from importlib import resources
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from quorumq.core.values.limits import PAYLOAD_BYTES_MAX
from quorumq.wire.batch import Message

MESSAGES_MAX: Final = 6_000

PATH_CHARS_MAX: Final = 1_000

MALFORMED: Final = "malformed"
"""Header of the messages that are malformed on purpose; its value is true."""


class Chunk(NamedTuple):
    """Source for one message, and the file that it was cut from.

    ``encoding`` is "" if the worker finds it out as Python does (byte order mark, coding comment, UTF-8).
    """

    source: bytes
    path: str
    encoding: str = ""
    malformed: bool = False

    def message(self) -> Message:
        """Return the message to publish: the source is the payload, the rest goes into headers."""
        headers: dict[str, str | bool] = {"path": self.path[-PATH_CHARS_MAX:]}
        if self.encoding:
            headers["encoding"] = self.encoding
        if self.malformed:
            headers[MALFORMED] = True
        return Message(self.source, None, headers)


def installation_files() -> list[Path]:
    """Return every ``.py`` file of the base interpreter's standard library and site-packages, each once, sorted."""
    base = {"base": sys.base_prefix, "platbase": sys.base_exec_prefix}
    base |= {f"installed_{name}": path for name, path in base.items()}
    known = sysconfig.get_scheme_names()
    roots = [
        Path(sysconfig.get_path(name, scheme, base))
        for scheme in ("posix_prefix", "posix_local", "deb_system")  # the latter two are Debian's
        if scheme in known
        for name in ("stdlib", "platstdlib", "purelib", "platlib")
    ]
    # os.walk, not rglob, for speed: some installations have tens of thousands of files. One root may be within
    # another, so the paths are compared.
    paths = {
        os.path.join(folder, name): None
        for root in dict.fromkeys(map(os.path.realpath, roots))
        for folder, _, names in os.walk(root)
        for name in names
        if name.endswith(".py")
    }
    return [Path(path) for path in sorted(paths)]


def chunks_of_installation(files: Iterable[Path], messages_max: int = MESSAGES_MAX) -> Iterator[Chunk]:
    """Yield ``messages_max`` pieces of ``files``: their functions and classes; if a file has none, the whole file.

    A cross-section rather than the beginning of the alphabet: files are in the order of a hash of their paths,
    which is the same every time. If a file is empty, too large or cannot be read, it is left out.
    """
    ordered = sorted(files, key=lambda path: (_hash(path), path))
    yield from islice((chunk for path in ordered for chunk in _chunks_of(path)), messages_max)


def malformed_chunks() -> list[Chunk]:
    """Return the malformed files of `quorumq.lab.malformed`: each fails in a way of its own, on any Python."""
    folder = resources.files("quorumq.lab") / "malformed"
    return [
        Chunk(entry.read_bytes(), f"malformed/{entry.name}", malformed=True)
        for entry in sorted(folder.iterdir(), key=lambda entry: entry.name)
        if entry.name.endswith(".txt")
    ]


def parse_source(source: bytes, encoding: str = "") -> None:
    """Decode and parse ``source``: the work that the demo's workers do for each message.

    If ``encoding`` is "", it is found out as Python does.

    Raises:
        SyntaxError, ValueError, UnicodeDecodeError, RecursionError, MemoryError: as Python gives them.
    """
    if not encoding:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
    text = source.decode(encoding)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # old source is full of invalid escapes; they are not errors
        ast.parse(text)


def _chunks_of(path: Path) -> Iterator[Chunk]:
    try:
        source = path.read_bytes()
    except OSError:
        return
    if not source.strip():
        return
    chunks = list(_definitions(source, path))
    if chunks:
        yield from chunks
    elif len(source) <= PAYLOAD_BYTES_MAX:
        yield Chunk(source, str(path))


def _definitions(source: bytes, path: Path) -> Iterator[Chunk]:
    """Yield the functions and classes at the top of a file. If it does not parse, yield none: it is sent whole."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
        text = source.decode(encoding)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    # Not splitlines(): that also splits at form feeds, which Python's line numbers do not count.
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        chunk = "\n".join(lines[first - 1 : node.end_lineno]) + "\n"
        # A decoder makes no lone surrogates, so this cannot fail.
        encoded = chunk.encode("utf-8")
        if len(encoded) <= PAYLOAD_BYTES_MAX:
            yield Chunk(encoded, f"{path}:{first}", "utf-8")


def _hash(path: Path) -> bytes:
    return hashlib.blake2b(str(path).encode("utf-8", "surrogateescape"), digest_size=8).digest()
