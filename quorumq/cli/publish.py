"""`quorumq publish`: messages from the command line, files or lines, into a topic."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from quorumq.cli.common import Where, cluster, cluster_options, duration, read_input, say, tell
from quorumq.core.values.errors import TooLarge, UsageError
from quorumq.core.values.limits import PAYLOAD_BYTES_MAX
from quorumq.core.values.printable import plural

UNCONFIRMED_MAX: Final = 10_000
"""Most messages whose answer is still awaited when more are read."""


def header(value: str) -> tuple[str, str]:
    """Parse NAME=VALUE that a person gave."""
    name, equals, text = value.partition("=")
    if not equals or not name:
        raise click.BadParameter(f"{value!r} is not a header: write NAME=VALUE")
    return name, text


@click.command()
@click.argument("topic")
@click.argument("messages", nargs=-1, metavar="[MESSAGE]...")
@click.option(
    "--file",
    "files",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=str),
    help="Publish this file's bytes as one message; - is standard input; may be repeated.",
)
@click.option("--lines", is_flag=True, help="Publish each line of standard input as one message.")
@click.option("--key", help="The messages' key: messages of one key go to one partition.")
@click.option(
    "--header",
    "headers",
    multiple=True,
    type=header,
    metavar="NAME=VALUE",
    help="A header; may be repeated.",
)
@click.option("--partition", type=click.IntRange(0), help="Publish to this partition, whatever the key.")
@click.option(
    "--delay",
    type=duration,
    help="Deliver them to nobody before so long: seconds, or with s, m, h, d; at most 366d.",
)
@click.option(
    "--ttl", type=duration, help="Dead letters after so long, unless acked by then. [default: the topic's]"
)
@click.option(
    "--dedup",
    metavar="NAME",
    help="A name of the message: published again under it, it is the same message. For one message.",
)
@click.option(
    "--window",
    type=duration,
    metavar="TIME",
    help="Time for which the name is kept, at least 60s; rounded up. [default: as long as the topic]",
)
@partial(cluster_options, seconds=10.0, help="Seconds to go on trying.")
async def publish(
    where: Where,
    topic: str,
    messages: tuple[str, ...],
    files: tuple[str, ...],
    lines: bool,
    key: str | None,
    headers: tuple[tuple[str, str], ...],
    as_json: bool,
    **options: Any,
) -> None:
    """Publish messages to TOPIC and print the id of each once it is durable on a majority.

    Messages come from the arguments, from files, or one per line from standard input. The topic is created if it
    does not exist and the cluster allows that.

    If a majority could not be reached, the exit code is 75, and the text says if the message may be stored all the
    same ("outcome unknown"). All attempts within --timeout are one message. If you run the command again, that
    publishes another one, unless it has the same --dedup.
    """
    if not messages and not files and not lines:
        raise click.UsageError("there is nothing to publish: give messages, --file or --lines")
    if lines and "-" in files:
        raise click.UsageError("--lines and --file - both read standard input: give one of them")
    if options["dedup"] is not None and (lines or len(messages) + len(files) > 1):
        raise click.UsageError("--dedup names one message, and several are given")
    options |= {"key": key, "headers": dict(headers)}
    import trio

    from quorumq.cli.progress import counter

    count = 0
    refused: Exception | None = None
    with counter(f"publishing to {topic}") as advance:
        send, receive = trio.open_memory_channel[Any](UNCONFIRMED_MAX)

        async def confirm() -> None:
            nonlocal count
            async for pending in receive:
                message_id = await pending.wait()
                count += 1
                advance()
                line = {"id": str(message_id), "topic": topic, "partition": message_id.partition.number}
                tell(str(message_id), line, as_json)

        async with (
            cluster(where) as client,
            client.producer(topic) as producer,
            trio.open_nursery() as nursery,
            send,
        ):
            nursery.start_soon(confirm)
            try:
                async for payload in _payloads(messages, files, lines):
                    await send.send(await producer.send(payload, **options))
            except (UsageError, OSError) as error:  # messages before it are stored
                refused = error
            await producer.flush()
    if count > (1 if refused is None else 0) and not as_json:
        say(f"published {plural(count, 'message')} to {topic}", err=True)
    if refused is not None:
        raise refused


async def _payloads(messages: tuple[str, ...], files: tuple[str, ...], lines: bool) -> AsyncIterator[bytes]:
    for message in messages:
        yield message.encode(errors="surrogateescape")
    for file in files:
        yield await _read(file)
    if lines:
        async for line in _lines():
            yield line


async def _lines() -> AsyncIterator[bytes]:
    """Yield the lines that are ready on standard input: lines typed slowly are each published at once."""
    rest = b""
    while data := await read_input(1 << 16):
        *whole, rest = (rest + data).split(b"\n")
        for line in whole:
            yield line.removesuffix(b"\r")
        if len(rest) > PAYLOAD_BYTES_MAX:
            raise TooLarge(
                f"a line of standard input has more than {PAYLOAD_BYTES_MAX} bytes, the most that a message can have"
            )
    if rest:
        yield rest


async def _read(file: str) -> bytes:
    if file == "-":
        data = b""
        while len(data) <= PAYLOAD_BYTES_MAX and (more := await read_input(1 << 20)):
            data += more
    else:
        with Path(file).open("rb") as stream:
            data = stream.read(PAYLOAD_BYTES_MAX + 1)
    if len(data) > PAYLOAD_BYTES_MAX:
        name = "standard input" if file == "-" else file
        raise TooLarge(
            f"{name} has more than {PAYLOAD_BYTES_MAX} bytes, the most that a message can have: split it"
        )
    return data
