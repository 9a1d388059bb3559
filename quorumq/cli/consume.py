"""A consumer for the command line.

If there is no --exec, printing a message is the processing of it. It is acked when it is written out, so that a pipe
that breaks loses nothing. If there is one, its command is the handler, and the exit code decides.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import click

from quorumq.cli.common import (
    Seconds,
    Where,
    check_missed,
    cluster,
    cluster_options,
    group_option,
    ids_option,
    parsed,
    print_json,
    say,
    start_option,
)
from quorumq.core.values import limits
from quorumq.core.values.errors import AlreadySettled, HoldLost, QuorumqError, UsageError
from quorumq.core.values.printable import plural

if TYPE_CHECKING:
    import trio

    from quorumq.client import Client, Message, MessageId

BATCH: Final = 500
LAST_LOOK_S: Final = 2.0
BACKOFF_S: Final = 1.0
BACKOFF_MAX_S: Final = 60.0
REQUEUE_S: Final = 2.0
"""Seconds to requeue messages whose command was stopped or that cannot be printed. If it takes longer, holds end."""

KEY_MAX: Final = 30_000
"""Bytes of a key that QUORUMQ_KEY may have: Linux takes 128 KiB, and a byte may be written as four characters."""

ENDING_S: Final = 5.0
"""Seconds that a command may take to end after SIGTERM, before it is killed."""

CANNOT_RUN: Final = (126, 127)
"""Exit codes of a shell for a command that may not be executed, or is not there. Every message would die of it."""

STDERR_CHARS: Final = 2_000
"""Characters from the end of a failed command's standard error that a dead letter keeps."""


class CommandFailed(Exception):
    """Error that a dead letter of `--exec` names."""


class Plan(NamedTuple):
    """Options of one `consume`: the messages to take, and the work on each."""

    topics: tuple[str, ...]
    group: str
    most: int | None
    wait: float | None
    hold_time: float | None
    ack: bool
    reject: float | None
    dead_letter: str | None
    command: str | None
    backoff: float | None
    tries: int | None
    as_json: bool
    start: Literal["earliest", "latest"]
    ids: tuple[str, ...]


