"""One sentence about the health of a cluster, from the counts of its nodes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from quorumq.client import Backlog
from quorumq.core.values.printable import plural

OLD_S: Final = 300.0
"""Age in seconds of the oldest message at which a group is behind."""


class Health(NamedTuple):
    """``level`` is good, warn or bad; ``sentence`` is the verdict, and ``reasons`` are all that speaks against good."""

    level: str
    sentence: str
    reasons: tuple[str, ...]


def health_of(
    nodes: Iterable[tuple[str, bool]],
    backlogs: Mapping[tuple[str, str], Backlog | None],
    paused: Collection[tuple[str, str]] = (),
) -> Health:
    """Return the health of a cluster.

    Args:
        nodes: name of each, and whether it is up.
        backlogs: work by topic and group; None if no replica of a partition answered.
        paused: topics and groups that are paused.
    """
    all_nodes = list(nodes)
    down = [name for name, up in all_nodes if not up]
    bad, warn = [], []
    if 2 * len(down) >= len(all_nodes):
        bad.append(f"{', '.join(down)} of {len(all_nodes)} nodes are down: no majority")
    elif down:
        warn.append(f"{', '.join(down)} {'is' if len(down) == 1 else 'are'} down: the others go on")
    for (topic, group), backlog in backlogs.items():
        name = f"{group} of {topic}"
        if backlog is None:
            bad.append(f"{name}: no replica of a partition answers")
            continue
        age = backlog.oldest or 0.0
        waiting = f"{plural(backlog.ready, 'message')} {'waits' if backlog.ready == 1 else 'wait'}"
        if (topic, group) in paused:
            warn.append(f"Group {name} is paused, and {waiting}")
        elif backlog.ready and not backlog.consumers:
            warn.append(f"Nobody reads {name}, where {waiting}")
        elif backlog.ready and age > OLD_S:
            warn.append(f"In {name} {waiting}, the oldest for {ago(age)}")
    dead = sum(backlog.dead for backlog in backlogs.values() if backlog is not None)
    dead_text = f" There {'is' if dead == 1 else 'are'} {plural(dead, 'dead letter')}." if dead else ""
    if bad:
        return Health("bad", f"Something is wrong: {bad[0]}.", tuple(bad + warn))
    if warn:
        more = f" {plural(len(warn) - 1, 'more warning')}." if len(warn) > 1 else ""
        return Health("warn", f"The cluster works. {warn[0]}.{dead_text}{more}", tuple(warn))
    up = f"All {len(all_nodes)} nodes are up" if len(all_nodes) > 1 else "The node is up"
    waits = f"no group waits for more than {ago(OLD_S)}" if backlogs else "there are no groups yet"
    return Health("good", f"{up}, {waits}.{dead_text}", ())


def ago(seconds: float) -> str:
    """Return a time span in words: 8 s, 5 min, 3 h, 2 days."""
    for size, unit in ((86_400, "day"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            count = int(seconds // size)
            return f"{count} {unit}{'s' if unit == 'day' and count > 1 else ''}"
    return f"{int(seconds)} s"
