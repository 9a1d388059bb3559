# quorumq/cli/common.py: what commands that talk to a cluster have in common: where it is, and how to print.
"""Options and output shared by the commands."""

from __future__ import annotations

import base64
import json
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from quorumq.core.errors import TooFewReplicas, UsageError

if TYPE_CHECKING:
    from quorumq.client import Client

NODES_VARIABLE: Final = "QUORUMQ_NODES"
NODES_DEFAULT: Final = ("127.0.0.1:7401", "127.0.0.1:7402", "127.0.0.1:7403")
"""Where `quorumq dev` listens unless told otherwise."""

CONNECT_S: Final = 5.0
"""How long to look for a node that answers, before saying that there is none."""

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


class Address(click.ParamType):
    """host:port of a node; the environment variable has several, with commas or spaces."""

    name = "address"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from quorumq.wire.address import split_address

        try:
            split_address(value)
        except UsageError as error:
            self.fail(str(error), param, ctx)
        return str(value)

    def split_envvar_value(self, rv: str) -> list[str]:
        return rv.replace(",", " ").split()


class Duration(click.ParamType):
    """A time: seconds, or a number with s, m, h or d behind it."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        text = str(value).strip()
        unit = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}.get(text[-1:], 0.0)
        try:
            seconds = float(text[:-1]) * unit if unit else float(text)
        except ValueError:
            seconds = -1.0
        if not 0 <= seconds < 1e12:
            self.fail(f"{value!r} is not a time: say 30, 30s, 5m, 2h or 7d", param, ctx)
        return seconds


class Durations(Duration):
    """Times with commas between; "" or "none" for none at all."""

    name = "durations"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, tuple):
            return value
        parts = [] if value in ("", "none") else str(value).split(",")
        return tuple(super(Durations, self).convert(part, param, ctx) for part in parts)


def nodes_option(command: F) -> F:
    """Adds ``--node``; the command gets ``nodes``, a tuple of addresses that is never empty."""
    return click.option(
        "--node",
        "nodes",
        type=Address(),
        multiple=True,
        envvar=NODES_VARIABLE,
        metavar="HOST:PORT",
        callback=lambda ctx, param, value: tuple(value or ()) or NODES_DEFAULT,
        help="A node to talk to; give several, so that one may be down. "
        f"[env: {NODES_VARIABLE}; default: 127.0.0.1:7401 to 7403]",
    )(command)


def json_option(command: F) -> F:
    """Adds ``--json``; the command gets ``as_json``."""
    return click.option(
        "--json", "as_json", is_flag=True, help="Print JSON for a script, one object a line."
    )(command)


def group_option(command: F) -> F:
    """Adds ``--group``, required."""
    return click.option(
        "--group",
        required=True,
        metavar="NAME",
        help="The group that reads: each group gets every message, its consumers share them.",
    )(command)


@asynccontextmanager
async def cluster(nodes: Sequence[str], timeout: float = 30.0) -> AsyncIterator[Client]:
    """The client library, connected.

    Args:
        nodes: addresses.
        timeout: seconds for each operation.

    Raises:
        Unreachable: no node answers within a few seconds; says what to do.
    """
    from quorumq.cli.probe import nobody
    from quorumq.client import connect

    async with AsyncExitStack() as stack:
        try:
            client = await stack.enter_async_context(connect(nodes, timeout=CONNECT_S))
        except TooFewReplicas:
            raise nobody(nodes) from None
        client.timeout = timeout
        yield client


def run_with(nodes: tuple[str, ...], make: Callable[[Client], Awaitable[None]]) -> None:
    """Run ``make`` with a client of the cluster."""
    import trio

    async def run() -> None:
        async with cluster(nodes) as client:
            await make(client)

    trio.run(run)


def print_json(value: Any) -> None:
    """One JSON object on one line of standard output, at once."""
    click.echo(json.dumps(value, ensure_ascii=False, separators=(", ", ": ")))


def text_fields(name: str, data: bytes | None) -> dict[str, str | None]:
    """``data`` for JSON: as text under ``name`` where it is UTF-8, else as base64 under ``name_base64``."""
    if data is None:
        return {name: None}
    try:
        return {name: bytes(data).decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def shown(data: bytes, width: int = 60) -> str:
    """``data`` on one line for a person: printable, cut at ``width`` characters."""
    text = bytes(data[: 4 * width]).decode(errors="backslashreplace")
    text = "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
    return text if len(text) <= width and len(data) <= 4 * width else text[: width - 1] + "…"


def plural(count: int, noun: str) -> str:
    """ "1 message", "2 messages"; ``noun`` takes an s."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def console(stderr: bool = False) -> Any:
    """A rich console; plain text where the output is not a terminal."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    wide = None if stream.isatty() else 160
    return Console(stderr=stderr, width=wide, highlight=False, soft_wrap=False)


async def interruptible(main: Callable[[], Awaitable[T]]) -> T:
    """What ``main`` returns. Ctrl-C, or SIGTERM, cancels it, and is raised as KeyboardInterrupt once it has ended.

    Python raises KeyboardInterrupt wherever the program happens to be, now and then in the middle of trio's own
    bookkeeping of tasks, which then ends with an internal error instead of cleaning up.
    """
    import trio

    interrupted = False
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:

            async def watch() -> None:
                nonlocal interrupted
                async for _ in signals:
                    interrupted = True
                    nursery.cancel_scope.cancel()

            nursery.start_soon(watch)
            result = await main()
            nursery.cancel_scope.cancel()
    if interrupted:
        raise KeyboardInterrupt
    return result