@click.command()
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@group_option
@start_option
@click.option("--max", "--limit", "most", type=click.IntRange(1), help="Stop after so many messages.")
@click.option(
    "--wait",
    type=Seconds(0),
    help="Stop when nothing has come for so long: seconds, or with s, m, h, d; 0 takes what is there.",
)
@click.option(
    "--hold-time",
    type=Seconds(limits.HOLD_TIME_MIN_S),
    help="For how long a message is ours alone, extended while a command works on it. "
    "[default: 30, or the most that the cluster allows]",
)
@click.option(
    "--ack/--no-ack", default=True, show_default=True, help="Whether to ack each message once it is printed."
)
@click.option(
    "--reject",
    type=Seconds(0),
    metavar="DELAY",
    help="Print, then make it available again after DELAY: seconds, or with s, m, h, d.",
)
@click.option("--dead-letter", metavar="REASON", help="Print, then make each message a dead letter.")
@click.option(
    "--exec",
    "command",
    metavar="COMMAND",
    help="Run COMMAND in a shell for each message, with the payload on its standard input. Exit code 0 acks.",
)
@click.option(
    "--backoff",
    type=Seconds(0, BACKOFF_MAX_S),
    help="With --exec: how long until a message whose command failed comes again; doubled each time, up to 60. "
    "[default: the topic's backoff, or else 1]",
)
@click.option(
    "--tries",
    type=click.IntRange(1),
    help="With --exec: after so many failures it is a dead letter. [default: the topic's max deliveries]",
)
@ids_option(
    "Take only this message, if it may be delivered now; may be given several times. One that was not delivered is "
    "named, with what became of it, and the exit code is 66."
)
@cluster_options
async def consume(where: Where, **options: Any) -> None:
    """Take messages of TOPIC for a group: print them, or run a command for each.

    A TOPIC may be a pattern in quotes, as 'orders.*': all topics that match, those that are made later included.

    Each message goes to one consumer of the group at a time and is acked once it was printed, or once the command
    succeeded. If a group is new, it begins with the oldest message, or --from latest. If --max, --wait and --id are not
    given, the command goes on until Ctrl-C.

    The dead letters of group g are read as group g!dead, or from TOPIC.deadletters as group g. There an ack
    purges them, a command that fails leaves them for later, and --json shows why each died.

    A command finds QUORUMQ_TOPIC, QUORUMQ_ID, QUORUMQ_ATTEMPT and QUORUMQ_KEY in its environment (no key above 30 kB).
    If it fails, the message is redelivered after a while, and at last becomes a dead letter that keeps the exit code
    and the end of the command's standard error. If the shell cannot run it (126, 127), the message is given back, and
    the exit code is 64.

    If --no-ack is given, messages are only shown, but each counts as a delivery, and is delivered again when its hold
    has run out. To look without taking, use `quorumq peek`.
    """
    plan = Plan(**options)
    given = {"--no-ack": not plan.ack, "--reject": plan.reject is not None,
             "--dead-letter": plan.dead_letter is not None, "--exec": plan.command is not None}  # fmt: skip
    chosen = [name for name, is_given in given.items() if is_given]
    if sys.stdout is None and plan.command is None:  # as by >&-
        raise UsageError("standard output is closed: messages would be acked and seen by nobody")
    if len(chosen) > 1:
        raise click.UsageError(f"{' and '.join(chosen)} exclude each other: give one of them")
    if plan.ids and (plan.most is not None or plan.wait is not None or len(plan.topics) > 1):
        raise click.UsageError(
            "--id takes messages of one topic that are there now: leave out --max and --wait"
        )
    from quorumq.cli.progress import counter

    count = 0
    names = parsed(plan.ids)
    async with cluster(where) as client:
        # A consumer fetches ahead. If an exact number of messages is asked for, the next one would be taken only
        # to be given back, so those are fetched as they are wanted; so is what is there and nothing else.
        exactly = (plan.most is not None or plan.wait == 0) and plan.command is None and len(plan.topics) == 1
        source = _fetches(client, plan) if exactly else _stream(client, plan)
        if names:
            source = _named(client, plan, names)
        with counter("consuming") as advance:
            async with aclosing(source) as batches:
                async for messages in batches:
                    await _handle(client, messages, plan)
                    count += len(messages)
                    for _ in messages:
                        advance()
        if not count and not plan.as_json:
            why = await _why_nothing(client, plan)
            say(f"nothing came from {', '.join(plan.topics)} for {plan.group}{why}", err=True)


async def _why_nothing(client: Client, plan: Plan) -> str:
    """Return the reason why nothing can be delivered, if it is that the group is paused; else ""."""
    with suppress(QuorumqError):  # a pattern has no group
        for topic in plan.topics:
            for group in (await client.metadata(topic)).groups:
                if group.name == plan.group and group.paused:
                    return f", which is paused until `quorumq groups resume {topic} {plan.group}`"
    return ""


async def _fetch(client: Client, plan: Plan, topic: str = "", **more: Any) -> list[Message]:
    fetch = partial(
        client.fetch, topic or plan.topics[0], plan.group, hold_time=plan.hold_time, start=plan.start
    )
    return await fetch(**more)


async def _fetches(client: Client, plan: Plan) -> AsyncGenerator[list[Message], None]:
    """Yield exactly as many messages as are asked for, or fewer if a FETCH brings none within --wait."""
    remaining = float("inf") if plan.most is None else plan.most
    while remaining:
        wait = limits.LONG_POLL_MAX_S if plan.wait is None else plan.wait
        messages = await _fetch(client, plan, max_messages=int(min(BATCH, remaining)), max_wait=wait)
        if messages:
            remaining -= len(messages)
            yield messages
        elif plan.wait is not None:
            return


async def _named(client: Client, plan: Plan, names: list[MessageId]) -> AsyncGenerator[list[Message], None]:
    """Yield the messages of these ids that may be delivered now, one by one if a command works on each. Then report the
    others."""
    missing: list[MessageId] = []
    for chunk in [[name] for name in names] if plan.command else [names]:
        remaining = chunk
        while remaining and (messages := await _fetch(client, plan, ids=remaining)):
            came = {message.id for message in messages}
            remaining = [name for name in remaining if name not in came]
            yield messages
        missing += remaining
    await _check_came(client, plan, missing)


