"""The report on dead letters.

From the top: unreadable data, the numbers, the plan. Then the reasons: kinds of failures, times, durations, versions
and hosts, poison, and a message of each kind with the commands to go on. It takes plain values, so that it can be
tested without Spark. It shows tops: all rows are in the tables.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from hashlib import sha256
from typing import Any, Final

from quorumq.core.values.printable import plural

from .. import COMMAND
from . import plots
from .page import (
    EMPTY,
    Column,
    Html,
    cards,
    duration,
    figure,
    join,
    note,
    number,
    section,
    share,
    shared,
    size,
    soft,
    table,
    tables_beside,
    tag,
    time,
    took,
)
from .page import page as document

Row = dict[str, Any]

SHOWN_MULTIPLES: Final = 6
TABLES: Final = (
    "letters", "samples", "places", "failures", "counts", "rates", "bursts", "ages", "deploys", "poison", "decisions",
    "problems",
)  # fmt: skip
"""Tables that are written under OUT/tables, in this order."""

REASONS: Final = ("rejected", "max-deliveries", "expired", "unknown")


def page(summary: Row, tops: Row) -> str:
    """Return the whole report from summary.json and the result of `spark.jobs.letters_summary.facts_of`."""
    tops = titled(tops)
    parts = [head(summary), problems(summary)]
    if summary["deaths"] or tops["failures"]:
        builders = (numbers, what_to_do, failures, over_time, how_long, where, again, samples)
        parts += [part(summary, tops) for part in builders]
        parts.append(tables_beside(TABLES))
    else:
        parts.append(note("good", "There are no dead letters."))
    foot = f"{COMMAND} deadletters · what each number means: docs/spark.md, “Dead letters” · times in UTC"
    return document("Dead letters", join((*parts, tag("footer", foot))))


# ------------------------------------------------------------------------------------- parts


def head(summary: Row) -> Html:
    about = [f"As of {clock(summary['as_of'])} UTC"]
    if summary["cluster"]:
        about.append(f"cluster {summary['cluster']}")
    about.append(f"read from {summary['source']}")
    if summary["since"]:
        about.append(f"only those since {summary['since']['out']} of {clock(summary['since']['as_of'])}")
    if summary["previous"]:
        about.append(f"compared with {summary['previous']['out']} of {clock(summary['previous']['as_of'])}")
    return join((tag("h1", "Dead letters"), tag("p", " · ".join(about), class_="meta")))


def problems(summary: Row) -> Html:
    """Return the data that could not be read, and the numbers that are to be doubted."""
    unread = summary["problems"]
    parts: list[Html] = []
    if unread["count"]:
        text = (
            f"{plural(unread['count'], 'place')} of the input could not be read. "
            "What was there is in none of the numbers below, unless another replica has it."
        )
        columns = [Column(name) for name in unread["rows"][0]] if unread["rows"] else []
        details = tag("details", join((tag("summary", "Which"), table(columns, unread["rows"], empty=""))))
        parts.append(note("warn", join((tag("b", text), details))))
    doubts = []
    if summary["undated"]:
        doubts.append(
            f"{number(summary['undated'])} have no plausible time of death, and are in no rate or age"
        )
    if summary["skewed"]:
        doubts.append(
            f"{number(summary['skewed'])} died before they were published, by their clocks: a producer's is ahead of a "
            "node's; they are in no time to death"
        )
    if doubts:
        parts.append(note("warn", "Of these dead letters, " + "; ".join(doubts) + "."))
    return join(parts)


def numbers(summary: Row, tops: Row) -> Html:
    settled = summary["deaths"] - summary["dead"]
    figures = [
        (number(summary["dead"]), "dead letters now"),
        (number(settled), "settled since: redriven, acked or purged"),
        (number(summary["failures"]), "kinds of failures"),
    ]
    if summary["status"]:
        status = summary["status"]
        figures += [(f"{number(status['new'])} / {number(status['regressed'])}", "kinds new / regressed"),
                  (number(status["gone"]), "kinds gone")]  # fmt: skip
    if summary["oldest_published_at"]:
        first, now = (datetime.fromisoformat(summary[at]) for at in ("oldest_published_at", "as_of"))
        figures.append((duration((now - first).total_seconds()), "since the oldest was published"))
    figures += [(number(summary["bursts"]), "bursts"), (number(summary["regressions"]), "suspicious deploys")]
    return cards(figures)


def what_to_do(summary: Row, tops: Row) -> Html:
    plan = summary["plan"]
    columns = [
        Column("Verdict", of=label("verdict")), Column("Messages", "n"), Column("Failure", of=failure),
        Column("Topic"), Column("Group"), Column("Why", "w", of="reason"),
        Column("Rate", "n", "messages a second", per("rate", "s")),
        Column("Command", "w", "of this kind alone", lambda row: redrive(row, said_nodes(summary))),
    ]  # fmt: skip
    rows = tops["decisions"]
    total = ", ".join(f"{name} {number(plan[name]['messages'])}" for name in ("redrive", "hold", "discard"))
    more = sum(plan[name]["failures"] for name in plan) - len(rows)
    command = f"quorumq deadletters redrive --plan plan.jsonl{said_nodes(summary)} --dry-run"
    return section(
        "plan", "What to do",
        f"By the rules of docs/spark.md, of {number(summary['dead'])} messages: {total}. The plan is in "
        "plan.jsonl beside this file, to be read, changed and carried out" + (
            "; the dry run first:" if plan["redrive"]["messages"] else ". It redrives nothing as it is."),
        tag("pre", command) if plan["redrive"]["messages"] else EMPTY,
        table(columns, rows, empty="Nothing is a dead letter at the moment, so there is nothing to do.", more=more),
    )  # fmt: skip


def failures(summary: Row, tops: Row) -> Html:
    columns = [
        DEAD, Column("Deaths", "n", "with those settled since"), SHARE,
        Column("When", "", "deaths over time", lambda row: spark_line(row, tops)),
        Column("Failure", "w", "class and text; its fingerprint, or the reason, when pointed at", failure),
        Column("Topic", "i"), Column("Group", "i"),
        Column("Per hour", "n", "from its first to its last death", "per_hour"),
        Column("Last died", "t", "UTC; below, the first", both_ends),
        Column("First in", "", "the consumer version of its first death", "first_version"),
        Column("Versions", "i", of=lambda row: ", ".join(row["versions"])),
    ]  # fmt: skip
    if summary["status"] is not None:
        columns.insert(0, Column("Since", "", "compared with the previous run", label("status")))
    more = summary["failures"] - len(tops["failures"])
    return section(
        "failures", "Kinds of failures",
        "Dead letters with one fingerprint (class, message without numbers and ids, innermost frame) failed in the "
        "same way. Those without one go by their reason.",
        table(columns, tops["failures"], empty="None.", more=more),
    )  # fmt: skip


def over_time(summary: Row, tops: Row) -> Html:
    width = plots.width_of(tops["period"]["seconds"])
    if not tops["by_failure"]:
        text = "No dead letter has a plausible time of death, so there is nothing to draw."
        return section("time", "Over time", tag("p", text, class_="empty"))
    hint = "by time of death, UTC; the largest kinds in all groups"
    texts = {row["failure"]: error(row, 60) for row in reversed(tops["failures"])}
    stack = stacked(tops, "failure", "all others", "Deaths by failure", hint, texts)
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
    multiples = figure(
        "Deaths by topic and group",
        f"{width}, UTC; dashed: the usual (median); red: bursts" + (
            f"; the {SHOWN_MULTIPLES} largest groups" if len(groups) > SHOWN_MULTIPLES else ""),
        plots.over_time("groups", "Deaths over time by topic and group", panels, tops["period"]["seconds"], 74),
    )  # fmt: skip
    columns = [
        Column("From", "t", "UTC", "from_at"), Column("Lasted", "n", of=took("lasted")), Column("Topic"),
        Column("Group"), Column("Deaths", "n"), Column("Peak", "n", f"in one bucket: {width}"),
        Column("Usual", "n", f"the median: {width}"), Column("Score", "n", "standard deviations above the usual"),
        MOSTLY, OF_THESE,
    ]  # fmt: skip
    rows = [{**row, "lasted": (row["to_at"] - row["from_at"]).total_seconds()} for row in tops["bursts"]]
    return section(
        "time", "Over time", stack, multiples,
        tag("h3", "Bursts", style="margin-top:1rem"),
        table(columns, rows, empty="No bursts: at no time did distinctly more die than usual (at least 10 in a bucket, "
              "and at least 8 buckets to compare).", more=summary["bursts"] - len(rows)),
    )  # fmt: skip


def stacked(
    tops: Row, column: str, rest: str, caption: str, hint: str, texts: Mapping[str, str] = {}
) -> Html:
    """Return deaths over time, with a colour for each name, and its text; ``rest`` is the name of those without one."""
    times, series = pivot(tops[f"by_{column}"], column, tops["period"])
    seconds = tops["period"]["seconds"]
    panel = plots.Panel("", times, [(values, plots.colour(index)) for _, values, index in series])
    return figure(
        caption, f"{plots.width_of(seconds)}, {hint}",
        plots.over_time(f"by-{column}", f"{caption} over time", [panel], seconds, 260),
        legend=plots.legend([(texts.get(name, name or rest), index) for name, _, index in series]),
    )  # fmt: skip


def how_long(summary: Row, tops: Row) -> Html:
    columns = [
        Column("Topic"), Column("Group"), DEAD, Column("Deaths", "n"),
        Column("Age p50", "n", "since the death of those dead now", took("age_p50")),
        Column("Age p99", "n", of=took("age_p99")), Column("Oldest", "n", of=took("age_max")),
        Column("To death p50", "n", "from publish to death", took("to_death_p50")),
        Column("To death p99", "n", of=took("to_death_p99")), Column("Longest", "n", of=took("to_death_max")),
    ]  # fmt: skip
    return section("ages", "How long", table(columns, tops["ages"], empty="None."))


def where(summary: Row, tops: Row) -> Html:
    parts: list[str] = []
    if any(row["version"] for row in tops["by_version"]):
        parts.append(stacked(tops, "version", "(none)", "Deaths by consumer version", "UTC"))
    columns = [
        Column("Version"),
        Column("", of=lambda row: tag("span", "suspicious", class_="tag bad") if row["regression"] else ""),
        Column("Topic"), Column("Group"), FIRST_DIED, Column("Deaths", "n"),
        Column("Before", "n", "deaths an hour before its first", per("before_per_hour", "h")),
        Column("After", "n", "deaths an hour from its first", per("after_per_hour", "h")),
        Column("Its own", "n", "share of those after", lambda row: share(row["after_own"], row["after_deaths"])),
        Column("Score", "n", "standard deviations above what was before"),
    ]  # fmt: skip
    parts += [
        "Deaths an hour in the time before a version's first death and in that from then on. These are deaths, not "
        "failures per delivery: a version that is given more messages dies more.",
        table(columns, tops["deploys"], empty="No consumer said its version, so nothing can be said of deploys."),
    ]  # fmt: skip
    columns = [
        Column("What", of="kind"), Column("Name", of=lambda row: row["name"] or soft("not known")),
        Column("Deaths", "n"), SHARE, DEAD, Column("Topic"), Column("Group"), FAILURES, MOSTLY, OF_THESE, LAST_DIED,
    ]  # fmt: skip
    parts += [
        tag("h3", "Versions, hosts, consumers and nodes", style="margin-top:1rem"),
        table(columns, tops["places"], empty="None."),
    ]
    return section("places", "Where: was it a deploy?", *parts)


def again(summary: Row, tops: Row) -> Html:
    columns = [
        Column("What", of=lambda row: tag("span", row["kind"].replace("message", "redrive loop"), class_="tag")),
        Column("Name", "", "SHA-256 of the key or payload",
               lambda row: tag("code", row["name"][:16] + "…") if row["kind"] != "message" else ""),
        Column("Messages", "n"), Column("Deaths", "n"), DEAD, Column("Redrives", "n", "at most"), FAILURES, SHARE,
        Column("Topic"), Column("Group"), LAST_DIED, Column("Such as", of=lambda row: tag("code", row["sample_id"])),
    ]  # fmt: skip
    rows = tops["poison"]
    return section(
        "poison", "What dies again",
        "Keys that at least 3 dead messages have, payloads that at least 2 have, and messages that died again after a "
        "redrive.",
        table(columns, rows, empty="Nothing: no key, payload or message stands out.",
              more=summary["poison"] - len(rows)),
    )  # fmt: skip


def samples(summary: Row, tops: Row) -> Html:
    left_out = f"Keys, headers and payloads are left out; {COMMAND} deadletters --payloads shows them."
    by_kind = tops["samples"]
    each = [
        sample(row, by_kind[kind], said_nodes(summary), tops["payloads"])
        for row in tops["failures"]
        if (kind := (row["topic"], row["group"], row["failure"])) in by_kind
    ]
    return section("samples", "A message of each kind", "" if tops["payloads"] else left_out, *each)


def said_nodes(summary: Row) -> str:
    """Return the nodes of a cluster that was read live, as the command line has them."""
    nodes = filter(None, map(str.strip, summary["nodes"].split(",")))
    return "".join(f" --node {shlex.quote(node)}" for node in nodes)


def sample(row: Row, dead: Row, nodes: str, payloads: bool) -> Html:
    location = f"{shlex.quote(row['topic'])} --group {shlex.quote(row['group'])}"
    # A dead letter without a fingerprint is found by its partition, as nothing else in the command line names its kind.
    kind = f"--fingerprint {shlex.quote(row['failure'])}"
    if row["failure"] in REASONS:
        kind = f"--partition {dead['partition']}"
    about = [
        ("id", tag("code", dead["id"])), ("died", f"{time(dead['died_at'])} UTC, after "
         f"{plural(dead['attempts'], 'delivery', 'deliveries')}: {dead['reason']}; now {dead['resolution']}"),
        ("published", f"{time(dead['published_at'])} UTC" if dead["published_at"] else "not known"),
        ("consumer", " · ".join(filter(None, (dead["consumer"], dead["consumer_version"], dead["host"])))),
        ("node", dead["node"]), ("size", size(dead["size"]) or "not known"),
    ]  # fmt: skip
    if payloads:
        headers = "\n".join(f"{name}: {text}" for name, text in sorted((dead["headers"] or {}).items()))
        about += [("key", tag("pre", bytes_text(dead["key"]), class_="text") if dead["key"] is not None else "none"),
                  ("headers", tag("pre", headers, class_="text") if headers else "none"),
                  ("payload", tag("pre", bytes_text(dead["payload"]), class_="text")
                   if dead["payload"] is not None else "not known")]  # fmt: skip
    tops = tag("dl", join((join((tag("dt", name), tag("dd", value)), "") for name, value in about if value)))
    commands = [f"quorumq deadletters list {location} {kind} --each{nodes}"]
    if row["dead"] and row["failure"] not in REASONS:
        commands.append(f"quorumq deadletters redrive {location} {kind} --dry-run{nodes}")
    parts = [
        tag("summary", join((tag("b", f"{number(row['deaths'])} ×"), error(row), " ",
                             tag("span", f"{row['topic']} · {row['group']} · {row['failure']}", class_="soft")), "")),
        tops,
        tag("pre", dead["message"], class_="text") if dead["message"] else EMPTY,
        tag("details", join((tag("summary", "Stack"), tag("pre", dead["stack"])))) if dead["stack"] else EMPTY,
        tag("pre", "\n".join(commands)),
    ]  # fmt: skip
    return tag("details", join(parts), class_="sample", id=anchor(row))


# ------------------------------------------------------------------------------------ pieces


def label(name: str) -> Callable[[Mapping[str, Any]], Html]:
    return lambda row: tag("span", row[name], class_=f"tag {row[name]}")


def per(name: str, unit: str) -> Callable[[Mapping[str, Any]], Any]:
    return lambda row: "" if row[name] is None else (f"{number(row[name])}/{unit}", row[name])


def titled(tops: Row) -> Row:
    """Return the facts, with the text of its kind in each row that names a failure."""
    texts = {row["failure"]: error(row) for row in reversed(tops["failures"])}

    def with_title(row: Row) -> Row:
        return {**row, "title": texts.get(row["failure"], row["failure"])}

    named = ("failures", "decisions", "bursts", "places")
    return {**tops, **{name: [with_title(row) for row in tops[name]] for name in named}}


def failure(row: Mapping[str, Any]) -> Html:
    if row["failure"] is None:
        return EMPTY
    return tag("a", row["title"], href="#" + anchor(row), title=row["failure"])


def redrive(row: Mapping[str, Any], nodes: str) -> Html:
    """Return the command that redrives one kind; nothing for one that is not to be, or that no command names."""
    if row["verdict"] != "redrive" or row["failure"] in REASONS:
        return EMPTY
    named = (row["topic"], "--group", row["group"], "--fingerprint", row["failure"])
    return tag("code", " ".join(("quorumq deadletters redrive", *map(shlex.quote, named))) + nodes)


def spark_line(row: Mapping[str, Any], tops: Row) -> Html:
    period = tops["period"]
    begin, step = period["begin"].timestamp() // period["seconds"], period["seconds"]
    count = int(period["end"].timestamp() // step - begin) + 1
    deaths = [0] * count
    for at, number_of in tops["sparks"].get((row["topic"], row["group"], row["failure"]), ()):
        deaths[min(count - 1, max(0, int(at.timestamp() // step - begin)))] += number_of
    if not any(deaths):
        return EMPTY
    width, most = 96 / count, max(deaths)
    bars = "".join(
        f"M{at * width:.1f} 20v-{max(1.5, 18 * died / most):.1f}h{max(0.8, width * 0.8):.1f}V20z"
        for at, died in enumerate(deaths)
        if died
    )
    label = f"at most {number(most)} {plots.width_of(step).removeprefix('deaths ')}"
    path = tag("path", "", d=bars)
    return tag("svg", path, class_="spark", viewBox="0 0 96 20", role="img", aria_label=label)


def both_ends(row: Mapping[str, Any]) -> tuple[Html, float | str]:
    first, last = row["first_died_at"], row["last_died_at"]
    shown = join((time(last), tag("small", time(first), class_="unit")), "")
    return shown, "" if last is None else last.timestamp()


def anchor(row: Mapping[str, Any]) -> str:
    """Return the name of the sample of a kind of failure, which is safe for any name of a topic."""
    return "f" + sha256("\0".join((row["topic"], row["group"], row["failure"])).encode()).hexdigest()[:12]


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


# ----------------------------------------------------------------- columns of several tables

DEAD: Final = Column("Dead", "n", "dead letters now")
SHARE: Final = Column("Share", "n", "of the deaths of its group", shared("share"))
FAILURES: Final = Column("Failures", "n", "kinds of failures")
MOSTLY: Final = Column("Mostly", of=failure)
OF_THESE: Final = Column("Of these", "n", of="failure_deaths")
FIRST_DIED: Final = Column("First died", "t", "UTC", "first_died_at")
LAST_DIED: Final = Column("Last died", "t", "UTC", "last_died_at")
