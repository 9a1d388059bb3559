"""`quorumq journal`: the contents of a node's files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from quorumq.cli.common import json_option, say
from quorumq.core.values.printable import plural


@click.group()
def journal() -> None:
    """Look into a node's journal files.

    A node keeps everything in the segments of one journal, in its data directory. These commands only read, so
    they may be used while the node runs; docs/file-format.md describes the bytes.
    """


@journal.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE...")
@click.option("--bad", "only_bad", is_flag=True, help="Show only what is unreadable or damaged.")
@click.option(
    "--type", "types", multiple=True, metavar="NAME", help="Show only records of this type; may be repeated."
)
@json_option
def inspect(files: tuple[Path, ...], only_bad: bool, types: tuple[str, ...], as_json: bool) -> None:
    """Show every record of a journal segment, or of all segments of a data directory.

    Each line has the record's offset in the file, its type and its fields. Unreadable parts are shown with
    their offset and length: a torn tail, which a start cuts away, or damage, for which a start refuses the
    directory. A summary with the number of records of each type comes last, on standard error.

    The exit code is 74 if anything is damaged, else 0.
    """
    from quorumq.core.values.errors import StorageError, UsageError
    from quorumq.storage.inspect import UNREADABLE, inspect_segment
    from quorumq.storage.records import TYPE_OF
    from quorumq.storage.segment import NAME_SUFFIX

    known = sorted(cls.__name__ for cls in TYPE_OF)
    for name in types:
        if name not in (*known, UNREADABLE):
            raise click.UsageError(
                f"--type {name}: there is no such type of record; there are {', '.join(known)}"
            )

    paths: list[Path] = []
    for file in files:
        segments = sorted(file.glob(f"*{NAME_SUFFIX}")) if file.is_dir() else [file]
        if not segments:
            raise UsageError(
                f"{file} has no journal segment (*{NAME_SUFFIX}): give a node's data directory, or a file"
            )
        paths += segments
    counts: dict[str, int] = {}
    damaged = 0
    for path in paths:
        if len(paths) > 1 and not as_json:
            say(f"{path}:")
        for item in inspect_segment(path):
            counts[item.type] = counts.get(item.type, 0) + 1
            bad = bool(item.notes) or item.type == UNREADABLE
            damaged += any("damaged:" in note for note in item.notes)
            if (only_bad and not bad) or (types and item.type not in types):
                continue
            if as_json:
                line = {"file": str(path), "offset": item.offset, "type": item.type}
                fields = {name: plain(value) for name, value in item.fields.items()}
                say(json.dumps({**line, "fields": fields, "notes": list(item.notes)}))
            else:
                fields_text = "  ".join(f"{name}={_short(value)}" for name, value in item.fields.items())
                say(f"{item.offset:>10}  {item.type:<18} {fields_text}")
                for note in item.notes:
                    say(f"{'':>10}  ! {note}")
    if not as_json:
        summary = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
        say(f"{sum(counts.values())} in all: {summary}", err=True)
    if damaged:
        raise StorageError(
            f"{plural(damaged, 'place is', 'places are')} damaged: keep a copy of the directory before anything "
            'else, and look up the remedy under "Torn or damaged" in docs/file-format.md'
        )


def plain(value: Any) -> Any:
    """Return a record's field as JSON has it: named tuples as objects, bytes as hex."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: plain(inner) for name, inner in value._asdict().items()}
    if isinstance(value, tuple | list):
        return [plain(inner) for inner in value]
    if isinstance(value, dict):
        return {str(name): plain(inner) for name, inner in value.items()}
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    return value


def _short(value: Any, width: int = 200) -> str:
    """Format one field for a person. A value with a short form of its own (spans, producer ids, stamps) is shown in
    it."""
    if isinstance(value, tuple) and not hasattr(value, "_asdict"):
        text = (
            "["
            + ", ".join(_short(inner, width) for inner in value[:8])
            + (", …" if len(value) > 8 else "")
            + "]"
        )
    elif isinstance(value, tuple) and type(value).__str__ is object.__str__:
        text = "(" + " ".join(f"{name}={_short(inner, width)}" for name, inner in plain_items(value)) + ")"
    elif isinstance(value, bytes):
        text = value.hex() or "-"
    else:
        text = str(value)
    return text if len(text) <= width else text[: width - 1] + "…"


def plain_items(value: Any) -> list[tuple[str, Any]]:
    """Return the fields of a named tuple that say something."""
    return [(name, inner) for name, inner in value._asdict().items() if inner not in (None, "", b"", ())]