async def _check_came(client: Client, plan: Plan, missing: list[MessageId]) -> None:
    """Report the state of messages that were asked for by their ids and not delivered."""
    known = await client.lookup(plan.topics[0], plan.group, missing) if missing else {}
    missed = []
    for name in missing:
        why = "no replica that answered knows it"
        if name in known:
            item = known[name].peeked
            why = f"it is {item.state}" + (f" for another {item.remaining:.1f} s" if item.remaining else "")
        missed.append(f"{name} was not delivered to {plan.group}: {why}")
    check_missed(missed)


async def _stream(client: Client, plan: Plan) -> AsyncGenerator[list[Message], None]:
    """Yield messages as they are delivered, until there are enough, or none within --wait."""
    batch = 1 if plan.command else BATCH
    remaining = float("inf") if plan.most is None else plan.most
    async with client.consumer(
        plan.topics,
        plan.group,
        start=plan.start,
        hold_time=plan.hold_time,
        prefetch=batch,
        auto_extend=plan.command is not None,
    ) as consumer:
        while remaining > 0:
            wait = float("inf") if plan.wait is None else plan.wait
            messages = await consumer.take(int(min(batch, remaining)), timeout=wait)
            if not messages:
                messages = await _last_look(client, plan)
            if not messages:
                return
            remaining -= len(messages)
            yield messages


async def _last_look(client: Client, plan: Plan) -> list[Message]:
    """Fetch again if there was nothing within --wait, because only a node that can deliver knows that nothing is there.

    Raises:
        TooFewReplicas: nothing can be delivered now.
    """
    for topic in plan.topics:
        wait = min(LAST_LOOK_S, client.timeout)
        if messages := await _fetch(client, plan, topic, max_messages=1, timeout=wait):
            return messages
    return []


async def _handle(client: Client, messages: Sequence[Message], plan: Plan) -> None:
    if plan.command is not None:
        for message in messages:
            if plan.ids:
                await _run_extended(client, message, plan)
            else:  # its consumer extends it
                await _run(client, message, plan)
        return
    try:
        for message in messages:
            _show(message, plan.as_json)
        sys.stdout.flush()
    except OSError:  # a full disk, or a pipe without a reader
        await _requeue(client, messages)
        raise
    try:
        if plan.reject is not None:
            await client.reject(messages, delay=plan.reject)
        elif plan.dead_letter is not None:
            await client.dead_letter(messages, reason=plan.dead_letter)
        elif plan.ack:
            await client.ack(messages)
    except (HoldLost, AlreadySettled) as error:
        lost = sum(message.failure is not None for message in messages)
        say(f"{plural(lost, 'message')}: {error}", err=True)
    _doubts(messages)


async def _requeue(client: Client, messages: Sequence[Message]) -> None:
    """Give messages back, for another delivery at once. It costs them no attempt."""
    import trio

    with trio.move_on_after(REQUEUE_S, shield=True), suppress(QuorumqError):
        await client.reject(messages, interrupted=True)


def _doubts(messages: Sequence[Message]) -> None:
    """Warn if messages may have gone to another consumer too, or if a rewind has made their acks void."""
    from quorumq.client import Outcome

    rewound = sum(message.outcome is Outcome.REWOUND for message in messages)
    if rewound:
        say(
            f"{plural(rewound, 'message')}: the group was rewound meanwhile, and what it covers now comes again",
            err=True,
        )
    doubts = (Outcome.ACKED_AFTER_EXPIRY, Outcome.ACKED_UNPROVEN)
    uncertain = [message for message in messages if message.outcome in doubts]
    if uncertain:
        names = ", ".join(
            sorted({message.outcome.value for message in uncertain if message.outcome is not None})
        )
        say(
            f"{plural(len(uncertain), 'message')} may have been delivered to another consumer as well ({names}): "
            "a longer --hold-time makes that rarer",
            err=True,
        )


