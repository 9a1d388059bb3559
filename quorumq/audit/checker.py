"""Judgement of a part of a history: a plain function of a table.

Each message is asked for each group: its deliveries, its holds and its end. The counts of one part are added to those
of others, so the cuts of a history do not matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from quorumq.audit import deliveries, derived, fates, holds
from quorumq.audit.context import Context
from quorumq.audit.findings import BROKEN, Judged, Where
from quorumq.audit.plain import plain
from quorumq.audit.story import NO_GROUP, NO_LOCATION, Events, Message, Said, Story
from quorumq.audit.table import Call, Table

_CALLS: Final = frozenset(("publish", "deliver", "ack", "reject", "dead_letter", "extend"))
"""Kinds of lines that are counted while a fault lasts."""


def check(table: Table, context: Context, *, screened: bool = True) -> Judged:
    """Check all messages of a part.

    Args:
        screened: True if messages that cannot have a finding are only counted, which changes nothing (`plain`).
    """
    out = Judged()
    events = Events(table, context)
    which = ~plain(events, out) if screened else np.ones(len(events.starts), bool)
    for space, seq, said in events.messages(which):
        name = table.spaces[space]
        producers = context.producer_ids.get((name.run, name.producer_id), ())
        moved, reach = context.moved.get(name[:3], ()), context.reach.get(name.run, {})
        _message(Message(name, seq, said, context.runs[name.run], producers, moved, reach), context, out)
    _faults(events, out)
    return out


def _message(message: Message, context: Context, out: Judged) -> None:
    by_group: dict[str, list[Said]] = {}
    for it in message.said:
        if it.event.grp is not None:
            by_group.setdefault(it.event.grp, []).append(it)
    there: Sequence[str] = context.groups.get((message.run, message.topic), ())
    if message.shared:
        for turn, grp in enumerate(there or ("",)):
            _story(message, grp, turn, by_group.pop(grp, []), context, out)
    for grp, mine in by_group.items():
        _story(message, grp, 0, mine, context, out)


def _story(
    message: Message, grp: str, turn: int, mine: Sequence[Said], context: Context, out: Judged
) -> None:
    group = context.of_groups.get((message.run, message.topic, grp), NO_GROUP)
    location = context.of_locations.get((message.run, message.topic, message.partition, grp), NO_LOCATION)
    story = Story(message, grp, turn, mine, group, location)
    where = Where(
        message.run, message.topic, message.partition, grp, message.producer_id, message.seq, message.id
    )
    if mine:
        deliveries.check(story, where, out)
        holds.check(story, where, out)
        derived.collect(story, where, context, out)
    if any(it.event.kind != "derive" for it in message.said):
        fates.check(story, where, out)


def _faults(events: Events, out: Judged) -> None:
    """Count the events while each fault lasted, and the broken findings."""
    faults = events.context.faults
    if not faults:
        return
    table, rows = events.table, events.rows
    run_of = np.array([it.run for it in table.writers], object)[rows["writer"]]
    calls = [_counted(it) for it in table.calls]
    for name in ("published", "unknown", "delivered", "acked", "broken"):
        mine = rows["lead"] & np.array([name in it for it in calls], bool)[rows["call"]]
        for run, items in faults.items():
            times = events.at[0][mine & (run_of == run)]
            if name == "broken":
                broken = [
                    it.at
                    for it in out.findings
                    if it.run == run and it.verdict == BROKEN and it.at is not None
                ]
                times = np.array(broken, float)
            times = np.sort(times)
            for begin, end in {it[1:3] for it in items}:
                count = int(np.searchsorted(times, end, "right") - np.searchsorted(times, begin, "left"))
                if count:
                    out.sums.counts[("during", run, begin, end, name)] += count


def _counted(call: Call) -> list[str]:
    kind, outcome = call.kind, call.outcome
    if kind not in _CALLS:
        return []
    result = ["unknown"] if outcome == "unknown" else []
    if kind == "publish" and outcome == "ok":
        result.append("published")
    elif kind == "deliver":
        result.append("delivered")
    elif kind == "ack" and outcome is not None and outcome.startswith("acked"):
        result.append("acked")
    return result
