"""The report on dead letters.

From the top: unreadable data, the numbers, the plan. Then the reasons: kinds of failures, times, durations, versions
and hosts, poison, and a message of each kind with the commands to go on (deadletters.html). It takes plain values, so
that it can be tested without Spark. It shows tops: all rows are in the tables.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from hashlib import sha256
from typing import Any, Final

from .. import COMMAND
from . import plots
from .page import duration, number, rendered

Row = dict[str, Any]

SHOWN_MULTIPLES: Final = 6
TABLES: Final = (
    "letters", "samples", "places", "failures", "counts", "rates", "bursts", "ages", "deploys", "poison", "decisions",
    "problems",
)  # fmt: skip
"""Tables that are written under OUT/tables, in this order."""

REASONS: Final = ("rejected", "max-deliveries", "expired", "unknown")
VERDICTS: Final = ("redrive", "hold", "discard")


def page(summary: Row, tops: Row) -> str:
    """Return the whole report from summary.json and the result of `spark.jobs.letters_summary.facts_of`."""
    tops, nodes = titled(tops), said_nodes(summary)
    shown = bool(summary["deaths"] or tops["failures"])
    return rendered(
        "deadletters.html", title="Dead letters", command=COMMAND, tables=TABLES, verdicts=VERDICTS,
        summary=summary, tops=tops, nodes=nodes, shown=shown, doubts=doubts(summary), figures=figures(summary),
        kinds=sum(summary["plan"][name]["failures"] for name in VERDICTS),
        samples=[(row, dead, commands(row, dead, nodes)) for row in tops["failures"]
                 if (dead := tops["samples"].get(kind_of(row)))],
        anchor=anchor, error=error, clock=clock, bytes_text=bytes_text, redrive=redrive, bars=bars,
        **(drawn(tops) if shown else {}),
    )  # fmt: skip


def doubts(summary: Row) -> list[str]:
    """Return sentences on the numbers that are to be doubted."""
    said = {
        "undated": "have no plausible time of death, and are in no rate or age",
        "skewed": "died before they were published, by their clocks: a producer's is ahead of a node's; they are in no "
        "time to death",
    }
    return [f"{number(summary[name])} {text}" for name, text in said.items() if summary[name]]


def figures(summary: Row) -> Iterator[tuple[str, str]]:
    """Yield the numbers on top, each with its meaning."""
    yield number(summary["dead"]), "dead letters now"
    yield number(summary["deaths"] - summary["dead"]), "settled since: redriven, acked or purged"
    yield number(summary["failures"]), "kinds of failures"
    if status := summary["status"]:
        yield f"{number(status['new'])} / {number(status['regressed'])}", "kinds new / regressed"
        yield number(status["gone"]), "kinds gone"
    if summary["oldest_published_at"]:
        first, now = (datetime.fromisoformat(summary[at]) for at in ("oldest_published_at", "as_of"))
        yield duration((now - first).total_seconds()), "since the oldest was published"
    yield number(summary["bursts"]), "bursts"
    yield number(summary["regressions"]), "suspicious deploys"


# ------------------------------------------------------------------------------------- plots


def drawn(tops: Row) -> Row:
    """Return the plots, each as None if there is nothing to draw."""
    seconds = tops["period"]["seconds"]
    texts = {row["failure"]: error(row, 60) for row in reversed(tops["failures"])}
    versions = any(row["version"] for row in tops["by_version"])
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in tops["rates"]:
        groups.setdefault((row["topic"], row["group"]), []).append(row)
    largest = sorted(groups, key=lambda name: -sum(row["deaths"] for row in groups[name]))[:SHOWN_MULTIPLES]
    high = (plots.colour(0), plots.COLOURS["--burst"])
    panels = [
        plots.Panel(
            plots.short(" · ".join(name), 90), [row["from_at"] for row in rows],
            [([row["deaths"] for row in rows], [high[row["burst"]] for row in rows])], rows[0]["usual"],
        )
        for name in largest if (rows := groups[name])
    ]  # fmt: skip
    by_failure = tops["by_failure"] and stacked(tops, "failure", "all others", "Deaths by failure", texts)
    name = "Deaths over time by topic and group"
    return {
        "width": plots.width_of(seconds),
        "by_failure": by_failure,
        "by_version": versions and stacked(tops, "version", "(none)", "Deaths by consumer version"),
        "groups": by_failure and plots.over_time("groups", name, panels, seconds, 74),
        "largest": f"; the {SHOWN_MULTIPLES} largest groups" if len(groups) > SHOWN_MULTIPLES else "",
    }


def stacked(tops: Row, column: str, rest: str, caption: str, texts: Mapping[str, str] = {}) -> Row:
    """Return deaths over time, with a colour for each name, and its text; ``rest`` is the name of those without one."""
    times, series = pivot(tops[f"by_{column}"], column, tops["period"])
    panel = plots.Panel("", times, [(values, plots.colour(index)) for _, values, index in series])
    label, seconds = f"{caption} over time", tops["period"]["seconds"]
    legend = [(texts.get(name, name or rest), min(index, plots.OTHERS)) for name, _, index in series]
    return {"svg": plots.over_time(f"by-{column}", label, [panel], seconds, 260), "legend": legend}


# ------------------------------------------------------------------------------------ pieces


def said_nodes(summary: Row) -> str:
    """Return the nodes of a cluster that was read live, as the command line has them."""
    nodes = filter(None, map(str.strip, summary["nodes"].split(",")))
    return "".join(f" --node {shlex.quote(node)}" for node in nodes)


def kind_of(row: Mapping[str, Any]) -> tuple[str, str, str]:
    return row["topic"], row["group"], row["failure"]


def commands(row: Row, dead: Row, nodes: str) -> list[str]:
    """Return the commands to go on with a kind of failure."""
    location = f"{shlex.quote(row['topic'])} --group {shlex.quote(row['group'])}"
    # A dead letter without a fingerprint is found by its partition, as nothing else in the command line names its kind.
    kind = f"--fingerprint {shlex.quote(row['failure'])}"
    if row["failure"] in REASONS:
        kind = f"--partition {dead['partition']}"
    lines = [f"quorumq deadletters list {location} {kind} --each{nodes}"]
    if row["dead"] and row["failure"] not in REASONS:
        lines.append(f"quorumq deadletters redrive {location} {kind} --dry-run{nodes}")
    return lines


def titled(tops: Row) -> Row:
    """Return the facts, with the text of its kind in each row that names a failure."""
    texts = {row["failure"]: error(row) for row in reversed(tops["failures"])}

    def with_title(row: Row) -> Row:
        return {**row, "title": texts.get(row["failure"], row["failure"])}

    named = ("failures", "decisions", "bursts", "places")
    return {**tops, **{name: [with_title(row) for row in tops[name]] for name in named}}


def redrive(row: Mapping[str, Any], nodes: str) -> str:
    """Return the command that redrives one kind; "" for one that is not to be, or that no command names."""
    if row["verdict"] != "redrive" or row["failure"] in REASONS:
        return ""
    named = (row["topic"], "--group", row["group"], "--fingerprint", row["failure"])
    return " ".join(("quorumq deadletters redrive", *map(shlex.quote, named))) + nodes


def bars(row: Mapping[str, Any], tops: Row) -> dict[str, str] | None:
    """Return the deaths of a kind over time as the path of a drawing, and its label; None without any."""
    period = tops["period"]
    begin, step = period["begin"].timestamp() // period["seconds"], period["seconds"]
    count = int(period["end"].timestamp() // step - begin) + 1
    deaths = [0] * count
    for at, number_of in tops["sparks"].get(kind_of(row), ()):
        deaths[min(count - 1, max(0, int(at.timestamp() // step - begin)))] += number_of
    if not any(deaths):
        return None
    width, most = 96 / count, max(deaths)
    path = "".join(
        f"M{at * width:.1f} 20v-{max(1.5, 18 * died / most):.1f}h{max(0.8, width * 0.8):.1f}V20z"
        for at, died in enumerate(deaths)
        if died
    )
    label = f"at most {number(most)} {plots.width_of(step).removeprefix('deaths ')}"
    return {"path": path, "label": label}


def anchor(row: Mapping[str, Any]) -> str:
    """Return the name of the sample of a kind of failure, which is safe for any name of a topic."""
    return "f" + sha256("\0".join(kind_of(row)).encode()).hexdigest()[:12]


def error(row: Mapping[str, Any], most: int = 160) -> str:
    """Return class and first line of an error, cut to `most` characters."""
    first = next(iter(row["message"].strip().splitlines()), "")
    text = ": ".join(filter(None, (row["error_class"].rpartition(".")[2], first))) or row["reason"]
    return plots.short(text, most)


def pivot(
    rows: Sequence[Row], name: str, period: Row
) -> tuple[list[datetime], list[tuple[str, list[int], int]]]:
    """Return counts in every bucket of the period as a list for each name: the largest first, the rest last."""
    step = period["seconds"]
    first = int(period["begin"].timestamp()) // step * step
    last = int(period["end"].timestamp()) // step * step
    buckets = list(range(first, last + 1, step))
    at = {bucket: index for index, bucket in enumerate(buckets)}
    counts: dict[str, list[int]] = {}
    for row in rows:
        values = counts.setdefault(row[name], [0] * len(buckets))
        values[at[int(row["from_at"].timestamp())]] += row["deaths"]
    rest = [key for key in ("", "others") if key in counts]
    names = sorted((key for key in counts if key not in rest), key=lambda key: (-sum(counts[key]), key))
    zone = period["begin"].tzinfo
    times = [datetime.fromtimestamp(bucket, zone) for bucket in buckets]
    series = [(key, counts[key], index) for index, key in enumerate(names)]
    return times, series + [(key, counts[key], plots.OTHERS) for key in rest]


def bytes_text(data: bytes) -> str:
    """Return a key or payload as text if it is text, else in hex, cut."""
    try:
        return bytes(data).decode()
    except UnicodeDecodeError:
        return bytes(data[:512]).hex(" ") + (" …" if len(data) > 512 else "")


def clock(text: str) -> str:
    return text[:19].replace("T", " ")
