"""One of the demo's workers: a pool that parses source, and makes a message a dead letter if it does not parse.

A process of its own, started by demo_run.py, because the demo stops it with SIGSTOP. It cannot extend its holds when it
stands still: if it acks after that, the ack is late, and its outcome says so.

Its requests and their answers are in its history at once (docs/history.md): a line is in the file before its request
is sent. It ends at SIGTERM.
"""

from __future__ import annotations

import json
import sys
from typing import NamedTuple

import trio

from quorumq.client import Message, connect
from quorumq.history import HistoryWriter
from quorumq.lab.demo_input import parse_source


class Options(NamedTuple):
    """Options that demo_run.py gives on the command line, as JSON."""

    name: str  # name of this worker
    run: str  # name of the run, for the history
    nodes: list[str]  # host:port
    topic: str
    group: str
    history: str  # file to append to
    hold_time: float  # seconds
    concurrency: int  # messages worked on at once
    duration: float  # seconds that one message takes at least


async def main(options: Options) -> None:
    async def parse(message: Message) -> None:
        await trio.sleep(options.duration)
        parse_source(message.payload, str(message.headers.get("encoding", "")))

    with HistoryWriter(
        options.history, run=options.run, who=f"client:{options.name}", buffer_bytes=1
    ) as history:
        async with connect(options.nodes, history=history) as client:
            await client.work(
                options.topic,
                options.group,
                parse,
                concurrency=options.concurrency,
                hold_time=options.hold_time,
            )


if __name__ == "__main__":
    trio.run(main, Options(*json.loads(sys.argv[1])))
