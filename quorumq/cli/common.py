"""Options and output shared by commands that talk to a cluster."""

from __future__ import annotations

import base64
import io
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from datetime import UTC, datetime
from functools import partial, wraps
from threading import current_thread, main_thread
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, cast

import click

from quorumq.core.values.errors import NotFound, TooFewReplicas, UsageError
from quorumq.core.values.printable import printable
from quorumq.wire.address import NODES_VARIABLE

if TYPE_CHECKING:
    from quorumq.client import Client, MessageId

NODES_DEFAULT: Final = ("127.0.0.1:7401", "127.0.0.1:7402", "127.0.0.1:7403")
"""Addresses of the nodes of `quorumq dev` by default."""

CONNECT_S: Final = 5.0
"""Seconds to look for a node that answers, before saying that there is none."""

ANSWER_MAX: Final = 1_000
"""Most bytes of an answer to a question."""

MISSED_SHOWN: Final = 8
"""Most ids that are named if nothing was found for them."""

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


class Address(click.ParamType):  # type: ignore[type-arg]
    """host:port of a node; the environment variable has several, with commas or spaces."""

    name = "address"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from quorumq.wire.address import split_address

        try:
            split_address(value)
        except UsageError as error:
            source = None if ctx is None or param is None else ctx.get_parameter_source(param.name or "")
            hint = NODES_VARIABLE if source is click.core.ParameterSource.ENVIRONMENT else None
            raise click.BadParameter(str(error), ctx, param, hint) from None
        return str(value)

    def split_envvar_value(self, rv: str) -> list[str]:
        return rv.replace(",", " ").split()


def duration(value: Any) -> float:
    """Return the seconds of a time that a person gave: a number of them, or one with s, m, h or d behind it."""
    text = str(value).strip()
    unit = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}.get(text[-1:], 0.0)
    try:
        seconds = float(text[:-1]) * unit if unit else float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 1e12:
        raise click.BadParameter(f"{value!r} is not a time: say 30, 30s, 5m, 2h or 7d")
    return seconds


class Seconds(click.FloatRange):
    """A time, as `duration` takes it, within bounds."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return super().convert(duration(value), param, ctx)


def durations(value: str) -> tuple[float, ...]:
    """Parse times with commas between them; none at all if it is "" or "none"."""
    return tuple(map(duration, [] if value in ("", "none") else value.split(",")))


nodes_option = click.option(
    "--node",
    "nodes",
    type=Address(),
    multiple=True,
    envvar=NODES_VARIABLE,
    metavar="HOST:PORT",
    callback=lambda ctx, param, value: tuple(value or ()) or NODES_DEFAULT,
    help="A node to talk to; give several, so that one may be down. "
    f"[env: {NODES_VARIABLE}; default: 127.0.0.1:7401 to 7403]",
)
"""The command gets ``nodes``, a tuple of addresses that is never empty."""


class Where(NamedTuple):
    """The cluster that a command talks to."""

    addresses: tuple[str, ...]
    timeout: float = 30.0  # seconds


def cluster_options(
    command: F,
    seconds: float = 30.0,
    help: str = "Seconds to go on trying; each request has so many where there are several.",
) -> F:
    """Add ``--node``, ``--timeout`` and ``--json``; the command, which is async, gets ``where`` and ``as_json``."""

    @wraps(command)
    def with_where(*args: Any, nodes: tuple[str, ...], timeout: float, **more: Any) -> Any:
        return run(partial(command, *args, where=Where(nodes, timeout), **more))

    return cast("F", nodes_option(timeout_option(seconds, help)(json_option(with_where))))


def timeout_option(default: float, help: str) -> Callable[[F], F]:
    """Add ``--timeout``, in seconds; the command gets ``timeout``."""
    return click.option(
        "--timeout", default=default, show_default=True, type=click.FloatRange(0.1), help=help
    )


json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON for a script, one object a line."
)
group_option = click.option(
    "--group",
    required=True,
    metavar="NAME",
    help="The group that reads: each group gets every message, its consumers share them.",
)
start_option = click.option(
    "--from",
    "start",
    type=click.Choice(["earliest", "latest"]),
    default="earliest",
    show_default=True,
    help="Where the group begins if it is new: with the oldest message, or with what is published from now on.",
)
partition_option = click.option("--partition", type=click.IntRange(0), help="Only this partition.")
yes_option = click.option("--yes", is_flag=True, help="Do not ask.")


def ids_option(help: str) -> Callable[[F], F]:
    """Add ``--id``, which may be repeated; the command gets ``ids``, as text."""
    return click.option("--id", "ids", multiple=True, metavar="ID", help=help)


def parsed(ids: Sequence[str]) -> list[MessageId]:
    """Return the ids that a person gave, in order and each once.

    Raises:
        UsageError: one is no id.
    """
    from quorumq.client import MessageId

    try:
        return sorted({MessageId.parse(text) for text in ids})
    except ValueError as error:
        raise UsageError(str(error)) from None


def check_missed(missed: Sequence[str]) -> None:
    """Raise `NotFound` if ``missed`` has sentences, about given ids that are not there."""
    if missed:
        more = f"; and {len(missed) - MISSED_SHOWN} more" if len(missed) > MISSED_SHOWN else ""
        raise NotFound("; ".join(missed[:MISSED_SHOWN]) + more)


@asynccontextmanager
async def cluster(
    where: Where, connect: Callable[..., AbstractAsyncContextManager[Client]] | None = None
) -> AsyncIterator[Client]:
    """Connect the client library. Each operation has the seconds of ``where``, less those taken to connect.

    Args:
        connect: front to use; if None, that for trio.

    Raises:
        Unreachable: no node answers within those seconds, or within `CONNECT_S` if they are more. Names the remedy.
    """
    from quorumq.client import connect as on_trio
    from quorumq.client.client import CONNECT_TIMEOUT_S

    connect = connect or on_trio
    began = time.monotonic()
    each = min(
        CONNECT_TIMEOUT_S, where.timeout / len(where.addresses)
    )  # one that is silent leaves time for others
    wait = min(CONNECT_S, where.timeout)
    async with AsyncExitStack() as stack:
        try:
            client = await stack.enter_async_context(
                connect(where.addresses, timeout=wait, connect_timeout=each)
            )
        except TooFewReplicas as error:
            from quorumq.cli.probe import no_node

            raise no_node(where.addresses, error.causes) from None
        client.timeout = where.timeout - (time.monotonic() - began)
        yield client


def print_json(value: Any) -> None:
    """Print one JSON object on one line of standard output, at once."""
    text = json.dumps(value, ensure_ascii=False, separators=(", ", ": "))
    if not text.isprintable():
        text = "".join([char if char.isprintable() else json.dumps(char)[1:-1] for char in text])
    click.echo(text)


def say(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print a line for a person or a script: on standard error if ``err``. All that a terminal obeys is escaped."""
    click.echo(printable(text), err=err, nl=nl)


