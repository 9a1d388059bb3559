"""The command that does the same as a button."""

from __future__ import annotations

import shlex


def command(*words: str, **options: str | int | bool | None) -> str:
    """Return a command line of `quorumq`, quoted for a shell.

    Args:
        words: command and arguments.
        options: options of the command by name, without those that are None or False; True is one without a value.
    """
    parts = ["quorumq", *words]
    for name, value in options.items():
        if value is None or value is False:
            continue
        parts.append("--" + name.replace("_", "-"))
        if value is not True:
            parts.append(str(value))
    return shlex.join(parts)
