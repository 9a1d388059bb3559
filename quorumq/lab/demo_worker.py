"""One of the demo's workers: takes source, parses it, acks it or gives it up.

A process of its own, started by demo.py, because the demo stops it with SIGSTOP. It works like any consumer
that fetches by hand: take a batch, do the work, ack a message if it parses, else make it a dead letter. It does not
extend its holds and does not look at its deadlines, so that the demo shows a worker that overruns them: if an ack comes
late, its answer says so.

Its requests and their answers are in its history at once (docs/history.md): a line is in the file before its request
is sent. It ends at SIGTERM, after its batch.
"""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import trio

from quorumq.client import Client, HoldLost, Message, connect
from quorumq.core.values.errors import Unanswered
from quorumq.history import HistoryWriter
from quorumq.lab.demo_input import parse_source

WAIT_S: Final = 0.4
"""Time that one FETCH waits for messages, in seconds."""

FETCH_TIMEOUT_S: Final = 1.0
"""Seconds: if the worker's own node does not answer for as long, another is asked."""

AWAY_S: Final = 1.5
"""Seconds for which it asks the others then."""

SETTLE_TIMEOUT_S: Final = 10.0


class Options(NamedTuple):
    """Options that demo_run.py gives on the command line, as JSON."""

    name: str  # name of this worker
    run: str  # name of the run, for the history
    nodes: list[str]  # host:port; the first is asked first
    topic: str
    group: str
    history: str  # file to append to
    hold_time: float  # seconds
    batch: int  # messages in one FETCH at most
    pace: float  # seconds that one message takes at least


@dataclass(eq=False)
class Work:
    """The worker's loop."""

    options: Options
    client: Client
    stopping: bool = False
    _away_until: float = 0.0  # the others are asked

    async def run(self) -> None:
        while not self.stopping:
            try:
                messages = await self._fetch()
            except Unanswered:
                continue  # no node can serve it now; it has waited for its timeout
            if messages:
                await self._work_on(messages)

    async def _fetch(self) -> list[Message]:
        node = self.options.nodes[0] if trio.current_time() >= self._away_until else None
        try:
            return await self.client.fetch(
                self.options.topic,
                self.options.group,
                max_messages=self.options.batch,
                max_wait=WAIT_S,
                hold_time=self.options.hold_time,
                node=node,
                timeout=FETCH_TIMEOUT_S,
            )
        except Unanswered:
            if node is None:
                raise
            self._away_until = trio.current_time() + AWAY_S
            return []

    async def _work_on(self, messages: Sequence[Message]) -> None:
        good: list[Message] = []
        begin = trio.current_time()
        for index, message in enumerate(messages, 1):
            try:
                parse_source(message.payload, str(message.headers.get("encoding", "")))
            except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
                await self._give_up(message, error)
            else:
                good.append(message)
            await trio.sleep_until(begin + index * self.options.pace)
        await self._ack(good)

    async def _ack(self, messages: Sequence[Message]) -> None:
        """Ack until each message has its answer. If an ack is repeated, its answer says the same or less."""
        unsettled = list(messages)
        while unsettled:
            with contextlib.suppress(Unanswered):
                await self.client.ack(unsettled, timeout=SETTLE_TIMEOUT_S)
            unsettled = [message for message in unsettled if message.outcome is None]

    async def _give_up(self, message: Message, error: Exception) -> None:
        while True:
            try:
                await message.dead_letter(error, timeout=SETTLE_TIMEOUT_S)
            except Unanswered:
                continue
            except HoldLost:
                pass  # it will come again, here or elsewhere
            return


async def main(options: Options) -> None:
    who = f"client:{options.name}"
    settings = {"hold_time": options.hold_time, "batch": options.batch, "pace": options.pace}
    with HistoryWriter(
        options.history, run=options.run, who=who, settings=settings, buffer_bytes=1
    ) as history:
        async with connect(options.nodes, history=history) as client, trio.open_nursery() as nursery:
            work = Work(options, client)

            async def listen() -> None:
                with trio.open_signal_receiver(signal.SIGTERM) as signals:
                    async for _ in signals:
                        work.stopping = True

            nursery.start_soon(listen)
            await work.run()
            nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main, Options(**json.loads(sys.argv[1])))
