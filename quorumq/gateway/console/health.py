"""One sentence about the health of a cluster, from the counts of its nodes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from quorumq.client import Backlog
from quorumq.core.values.printable import plural

OLD_S: Final = 300.0
"""Age in seconds of the oldest message at which a group is behind."""


DOWN: Final = " is down: "
"""Text in the worst of the sentences on nodes."""


class Health(NamedTuple):
    """``level`` is good, warn or bad; ``sentence`` is the verdict, and ``reasons`` are all that speaks against good."""

    level: str
    sentence: str
    reasons: tuple[str, ...]


def health_of(
    nodes: Iterable[tuple[str, bool]],
    backlogs: Mapping[tuple[str, str], Backlog | None],
    paused: Collection[tuple[str, str]] = (),
    problems: Iterable[str] = (),
) -> Health:
    """Return the health of a cluster.

    Args:
        nodes: name of each, and whether it is up.
        backlogs: work by topic and group; None if no replica of a partition answered.
        paused: topics and groups that are paused.
        problems: sentences on nodes that are up.
    """
    all_nodes = list(nodes)
    down = [name for name, up in all_nodes if not up]
    bad, warn = [], []
    if 2 * len(down) >= len(all_nodes):
        bad.append(f"{', '.join(down)} of {len(all_nodes)} nodes are down: no majority")
    elif down:
        warn.append(f"{', '.join(down)} {'is' if len(down) == 1 else 'are'} down, the others go on")
    warn += sorted(problems, key=lambda text: DOWN not in text)
    waiting = []
    for (topic, group), backlog in backlogs.items():
        if backlog is None:
            bad.append(f"{group} of {topic}: no replica of a partition answers")
        elif text := warning_of(topic, group, backlog, is_paused=(topic, group) in paused):
            waiting.append(((topic, group) in paused, -backlog.ready, text))
    warn += [text for _, _, text in sorted(waiting)]
    dead = sum(backlog.dead for backlog in backlogs.values() if backlog is not None)
    dead_text = f" There {'is' if dead == 1 else 'are'} {plural(dead, 'dead letter')}." if dead else ""
    if bad:
        return Health("bad", f"Something is wrong: {bad[0]}.", tuple(bad + warn))
    if warn:
        return Health("warn", f"The cluster works. {short(warn[0])}.{dead_text}", tuple(warn))
    up = f"All {len(all_nodes)} nodes are up" if len(all_nodes) > 1 else "The node is up"
    waits = f"no group waits for more than {ago(OLD_S)}" if backlogs else "there are no groups yet"
    return Health("good", f"{up}, {waits}.{dead_text}", ())


def short(problem: str) -> str:
    """Return a sentence on a node without its causes and remedies."""
    text, _, _ = problem.partition(": ")
    return text if " " in text else problem


def warning_of(topic: str, group: str, backlog: Backlog, *, is_paused: bool) -> str:
    """Return why a group's messages wait; "" if none waits for long."""
    name = f"{group} of {topic}"
    age = backlog.oldest or 0.0
    waiting = f"{plural(backlog.ready, 'message')} {'waits' if backlog.ready == 1 else 'wait'}"
    if is_paused:
        return f"Group {name} is paused, and {waiting}"
    if backlog.ready and not backlog.consumers:
        return f"Nobody reads {name}, where {waiting}"
    if backlog.ready and age > OLD_S:
        return f"In {name} {waiting}, the oldest for {ago(age)}"
    return ""


def ago(seconds: float) -> str:
    """Return a time span in words: 8 s, 5 min, 3 h, 2 days."""
    for size, unit in ((86_400, "day"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            count = int(seconds // size)
            return f"{count} {unit}{'s' if unit == 'day' and count > 1 else ''}"
    return f"{int(seconds)} s"
