"""Print the kinds and fields of a history: `python -m quorumq.history`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping

from quorumq.history.schema import COMMON, FIELDS, KINDS, VERSION, Field


def lines() -> Iterator[str]:
    """Yield the schema as lines of text. A list of fields or outcomes is left out if it is empty."""
    yield f"version {VERSION}\n\nFields of every line"
    yield from _fields(COMMON)
    yield "\nKinds"
    for name, kind in KINDS.items():
        yield f"  {name}: {kind.meaning}"
        yield f"    written by: {', '.join(kind.writers)}"
        for title, names in (
            ("must have", kind.required),
            ("may have", kind.optional),
            ("outcomes", kind.outcomes),
        ):
            if names:
                yield f"    {title}: {', '.join(names)}"
    yield "\nFields of some kinds"
    yield from _fields(FIELDS)


def _fields(fields: Mapping[str, Field]) -> Iterator[str]:
    yield from (f"  {name} ({field.shape}): {field.meaning}" for name, field in fields.items())


if __name__ == "__main__":
    about = "Print the schema of histories: all kinds of lines and their fields, with writers and meanings."
    argparse.ArgumentParser(prog="python -m quorumq.history", description=about).parse_args()
    try:
        print("\n".join(lines()), flush=True)
    except BrokenPipeError:  # the reader, such as head, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