def _show(message: Message, as_json: bool) -> None:
    if not as_json:
        if sys.stdout.isatty():
            say(bytes(message.payload).decode(errors="backslashreplace"))
        else:
            sys.stdout.buffer.write(message.payload + b"\n")
        return
    from quorumq.cli.peek import body_fields, death_fields

    sys.stdout.flush()
    line: dict[str, Any] = {
        "id": str(message.id),
        "topic": message.topic,
        "partition": message.partition,
        "group": message.group,
        "attempt": message.attempt,
        "published_ms": message.published_ms,
        **body_fields(message),
    }
    if message.death is not None:
        line["death"] = death_fields(message.death)
    print_json(line)


def shown_key(key: bytes) -> str:
    """Return a key as an environment can have it."""
    return key.decode(errors="backslashreplace").replace("\0", "")


async def _end_group(process: trio.Process) -> None:
    """End a command that leads a process group, and all that it has started there; return when the group is gone."""
    import trio

    with trio.CancelScope(shield=True), suppress(OSError):  # the group is gone
        os.killpg(process.pid, signal.SIGTERM)
        with trio.move_on_after(ENDING_S):
            while True:
                await trio.sleep(0.05)
                os.killpg(process.pid, 0)
        os.killpg(process.pid, signal.SIGKILL)


async def _run_extended(client: Client, message: Message, plan: Plan) -> None:
    """Run like `_run`, and keep the message's hold meanwhile."""
    import trio

    async def extend() -> None:
        while True:
            await trio.sleep(message.delivery.hold_time / 3)
            with suppress(QuorumqError):  # settling it says what is the matter
                await message.extend()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(extend)
        await _run(client, message, plan)
        nursery.cancel_scope.cancel()


async def _run(client: Client, message: Message, plan: Plan) -> None:
    """Run the command for one message, and settle it by the exit code."""
    import trio

    assert plan.command is not None
    environment = {
        **os.environ,
        "QUORUMQ_TOPIC": message.topic,
        "QUORUMQ_ID": str(message.id),
        "QUORUMQ_ATTEMPT": str(message.attempt),
        "QUORUMQ_KEY": "" if len(message.key or b"") > KEY_MAX else shown_key(message.key or b""),
    }
    # At a terminal the command stays in the group of the terminal, which Ctrl-C signals, and may read from it.
    own: dict[str, Any] = {"process_group": 0, "deliver_cancel": _end_group}
    if sys.stdin is not None and sys.stdin.isatty():
        own = {}
    done = None
    try:
        done = await trio.run_process(
            ["/bin/sh", "-c", plan.command],
            stdin=message.payload,
            capture_stderr=True,
            check=False,
            env=environment,
            **own,
        )
    finally:
        if done is None:  # we were cancelled, and the command got the signal to end
            await _requeue(client, [message])
    if sys.stderr is not None:
        sys.stderr.buffer.write(done.stderr)
        sys.stderr.flush()
    code = done.returncode
    if code in CANNOT_RUN:
        await _requeue(client, [message])
        raise UsageError(
            f"the shell cannot run {plan.command!r} (exit code {code}): correct --exec; {message.id} was given back"
        )
    outcome = ""
    try:
        if code == 0:
            await message.ack()
        else:
            topic = await client.topic(message.topic)
            tries = plan.tries or topic.max_deliveries
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            if message.attempt >= tries and message.death is None:
                said = done.stderr.decode(errors="backslashreplace").strip()[-STDERR_CHARS:]
                await message.dead_letter(
                    CommandFailed(said or f"nothing on standard error, {how}"), reason=how
                )
            else:
                first = BACKOFF_S if plan.backoff is None else plan.backoff
                doubled = min(BACKOFF_MAX_S, first * 2 ** min(message.attempt - 1, 16))
                await message.reject(None if plan.backoff is None and topic.backoff else doubled)
    except (HoldLost, AlreadySettled) as error:
        outcome = error.code.replace("-", "_")
        say(f"{message.id}: {error}", err=True)
    if message.outcome is not None:
        outcome = message.outcome.value
        _doubts([message])
    if plan.as_json:
        print_json({"id": str(message.id), "attempt": message.attempt, "exit_code": code, "outcome": outcome})
