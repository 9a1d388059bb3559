"""An audit from its lines to its verdicts, with parts in memory, in files or in Spark.

The rule: `broken` needs proof, `holds` needs something looked at and nothing left open. Anything between is `not
decidable`, with a count. A guarantee that a history says nothing about is `not checked`. No guarantee holds in a run
with lines that could not be read, because their content is not known.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from quorumq.audit import settings
from quorumq.audit.clocks import (
    Clocks,
    Part,
    Times,
    bounds,
    clocks_of,
    promised,
    requests_in_context,
    tightest,
)
from quorumq.audit.context import Context, Run, contexts
from quorumq.audit.findings import (
    BROKEN,
    GUARANTEES,
    SHOWN,
    UNDECIDED,
    Finding,
    Judged,
    Proof,
    Sums,
    Where,
    in_order,
    of_bucket,
)
from quorumq.audit.lines import Summary
from quorumq.audit.remainder import lines_once, once, remainder, silent_nodes
from quorumq.audit.replicas import smallest_sets
from quorumq.audit.table import Table

T = TypeVar("T")
Rows = list[dict[str, Any]]

COUNTED: Final = ("published", "unknown", "delivered", "acked", "broken")
"""Names of the counts of events while a fault lasted."""

HOLDS: Final = "holds"
NOT_CHECKED: Final = "not checked"


class Parts(Protocol):
    """The parts of a history: each has all lines about its messages."""

    def map(self, function: Callable[[Table], T]) -> Iterable[T]:
        """Return the result of a function for each, which is small."""

    def check(self, context: Context) -> Judged:
        """Check all messages and outputs of the parts; the result need not have the findings of all."""


class Audit(NamedTuple):
    """Result of an audit: small tables, and findings."""

    verdicts: Rows
    remainder: Rows
    unread: Rows
    latency: Rows
    redeliveries: Rows
    faults: Rows
    divergence: Rows
    runs: Rows
    clocks: Rows
    judged: Judged

    def tables(self) -> dict[str, Rows]:
        return {name: rows for name, rows in self._asdict().items() if name != "judged"}


def audit(summary: Summary, parts: Parts, *, drained: bool = False) -> Audit:
    """Audit a history.

    Args:
        drained: True if runs that do not say so are over, with nothing left to deliver.
    """
    rows, copies, namesakes = once(summary.lines)
    summary = summary._replace(stretches=lines_once(summary.stretches, copies))
    firsts = [it for it in rows if it["kind"] == "settings"]
    of, names = clocks_of(summary.stretches, firsts)
    clocks = Clocks(summary.stretches, of, names)
    times = located(clocks, Times(of, clocks.width), rows, parts, of) if clocks.several else Times(of)
    shown = clocks.shown() if clocks.several else []
    del clocks  # its windows and bounds take memory that the checks need
    rest = remainder(rows, summary.stretches, summary.unread, copies, namesakes)
    context = contexts(summary, times, rows, copies, rest, drained=drained)
    judged = parts.check(context)
    of_runs = Judged()
    settings.check(rows, context.runs, of_runs)
    for run in context.runs.values():
        _stuck(run, of_runs)
    judged.findings += of_runs.findings
    judged.add(of_runs)
    return Audit(
        verdicts(context.runs, judged.sums), [it._asdict() for it in sorted(rest)],
        [it._asdict() for it in sorted(summary.unread, key=str)],
        latency(judged.sums), redeliveries(judged.sums), faults(context, judged.sums),
        sorted(judged.divergence, key=lambda it: str(list(it.values()))),
        [it._asdict() for it in context.runs.values()], shown, judged,
    )  # fmt: skip


def located(
    clocks: Clocks,
    times: Times,
    rows: Sequence[dict[str, Any]],
    parts: Parts,
    of: Mapping[tuple[str, str], Any],
) -> Times:
    """Return the times of runs with several clocks."""
    asked = requests_in_context(rows, times)
    first = bounds(asked, asked[:0], times.width)
    clocks.locate(tightest(chain((first,), parts.map(partial(_bounds, times)))))
    if clocks.unplaced:
        silent = {run: None if items is None else len(items) for run, items in silent_nodes(rows, of).items()}
        times = clocks.times
        smallest = smallest_sets(rows)
        first = promised(asked, times, silent)
        clocks.trust(tightest(chain((first,), parts.map(partial(_promised, times, silent, smallest)))))
    return clocks.times


def _bounds(times: Times, table: Table) -> Any:
    part = Part(table, times)
    return bounds(part.made(), part.got(), times.width)


def _promised(
    times: Times, silent: Mapping[str, int | None], smallest: Mapping[tuple[str, str, int], int], table: Table
) -> Any:
    return promised(Part(table, times).made(smallest), times, silent)


def _stuck(run: Run, out: Judged) -> None:
    """Ask if a run that was healed, and ended, was drained."""
    if run.healed_at is not None and run.drained_at is None and run.ended_at is not None:
        bound = f"the {run.bound or 0:.2f} s that it may take"
        text = f"healed at {run.healed_at:.4f} s, and after {bound} not everything is settled"
        out.report("G4", "not settled in time after it was healed", Proof(text), Where(run.run), run.ended_at)


# ------------------------------------------------------------------------- verdicts


def verdict(checked: int, broken: int, undecidable: int) -> str:
    return BROKEN if broken else UNDECIDED if undecidable else HOLDS if checked else NOT_CHECKED


def verdicts(runs: Mapping[str, Run], sums: Sums) -> Rows:
    counts: Counter[tuple[str, str, str]] = Counter()
    for key, count in sums.counts.items():
        if key[0] in ("checked", "undecidable", BROKEN, UNDECIDED):
            counts[key[:3]] += count
    result = []
    for run in runs.values():
        for name in GUARANTEES:
            checked, broken = counts[("checked", run.run, name)], counts[(BROKEN, run.run, name)]
            undecidable = (
                counts[("undecidable", run.run, name)] + counts[(UNDECIDED, run.run, name)] + run.gaps
            )
            row = {"checked": checked, "broken": broken, "undecidable": undecidable}
            result.append(
                {"run": run.run, "guarantee": name, "verdict": verdict(checked, broken, undecidable), **row}
            )
    return result


def overall(rows: Rows) -> Rows:
    """Return the verdicts over all runs together, with the counts of runs checked and runs broken."""
    result = []
    for name in GUARANTEES:
        mine = [it for it in rows if it["guarantee"] == name]
        sums = {label: sum(it[label] for it in mine) for label in ("checked", "broken", "undecidable")}
        runs = {
            "runs": len(mine),
            "runs_checked": sum(it["checked"] > 0 for it in mine),
            "runs_broken": sum(it["verdict"] == BROKEN for it in mine),
        }
        result.append({"guarantee": name, "verdict": verdict(**sums), **sums, **runs})
    return result


# -------------------------------------------------------------------------- figures


def latency(sums: Sums) -> Rows:
    """Return the seconds that messages waited for their first delivery, and their numbers of deliveries.

    Counted from when the publish was sent, or confirmed if a history says no more. ``untimed``: messages without a
    known time, because a clock is not placed, or no client wrote of the publish. Quantiles are exact to 1 %.
    """
    result = []
    for key in sorted(key[1:] for key in sums.counts if key[0] == "messages"):
        waits, attempts = sums.waits.get(key, Counter()), sums.attempts[key]
        longest = sums.longest.get(key)
        row = dict(zip(("run", "topic", "group"), key, strict=True))
        row |= {
            label: sums.counts[(label, *key)]
            for label in ("deliveries", "messages", "redelivered", "untimed")
        }
        for share in (50, 90, 99):
            it = quantile(waits, share / 100)
            row[f"p{share}"] = None if it is None or longest is None else min(of_bucket(it), longest)
        row["max"] = longest
        row |= {f"attempts_p{share}": quantile(attempts, share / 100) for share in (50, 99)}
        result.append({**row, "attempts_max": max(attempts)})
    return result


def quantile(counts: Counter[int], share: float) -> int | None:
    """Return the value below which, with itself, this share lies; None if there is none."""
    remaining = share * sum(counts.values())
    for value in sorted(counts):
        remaining -= counts[value]
        if remaining <= 0:
            return value
    return None


def redeliveries(sums: Sums) -> Rows:
    """Return the counts of deliveries but the first, by the event that each followed."""
    names = ("run", "topic", "group", "after")
    return [
        {**dict(zip(names, key[1:], strict=True)), "deliveries": count}
        for key, count in sorted((key, count) for key, count in sums.counts.items() if key[0] == "after")
    ]


def faults(context: Context, sums: Sums) -> Rows:
    """Return the counts of events while each fault lasted."""
    result = []
    for run, items in context.faults.items():
        for fault, begin, end, nodes in dict.fromkeys(items):
            counts = {name: sums.counts[("during", run, begin, end, name)] for name in COUNTED}
            result.append(
                {"run": run, "fault": fault, "begin": begin, "end": end, "nodes": ", ".join(nodes), **counts}
            )
    return result


# -------------------------------------------------------------------------- summary


def summarised(of: Audit, paths: Sequence[str]) -> dict[str, Any]:
    """Return the content of summary.json: the verdicts, and the first rows of each table."""
    rows = overall(of.verdicts)
    unread = sum(it["count"] for it in of.remainder if it["lossy"])
    every = {
        "remainder": sorted(of.remainder, key=lambda it: (-it["count"], it["run"], it["kind"])),
        "latency": _together(of.latency, ("topic", "group"), ("messages", "deliveries", "redelivered", "untimed"),
                             ("p50", "p99", "max")),
        "redeliveries": _together(of.redeliveries, ("topic", "group", "after"), ("deliveries",)),
        "faults": _together([{**it, "times": 1} for it in of.faults], ("fault",), ("times", *COUNTED)),
        "clocks": sorted(of.clocks, key=lambda it: (it["findings"] == "", it["run"], not it["reference"], it["clock"])),
    }  # fmt: skip
    counts = {
        name: sum(it["count"] for it in causes(of.judged) if it["verdict"] == said)
        for name, said in (("broken", BROKEN), ("undecided", UNDECIDED))
    }
    return {
        "runs": len(of.runs),
        "lines": sum(it["lines"] for it in of.runs),
        "unread": unread,
        "paths": list(paths),
        "conclusion": conclusion(rows, unread),
        "verdicts": rows,
        "causes": causes(of.judged),
        "counts": {**counts, **{name: len(items) for name, items in every.items()}},
        "broken": shown(of.judged, BROKEN),
        "undecided": shown(of.judged, UNDECIDED),
        **{name: items[:SHOWN] for name, items in every.items()},
    }


def shown(judged: Judged, said: str) -> Rows:
    """Return the first findings of each guarantee: so that many of one hide none of another."""
    result = []
    for name in GUARANTEES:
        items = [it for key, top in judged.top.items() if key[:2] == (said, name) for it in top]
        result += [it._asdict() for it in sorted(items, key=in_order)[:SHOWN]]
    return result


def causes(judged: Judged) -> Rows:
    """Return the findings by cause: count, count of runs, and the first finding with its story."""
    counts: Counter[tuple[str, str, str]] = Counter()
    runs: dict[tuple[str, str, str], set[str]] = defaultdict(set)
    for key, count in judged.sums.counts.items():
        if key[0] in (BROKEN, UNDECIDED):
            said, run, guarantee, cause = key
            counts[(said, guarantee, cause)] += count
            runs[(said, guarantee, cause)].add(run)
    order = list(GUARANTEES)
    result = []
    for key in sorted(counts, key=lambda it: (it[0], order.index(it[1]), -counts[it], it[2])):
        first: Finding = judged.top[key][0]
        row = {
            **dict(zip(("verdict", "guarantee", "cause"), key, strict=True)),
            "count": counts[key],
            "runs": len(runs[key]),
        }
        result.append({**row, "first": first._asdict()})
    return result


def _together(rows: Rows, by: Sequence[str], sums: Sequence[str], most: Sequence[str] = ()) -> Rows:
    result: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        key = tuple(row[name] for name in by)
        mine = result.setdefault(
            key, {**dict(zip(by, key, strict=True)), **dict.fromkeys(sums, 0), **dict.fromkeys(most)}
        )
        for name in sums:
            mine[name] += row[name]
        for name in most:
            mine[name] = max((it for it in (mine[name], row[name]) if it is not None), default=None)
    return [result[key] for key in sorted(result)]


def conclusion(rows: Sequence[Mapping[str, Any]], unread: int) -> str:
    """Return the verdicts in one sentence, which says no more than they do."""
    by: dict[str, list[str]] = {}
    for row in rows:
        by.setdefault(row["verdict"], []).append(row["guarantee"])
    parts = [
        f"{label}: {', '.join(by[label])}" for label in (BROKEN, UNDECIDED, NOT_CHECKED, HOLDS) if label in by
    ]
    if unread:
        parts.append(f"{unread:,} lines or writers were not read, or are missing")
    return "; ".join(parts) + "."


STRICT_CODE: Final = 3
"""The exit code of --strict if nothing is broken and not everything holds."""


def exit_code(summary: Mapping[str, Any], *, strict: bool) -> int:
    """Return 1 if a guarantee is broken; with ``strict`` 3 if one is not decided or something was not read."""
    said = {row["verdict"] for row in summary["verdicts"]}
    if BROKEN in said:
        return 1
    unread = any(row["lossy"] for row in summary["remainder"])
    return STRICT_CODE if strict and (UNDECIDED in said or unread or HOLDS not in said) else 0