def say_none(noun: str, remedy: str) -> None:
    """Print that a listing has nothing. If the client has a token, it may lack the rights to others."""
    from quorumq.wire.hello import own_token

    more = "; or this client lacks the rights: they are in the nodes' clients file" if own_token() else ""
    say(f"no {noun} yet: {remedy}{more}", err=True)


def tell(text: str, value: Any, as_json: bool) -> None:
    """Print a line for a person; if ``as_json``, a JSON object for a script."""
    if as_json:
        print_json(value)
    else:
        say(text)


def local_time(ms: int, timespec: str = "seconds") -> str:
    """Return a time of day for a person, in this machine's zone."""
    return datetime.fromtimestamp(ms / 1000, UTC).astimezone().isoformat(sep=" ", timespec=timespec)


def text_fields(name: str, data: bytes | None) -> dict[str, str | None]:
    """Return ``data`` for JSON: as text under ``name`` if it is UTF-8, else as base64 under ``name_base64``."""
    if data is None:
        return {name: None}
    try:
        return {name: bytes(data).decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def shown(data: bytes, width: int = 60) -> str:
    """Return ``data`` on one line for a person: printable, cut at ``width`` characters."""
    text = bytes(data[: 4 * width]).decode(errors="backslashreplace")
    text = printable(text).replace("\n", "\\n").replace("\t", "\\t")
    return text if len(text) <= width and len(data) <= 4 * width else text[: width - 1] + "…"


def console(stderr: bool = False) -> Any:
    """Return a rich console. If the output is no terminal, it is plain text. A terminal obeys no text of others."""
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    class Printable(Console):
        def render(
            self, renderable: RenderableType, options: ConsoleOptions | None = None
        ) -> Iterator[Segment]:
            for segment in super().render(renderable, options):
                yield segment if segment.control else segment._replace(text=printable(segment.text))

    stream = sys.stderr if stderr else sys.stdout
    if stream is None:  # closed, as by >&-: there is nowhere to print to
        return Printable(file=io.StringIO())
    wide = None if stream.isatty() else 160
    return Printable(stderr=stderr, width=wide, highlight=False, soft_wrap=False)


def table(*columns: str, title: str | None = None, cut: bool = False) -> Any:
    """Return a rich table without frames, for 80 columns: the frames of eight columns take 25.

    Args:
        columns: heads; ``>`` in front of one is for numbers, ``|`` for short text: neither is ever broken into lines.
        cut: cut other text if there is no room, and do not break it into lines.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    rich_table = Table(
        title=title,
        title_justify="left",
        box=SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for column in columns:
        name = column.lstrip(">|")
        rich_table.add_column(
            name,
            justify="right" if column.startswith(">") else "left",
            no_wrap=name != column,
            overflow="ellipsis" if cut else "fold",
        )
    return rich_table


def print_table(columns: Sequence[str], rows: Iterable[Iterable[object]], title: str | None = None) -> None:
    """Print a table (see `table`) of texts and numbers as they are: nothing in a cell is markup."""
    from rich.text import Text

    rich_table = table(*columns, title=title)
    for row in rows:
        rich_table.add_row(*(Text(str(cell)) for cell in row))
    console().print(rich_table)


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """End the block if the process gets SIGTERM, as Ctrl-C does."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def run(main: Callable[..., Awaitable[T]], *args: object) -> T:
    """Return the result of ``main(*args)``, run by trio. Ctrl-C or SIGTERM cancels it. If one follows, it ends at once.

    Why: Python would raise KeyboardInterrupt at any point of the program. If that is in trio's own bookkeeping, it is
    an internal error, and nothing is cleaned up. SIGTERM would end the program with messages held.

    Raises:
        KeyboardInterrupt: with the signal's number, once ``main`` has cleaned up.
    """
    import trio

    return trio.run(_interruptible, partial(main, *args))


async def _interruptible(main: Callable[[], Awaitable[T]]) -> T:
    import trio

    token = trio.lowlevel.current_trio_token()
    scope = trio.CancelScope()
    with _cancelling(lambda: token.run_sync_soon(scope.cancel)) as came, scope:
        result = await main()
    if came:
        raise KeyboardInterrupt(came[0])
    return result


def run_asyncio(main: Callable[..., Awaitable[T]], *args: object) -> T:
    """Run like `run` by asyncio, with the same signals and the same exceptions."""
    import asyncio

    async def interruptible() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        with _cancelling(lambda: loop.call_soon_threadsafe(task.cancel)) as came:
            try:
                return await main(*args)
            except asyncio.CancelledError:
                if not came:  # a handler has ended the program
                    raise
                raise KeyboardInterrupt(came[0]) from None

    return asyncio.run(interruptible())


@contextmanager
def _cancelling(cancel: Callable[[], object]) -> Iterator[list[int]]:
    """Have Ctrl-C and SIGTERM call ``cancel``; gives the numbers of the signals received."""
    came: list[int] = []

    def on_signal(number: int, frame: FrameType | None) -> None:
        came.append(number)
        if len(came) > 1:  # it waits for something that cannot be cancelled, as a pipe without a reader
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        cancel()

    # If a shell starts a job in the background, the job ignores Ctrl-C: that stays so. Only a main thread gets signals.
    ours = (signal.SIGINT, signal.SIGTERM) if current_thread() is main_thread() else ()
    caught = [it for it in ours if signal.getsignal(it) is not signal.SIG_IGN]
    before = {it: signal.signal(it, on_signal) for it in caught}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


async def read_input(most: int) -> bytes:
    """Read standard input, at most ``most`` bytes, as soon as there is any; nothing at its end.

    A thread waits for it, by the number of the file. If it waited inside ``sys.stdin``, it would still have its lock
    when the program ends on Ctrl-C, and Python would abort.

    Raises:
        UsageError: it is closed, or cannot be read.
    """
    import trio

    if sys.stdin is None:  # as by <&-
        raise UsageError("standard input is closed, and should be read")
    try:
        number = sys.stdin.fileno()
    except OSError:  # standard input is no file
        return sys.stdin.buffer.read(most)
    while True:
        try:
            return await trio.to_thread.run_sync(os.read, number, most, abandon_on_cancel=True)
        except BlockingIOError:
            await trio.lowlevel.wait_readable(number)
        except OSError as error:
            raise UsageError(f"standard input cannot be read: {error}") from None


async def confirmed(question: str) -> None:
    """Ask on standard error, and go on only after y or yes.

    Raises:
        click.Abort: the answer was another one.
        UsageError: there was none.
    """
    say(f"{question} [y/N]: ", nl=False, err=True)
    answer = b""
    with suppress(UsageError):  # no answer
        while b"\n" not in answer and len(answer) < ANSWER_MAX and (more := await read_input(ANSWER_MAX)):
            answer += more
    if not answer:
        say("", err=True)
        raise UsageError("standard input has no answer: give --yes")
    if answer.partition(b"\n")[0].strip().lower() not in (b"y", b"yes"):
        raise click.Abort
