"""Lookup and failure of subcommands, shared by `quorumq`, `python -m sim` and `python -m spark`.

Promise: an error that quorumq raises on purpose reaches a person as one sentence on standard error that names
the problem and the remedy, and a script as the exit code of its class (core/values/errors.py). Ctrl-C ends with
130, SIGTERM with 143. A traceback is a bug.
"""

from __future__ import annotations

import errno
import importlib
import io
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Final

import click

from quorumq.core.values.errors import QuorumqError, StorageError, UsageError
from quorumq.core.values.printable import printable

SIGNALLED: Final = 128
"""After Ctrl-C the exit code is 130, after SIGTERM 143: this and the signal's number, as shells have it."""


SERVER: Final = ("h11", "msgspec", "prometheus_client", "rich")
"""Modules that the extra quorumq[server] brings beside click. If click is missing, no command is imported."""

UNWRITABLE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Error numbers of a write to standard output, without a file's name, when its target takes no more."""


class Reported(click.ClickException):
    """A QuorumqError on its way to a person."""

    def __init__(self, error: QuorumqError) -> None:
        text = (
            str(error).strip()
            or f"the cluster answered {error.code!r} and gave no reason: see `quorumq status`"
        )
        super().__init__(text)
        self.exit_code = error.exit_code  # type: ignore[misc]

    def show(self, file: Any = None) -> None:
        click.echo(f"quorumq: {printable(self.message)}", file=file or sys.stderr)


def releases(error: BaseException) -> Iterator[BaseException]:
    """Yield the exceptions in a group, however nested; an exception that is none is its own only leaf."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from releases(inner)
    else:
        yield error


def print_anything() -> None:
    """Have characters that standard output or error cannot encode shown by number, as in a Latin-1 or C locale."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


def add_owners(error: click.NoSuchOption) -> None:
    """Add to the error of an unknown option the commands beside this one that have it."""
    if error.ctx is None:
        return
    outer = error.ctx.parent
    beside = outer.command.commands if outer is not None and isinstance(outer.command, click.Group) else {}
    owners = [
        f"`{outer.command_path} {name}`"
        for name, command in beside.items()
        if outer is not None and any(error.option_name in option.opts for option in command.params)
    ]
    if owners:
        error.message += f" {' and '.join(owners)} {'has' if len(owners) == 1 else 'have'} it."  # type: ignore[misc]
    elif outer is None:
        error.message += " Options of a command stand behind its name."  # type: ignore[misc]


@contextmanager
def in_a_sentence() -> Iterator[None]:
    """Turn an error of a command into one sentence and the exit code of its class."""
    print_anything()
    try:
        yield
    except click.NoSuchOption as error:
        add_owners(error)
        raise
    except BaseException as error:
        errors = list(releases(error))
        for leaf in [leaf for leaf in errors if isinstance(leaf, OSError)]:
            if leaf.filename is not None and len(errors) == 1:
                text = f"{leaf.filename}: {leaf.strerror}: name another path, or make this one usable"
                raise Reported(StorageError(text)) from error
            if leaf.filename is None and leaf.errno in UNWRITABLE:
                sys.stdout = io.StringIO()  # or Python would try again at its end, and say so itself
                raise Reported(StorageError(f"the output cannot be written: {leaf.strerror}")) from error
        signals = [leaf.args for leaf in errors if isinstance(leaf, KeyboardInterrupt)]
        if signals:
            (number,) = signals[0] or (signal.SIGINT,)
            raise click.exceptions.Exit(SIGNALLED + number) from None
        if all(isinstance(leaf, QuorumqError) for leaf in errors):
            first = errors[0]
            assert isinstance(first, QuorumqError)
            raise Reported(first) from error
        missing = errors[0].name if isinstance(errors[0], ModuleNotFoundError) else None
        if missing in SERVER:  # if another package has brought click
            text = f"{missing} is not installed: pip install 'quorumq[server]'"
            raise Reported(UsageError(text)) from error
        if len(errors) == 1 and errors[0] is not error:
            raise errors[0] from None
        raise


class Commands(click.Group):
    """A group whose commands are imported when they are needed.

    Args:
        lazy: location of each command by name, as ``module:object``, and the one line that `--help` shows.
    """

    def __init__(
        self, *args: Any, lazy: Mapping[str, tuple[str, str]] = MappingProxyType({}), **attributes: Any
    ) -> None:
        super().__init__(*args, **attributes)
        self.lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.lazy)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in self.lazy:
            return None
        module, _, attribute = self.lazy[name][0].partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in self.lazy.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            if args and args[0] not in self.lazy:
                error.message = (  # type: ignore[misc]
                    f"there is no command {args[0]!r}: the commands are {', '.join(self.lazy)}"
                )
            raise

    def make_context(self, *args: Any, **attributes: Any) -> click.Context:
        with in_a_sentence():  # where `--help` is printed
            return super().make_context(*args, **attributes)

    def invoke(self, ctx: click.Context) -> Any:
        with in_a_sentence():
            return super().invoke(ctx)
