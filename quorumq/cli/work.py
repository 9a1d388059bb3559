"""A worker pool for the command line: a Python function is the handler."""

from __future__ import annotations

import builtins
import importlib
import logging
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import click

from quorumq.cli.common import (
    Where,
    cluster,
    duration,
    group_option,
    json_option,
    nodes_option,
    print_json,
    run,
    run_asyncio,
    say,
    start_option,
)
from quorumq.core.values.errors import UsageError
from quorumq.core.values.printable import plural


def named(text: str) -> Any:
    """Return the object that ``module:object`` names; built-in exceptions need no module.

    Raises:
        UsageError: there is no such module, or no such object in it.
    """
    module, _, attribute = text.rpartition(":")
    try:
        target: Any = _imported(text, module) if module else builtins
        for part in attribute.split("."):
            target = getattr(target, part)
    except AttributeError as error:
        raise UsageError(f"{text!r} is not there: {error}; write it as module:name") from error
    return target


def _imported(text: str, module: str) -> Any:
    try:
        return importlib.import_module(module)
    except Exception as error:
        # The place in the user's file, and neither the machinery of imports nor this.
        frames = [
            frame
            for frame in traceback.extract_tb(error.__traceback__)
            if frame.filename != __file__ and "importlib" not in frame.filename
        ]
        where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
        said = (str(error).strip().splitlines() or [""])[0]
        why = said if isinstance(error, ImportError) else f"{type(error).__name__}: {said}"
        raise UsageError(f"{text!r} cannot be imported from {os.getcwd()}: {why}{where}") from error


@click.command()
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC... MODULE:FUNCTION")
@group_option
@click.option(
    "--concurrency", type=click.IntRange(1), default=1, show_default=True, help="Messages worked on at once."
)
@click.option(
    "--retry",
    multiple=True,
    metavar="EXCEPTION",
    help="A class of exceptions after which a message comes again: TimeoutError, or module:Class. Give several.",
)
@click.option("--timeout", type=duration, help="How long one attempt may take. [default: no limit]")
@click.option(
    "--hold-time",
    type=duration,
    help="How long others wait for a message whose worker died. [default: 30, or the most that the cluster allows]",
)
@click.option(
    "--grace",
    type=duration,
    default=10.0,
    show_default=True,
    help="How long messages that are begun have to end after SIGTERM or Ctrl-C.",
)
@click.option(
    "--runtime",
    type=click.Choice(["asyncio", "trio"]),
    default="asyncio",
    show_default=True,
    help="Runs an async def.",
)
@start_option
@nodes_option
@json_option
def work(
    topics: tuple[str, ...],
    group: str,
    retry: tuple[str, ...],
    nodes: tuple[str, ...],
    runtime: str,
    as_json: bool,
    **options: Any,
) -> None:
    """Call a Python function with each message of TOPIC, and settle the message by how that ends.

    MODULE:FUNCTION is imported from the current directory or from Python's path. It gets a message
    (`message.payload`, `message.headers`, …), and is an async def, which asyncio runs unless --runtime says trio, or a
    plain function, which runs in a thread.

    When it returns, the message is acked. If it raises an exception of a class given by --retry, or exceeds --timeout,
    the message is redelivered after the topic's backoff, or 1, 2, 4 … 60 s without one. If that was its last attempt,
    or the exception is another one, it is a dead letter that keeps the exception and its stack. If the cluster could
    not serve the function, the message is redelivered as well. The hold is extended while the function runs.

    If there is no such topic yet, the command waits for it. The work goes on until SIGTERM or Ctrl-C. Then messages
    that are not begun are given back at once, and others have --grace to end. The same signal again does not wait for
    that, and a third one ends the process in any case. At the end the command prints the number of messages by
    outcome, as one JSON object with --json, and exits with 0.
    """
    if len(topics) < 2 or ":" not in topics[-1]:
        raise click.UsageError(
            "give topics and then the function, as in: quorumq work jobs tasks:resize --group g"
        )
    sys.path.insert(0, os.getcwd())
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    from quorumq.client.consume.work import is_async

    handler = named(topics[-1])
    if not callable(handler):
        raise UsageError(
            f"{topics[-1]!r} is {handler!r}, and no function that could be called with a message"
        )
    options["retry"] = tuple(named(text) for text in retry)
    if runtime == "asyncio" and is_async(handler):
        from quorumq.client import aio

        run_asyncio(_work, aio.connect, Where(nodes), topics[:-1], group, handler, options, as_json)
    else:
        run(_work, None, Where(nodes), topics[:-1], group, handler, options, as_json)


async def _work(
    connect: Any,
    where: Where,
    topics: tuple[str, ...],
    group: str,
    handler: Callable[[Any], Any],
    options: dict[str, Any],
    as_json: bool,
) -> None:
    async with cluster(where, connect) as client:
        worked = await client.work(topics, group, handler, signals=True, **options)
    if as_json:
        print_json(asdict(worked))
        return
    counts = asdict(worked)
    counts.pop("signal")
    rest = ", ".join(
        f"{count:,} {name.replace('_', ' ')}" for name, count in counts.items() if name != "done" and count
    )
    say(f"{plural(worked.done, 'message')} done{', ' if rest else ''}{rest}", err=True)
