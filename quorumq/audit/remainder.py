"""Lines that could not be read, or are there twice, and writers that are missing."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from quorumq.audit.lines import Stretch
from quorumq.audit.reasons import TORN, Unread
from quorumq.history import Row

GIVEN_TWICE: Final = "a file that was given twice, and is read once"


class Remainder(NamedTuple):
    """Lines that were not read or are not there, of a run or, if that is empty, of every run.

    Attributes:
        gap: True if the run holds nothing.
        lossy: True if its absences prove nothing.
    """

    run: str
    kind: str
    detail: str
    count: int  # type: ignore[assignment]
    gap: bool
    lossy: bool


def lines_once(stretches: Iterable[Stretch], copies: Mapping[tuple[str, str], int]) -> list[Stretch]:
    """Return the stretches, the lines of a writer whose file was given several times counted once."""
    result = list(stretches)
    for (run, who), more in copies.items():
        mine = [at for at, it in enumerate(result) if (it.writer.run, it.writer.who) == (run, who)]
        count = sum(result[at].lines for at in mine) // (1 + more)
        for at in mine:
            result[at] = result[at]._replace(lines=count if at == mine[0] else 0)
    return result


def once(rows: Sequence[Row]) -> tuple[list[Row], Counter[tuple[str, str]], Counter[tuple[str, str]]]:
    """Return the lines, each once of a file that was given twice, and the first lines that are there too often.

    By a real clock no two lines are alike: a file was given twice. Two simulated runs of one name may begin alike.

    Returns:
        The lines; count of surplus copies by run and writer of files given twice; the same of simulated runs.
    """
    firsts = Counter(
        (
            it["run"],
            it["who"],
            it["at"],
            it.get("clock") == "simulated",
            json.dumps(it["settings"], sort_keys=True),
        )
        for it in rows
        if it["kind"] == "settings"
    )
    copies: Counter[tuple[str, str]] = Counter()
    namesakes: Counter[tuple[str, str]] = Counter()
    for (run, who, _, simulated, _), count in firsts.items():
        if count > 1:
            (namesakes if simulated else copies)[(run, who)] += count - 1
    if not copies:
        return list(rows), copies, namesakes
    seen, kept = set(), []
    for row in rows:
        if (row["run"], row["who"]) in copies:
            text = json.dumps(row, sort_keys=True)
            if text in seen:
                continue
            seen.add(text)
        kept.append(row)
    return kept, copies, namesakes


def remainder(
    rows: Sequence[Row], stretches: Sequence[Stretch], unread: Sequence[Unread],
    copies: Counter[tuple[str, str]], namesakes: Counter[tuple[str, str]],
) -> list[Remainder]:  # fmt: skip
    """Return the lines that could not be read, and the writers that are missing.

    A line without a known run counts against every run; it has an empty ``run``.
    """
    result = []
    for (run, reason), items in by_key(unread, lambda it: (it.run or "", it.reason)).items():
        harmless = all(it.harmless for it in items)
        lossy = any(not it.harmless or it.reason.startswith(TORN) for it in items)
        result.append(Remainder(run, reason, min(it.file for it in items), len(items), not harmless, lossy))
    firsts = {(it["run"], it["who"]) for it in rows if it["kind"] == "settings"}
    simulated = {it["run"] for it in rows if it.get("clock") == "simulated"}
    truncated = {(it["run"], it["who"]) for it in rows if it["kind"] == "truncated"}
    writers = {(it.writer.run, it.writer.who) for it in stretches}
    unsaid = {it for it in writers - firsts if it[0] not in simulated}
    absent = {(run, node) for run, missing in silent_nodes(rows, writers).items() for node in missing or ()}
    twice = "a first line that is there more than once: a file was given twice, or two runs have one name"
    for label, some_writers, gap, lossy in (
        ("a writer without its first line (settings)", dict.fromkeys(unsaid, 1), True, True),
        ("a writer reached its limit (truncated)", dict.fromkeys(truncated, 1), True, True),
        (GIVEN_TWICE, copies, False, False),
        (twice, namesakes, True, True),
        ("a node without a history", dict.fromkeys(absent, 1), False, True),
    ):
        for run, names in by_key(sorted(some_writers), lambda it: it[0]).items():
            count = sum(some_writers[it] for it in names)
            result.append(Remainder(run, label, ", ".join(who for _, who in names), count, gap, lossy))
    return result


def silent_nodes(rows: Iterable[Row], writers: Iterable[tuple[str, str]]) -> dict[str, set[str] | None]:
    """Return by run the nodes that others name and that wrote no history; None if no writer names any."""
    named: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        if row["kind"] == "settings":
            nodes = row["settings"].get("nodes")
            if isinstance(nodes, list) and all(
                isinstance(it, str | int | float) or it is None for it in nodes
            ):
                named[row["run"]] |= {str(it) for it in nodes if it is not None}
    wrote: dict[str, set[str]] = defaultdict(set)
    for run, who in writers:
        wrote[run].add(who.removeprefix("node:") if who.startswith("node:") else "")
    return {run: named[run] - wrote[run] if named.get(run) else None for run in wrote}


def by_key(items: Iterable[Any], key: Callable[[Any], Any]) -> dict[Any, list[Any]]:
    result: dict[Any, list[Any]] = {}
    for it in items:
        result.setdefault(key(it), []).append(it)
    return result
