"""`quorumq show`: the life of one message."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from quorumq.cli.common import Where, cluster, cluster_options, local_time, print_json, say, shown
from quorumq.cli.peek import body_fields, print_body
from quorumq.core.values.errors import TooFewReplicas
from quorumq.core.values.printable import plural

if TYPE_CHECKING:
    from quorumq.client.admin.show import Life, Replica, Seen
    from quorumq.history import Row

STACK_COLUMNS: Final = 200
"""Characters that a line of a stack is cut to: it is worth more than a narrow terminal."""


@click.command()
@click.argument("topic")
@click.argument("id")
@click.option(
    "--history",
    multiple=True,
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Tell also what this history has of the message (docs/history.md); may be given several times.",
)
@cluster_options
async def show(topic: str, id: str, history: tuple[Path, ...], where: Where, as_json: bool) -> None:
    """Show the life of one message of TOPIC, as every replica has it in memory.

    It shows the reason if a message was delivered twice, or not at all. Each replica is asked by itself if it has the
    payload. For each group it names the state, the deliveries that ended without an ack, the holder and the rest of
    the hold, the fencing token of the last delivery, and the cause of a dead letter, with its stack. A replica that
    does not answer is named; if no other knows the message, the exit code is 75.

    Consumers, and deliveries that were followed by others, are in histories only: if they are given with --history,
    their lines are in the order of time.

    `publish`, `peek` and `deadletters list --json` print the ID.
    """
    async with cluster(where) as client:
        message = await client.show(topic, id, body=True)
        lines = sorted(_lines(history, message), key=lambda row: row["wall_ms"])
        if as_json:
            print_json({**_fields(message), "history": lines})
        else:
            _print(message)
            if history:
                say(f"\nhistories, by each writer's own time of day: {plural(len(lines), 'line')}")
            for row in lines:
                say(f"  {_told(row)}")
        _check_known(message)


def _check_known(life: Life) -> None:
    """Fail if no node that answered knows the message, which therefore may be on a node that did not.

    Raises:
        TooFewReplicas: no node knows it; names the nodes that did not answer.
    """
    from quorumq.client.admin.show import knows

    silent = [replica.node for replica in life.replicas if replica.error is not None]
    if silent and not any(replica.payload or knows(replica) for replica in life.replicas):
        raise TooFewReplicas(
            f"no replica that answered knows {life.id}; {' and '.join(silent)} did not answer and may have it: ask "
            "again when all are up",
            needed=len(life.replicas),
            answered=len(life.replicas) - len(silent),
        )


def _fields(life: Life) -> dict[str, Any]:
    """Return a life for JSON."""
    return {
        "id": str(life.id),
        "topic": life.topic,
        "published_ms": life.published_ms,
        "delay_s": life.delay,
        "session": life.session,
        **({} if life.body is None else body_fields(life.body)),
        "replicas": [
            {
                "node": replica.node,
                "error": replica.error,
                "payload": replica.payload,
                "groups_left_out": replica.left_out,
                "groups": [
                    {**seen._asdict(), "death": seen.death._asdict() if seen.death else None}
                    for seen in replica.groups
                ],
            }
            for replica in life.replicas
        ],
    }


def _print(life: Life) -> None:
    say(f"{life.id}")
    when = "when is not known: no payload left"
    if life.published_ms is not None:
        when = local_time(life.published_ms, "milliseconds")
    due = f", due {life.delay:g} s later" if life.delay else ""
    say(f"published {when}{due}")
    say(f"by session {life.session}")
    if life.body is not None:
        print_body(body_fields(life.body))
    stacks: set[str] = set()
    alike: dict[Any, list[Replica]] = {}
    for replica in life.replicas:
        same = [seen._replace(remaining=round(seen.remaining)) for seen in replica.groups]
        alike.setdefault((_said(replica), tuple(same), replica.left_out), []).append(replica)
    for replicas in alike.values():
        replica = replicas[0]
        say(f"{', '.join(sorted(one.node for one in replicas))}: {_said(replica)}")
        for seen in replica.groups:
            say(f"  {shown(seen.group.encode(), 30)}: {_state(seen)}")
            if seen.death is not None:
                died = local_time(seen.death.died_ms, "milliseconds")
                say(f"    died of {shown(seen.death.reason.encode(), 60)}, {died}")
                for text in (seen.death.error_class, seen.death.message, seen.death.consumer):
                    if text:
                        say(f"    {shown(text.encode(), 72)}")
                if seen.death.stack not in stacks:  # once: other replicas have the same
                    stacks.add(seen.death.stack)
                    for line in seen.death.stack.splitlines():
                        say(f"      {shown(line.encode(), STACK_COLUMNS)}")
        if replica.left_out:
            say(f"  groups: {replica.left_out:,} more, by name after these, are not shown")


def _said(replica: Replica) -> str:
    if replica.error is not None:
        return f"no answer: {shown(replica.error.encode(), 60)}"
    return "has the payload" if replica.payload else "has no payload"


def _state(seen: Seen) -> str:
    """Format a state, as in `held by n2 for 12 s more · 1 failed attempt · token 1795…`."""
    parts = [seen.state]
    if seen.state == "held":
        parts = [f"held through {seen.holder} for {seen.remaining:.0f} s more"]
    elif seen.state == "delayed":
        parts = [f"delayed for {seen.remaining:.0f} s more"]
    if attempts := max(seen.ended, seen.death.attempts if seen.death else 0):
        parts.append(plural(attempts, "failed attempt"))
    if seen.interruptions:
        parts.append(f"{plural(seen.interruptions, 'delivery', 'deliveries')} interrupted")
    if seen.redrives:
        parts.append(f"redriven {'once' if seen.redrives == 1 else f'{seen.redrives} times'}")
    if seen.token:
        parts.append(f"token {seen.token}")
    return " · ".join(parts)


def _lines(paths: tuple[Path, ...], life: Life) -> list[Row]:
    """Return the lines that histories have on the message."""
    if not paths:
        return []
    from quorumq.history import producer_id_text, topic_label
    from quorumq.history.reader import read_history

    label, producer_id = (
        topic_label(life.id.partition.topic, life.topic),
        producer_id_text(life.id.producer_id),
    )
    return [
        row
        for row in read_history(paths)
        if (row.get("topic"), row.get("partition")) == (label, life.id.partition.number)
        and any(span[0] == producer_id and span[1] <= life.id.seq < span[2] for span in row.get("spans", ()))
    ]


def _told(row: Row) -> str:
    """Format a line, as in `12:03:04.125 client:w1 deliver of g · attempt 2 · token …`."""
    time = local_time(row["wall_ms"], "milliseconds")[11:23]
    of = f" of {row['group']}" if "group" in row else ""
    fields = [f"{name} {row[name]}" for name in ("outcome", "attempt", "n", "reason", "token") if name in row]
    return shown(" · ".join([f"{time} {row['who']} {row['kind']}{of}", *fields]).encode(), 78)
