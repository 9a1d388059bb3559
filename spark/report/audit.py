"""The report on the delivery audit.

From the top: the conclusion, then the evidence, the lines that were not read, and figures. Green means that all of it
holds: anything open, not checked or not read takes the colour away, and the words with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from quorumq.audit.words import titled
from quorumq.core.values.printable import plural

from .. import COMMAND
from .page import (
    EMPTY,
    Column,
    Html,
    cards,
    duration,
    join,
    note,
    number,
    percent,
    section,
    share,
    shared,
    soft,
    table,
    tables_beside,
    tag,
    took,
)
from .page import page as document

Row = Mapping[str, Any]

VERDICTS: Final = {"broken": "broken", "not decidable": "open", "not checked": "unchecked", "holds": "holds"}
"""Every verdict, the worst first, and the class that colours it."""

LOOKED_AT: Final = {
    "G1": "messages", "G2": "holds", "G3": "deliveries and ACKs", "G4": "deliveries", "G5": "deliveries",
    "G6": "messages", "G7": "dead letters", "groups": "deliveries",
    "delays": "deliveries", "derived": "outputs", "settings": "topics and their settings",
}  # fmt: skip
"""Things that are counted as checked, by guarantee."""

NOTHING_TO_ASK: Final = {
    "G1": "no publish that was confirmed and had to be delivered",
    "G2": "no hold",
    "G3": "no delivery and no ACK",
    "G4": "no message that waited for its next delivery",
    "G5": "no delivery whose checksum (crcs) is known, and that of its publish too",
    "G6": "no publish that was tried again",
    "G7": "no dead letter",
    "groups": "no register of a group",
    "delays": "no message that was delayed, or that was asked for and has a TTL",
    "derived": "no output that was derived from a message",
    "settings": "no change of a topic together with what nodes have of it",
}
"""Lines that histories lack if a guarantee is not checked, in words."""

TABLES: Final = (
    "verdicts", "violations", "remainder", "unread", "latency", "redeliveries", "faults", "divergence", "runs",
    "clocks",
)  # fmt: skip
"""Tables that are written under OUT/tables."""

CAUSES: Final = {
    "ack": "it was acked before: see G3",
    "expiry": "its hold ran out",
    "expiry, an ACK unanswered": "its hold ran out; an ACK was sent, and none of its answers was acked",
    "inside the hold": "its hold had not ended: see G2",
    "reject": "its consumer gave it back",
    "rewind or redrive": "asked for",
}

SHORT: Final = 8
"""Most rows of a table that needs no filter."""


def page(summary: Row) -> str:
    """Return the whole report from summary.json."""
    title, top = conclusion(summary)
    parts = [head(summary), top]
    builders = (numbers, promises, violations, undecided, remainder, clocks, latency, redeliveries, faults)
    parts += [part(summary) for part in builders]
    parts.append(tables_beside(TABLES))
    where = "what each word means: docs/audit.md · all rows: tables/, beside it"
    parts.append(tag("footer", f"{COMMAND} audit · {where}"))
    return document(f"{title} · Delivery audit", join(parts))


# ------------------------------------------------------------------------------------- parts


def head(summary: Row) -> Html:
    about = f"{plural(summary['runs'], 'run')} · {plural(summary['lines'], 'line')} · read from "
    paths = summary["paths"]
    about += ", ".join(paths[:3])
    if summary["previous"]:
        about += f" · compared with {summary['previous']['out']}"
    parts = [tag("h1", "Delivery audit"), tag("p", about, class_="meta")]
    if len(paths) > 3:
        more = tag("summary", f"and {plural(len(paths) - 3, 'path')} more")
        parts.append(
            tag("details", join((more, tag("pre", "\n".join(paths[3:]), class_="text"))), class_="meta")
        )
    return join(parts)


def conclusion(summary: Row) -> tuple[str, Html]:
    """Return the conclusion: a word or two for the title, and the box on top."""
    by = {
        verdict: [row["guarantee"] for row in summary["verdicts"] if row["verdict"] == verdict]
        for verdict in VERDICTS
    }
    broken, unsure, unchecked, holds = by.values()
    every, unread = len(summary["verdicts"]), summary["unread"]

    def are(names: Sequence[str]) -> str:
        return "is" if len(names) == 1 else "are"

    if broken:
        count = sum(row["broken"] for row in summary["verdicts"])
        title, level = "Broken", "bad"
        text = f"{len(broken)} of {every} guarantees {are(broken)} broken, {plural(count, 'time')}."
    elif unsure:
        title, level = "Not decidable", "warn"
        text = f"{len(unsure)} of {every} guarantees {are(unsure)} not decidable. None was seen broken."
    elif not holds:
        title, level = "Nothing checked", "warn"
        text = "Nothing was checked: what was read has nothing that any guarantee could be asked of."
    elif unread:
        title, level = "Not everything read", "warn"
        text = f"{len(holds)} of {every} guarantees hold in what was read, and that is not everything."
    elif unchecked:
        title, level = f"{len(holds)} of {every} hold", "plain"
        were = "was" if len(unchecked) == 1 else "were"
        text = f"{len(holds)} of {every} guarantees hold. {len(unchecked)} {were} not checked."
    else:
        title, level = "All hold", "good"
        text = f"All {every} guarantees hold, in everything that was read."

    def line(kind: Html, *said: Any) -> Html:
        return tag("li", join((kind, tag("span", join(said, " "))), " "))

    names = {verdict: " · ".join(titled(it).partition(":")[0] for it in mine) for verdict, mine in by.items()}
    lines = [line(label(verdict), said) for verdict, said in names.items() if said]
    if unread:
        which = tag("a", "Which", href="#unread")
        lines.append(line(tag("span", "not read", class_="tag open"), tag("span", not_read(summary)), which))
    return title, note(level, join((tag("b", text), tag("ul", join(lines)))), class_="verdict")


def numbers(summary: Row) -> Html:
    verdicts = summary["verdicts"]
    figures = [
        (number(sum(row["broken"] for row in verdicts)), "times broken"),
        (number(sum(row["undecidable"] for row in verdicts)), "times not decidable"),
        (number(summary["unread"]), "lines or writers not read, or missing"),
    ]
    if summary["latency"] and not cut(summary, "latency"):
        rows = summary["latency"]
        deliveries, messages, again = (
            sum(row[it] for row in rows) for it in ("deliveries", "messages", "redelivered")
        )
        figures += [
            (number(deliveries), "deliveries"),
            (percent(again / messages) if messages else "", "of messages delivered more than once"),
        ]
        slow = [row["p99"] for row in rows if row["p99"] is not None]
        if slow:
            said = "from publish to delivery, p99" + (", worst" if len(slow) > 1 else "")
            figures.append((duration(max(slow)), said))
    return cards(figures)


def promises(summary: Row) -> Html:
    def about(row: Row) -> Html:
        called, _, promise = titled(row["guarantee"]).partition(": ")
        said = [tag("b", called), tag("div", promise)]
        if row["verdict"] == "not checked":
            asked = NOTHING_TO_ASK[row["guarantee"]]
            said.append(tag("div", f"Nothing to ask: what was read has {asked}.", class_="soft"))
        return join(said, "")

    def looked(row: Row) -> tuple[Any, int]:
        unit = tag("small", LOOKED_AT[row["guarantee"]], class_="unit")
        return (tag("span", join((number(row["checked"]), unit))) if row["checked"] else "0"), row["checked"]

    columns = [
        Column("Verdict", of=lambda row: label(row["verdict"])),
        Column("Guarantee", "w", of=about),
        Column("Checked", "n", "how much was looked at", looked),
        Column("Broken", "n", "how often, and the share of what was checked", marked("broken", "bad", "checked")),
        Column("Not decidable", "n", "the same", marked("undecidable", "warn", "checked")),
    ]  # fmt: skip
    if summary["previous"]:
        was = Column("Before", "", "its verdict in the previous run", lambda row: label(row["was"]))
        columns.insert(1, was)
    if summary["runs"] > 1:
        of = f"of {plural(summary['runs'], 'run')}"
        columns.append(Column("Runs checked", "n", of, lambda row: number(row["runs_checked"])))
        columns.append(Column("Runs broken", "n", of, marked("runs_broken", "bad", "runs_checked")))
    return section("guarantees", "Guarantees", table(columns, summary["verdicts"], empty="None.", whole=True))


def violations(summary: Row) -> Html:
    empty = "Nothing was found broken."
    if any(row["verdict"] != "holds" for row in summary["verdicts"]) or summary["unread"]:
        empty = "Nothing was found broken in what could be checked."
    proved = f"{plural(summary['counts']['broken'], 'violation')}, each proved by what the histories say. "
    said = proved + first(summary, "broken") if summary["broken"] else ""
    rows = listed(summary, "broken", EVIDENCE, empty=empty)
    return section("broken", "Broken", said, caused(summary, "broken"), rows)


def caused(summary: Row, verdict: str) -> Html:

    def matter(row: Row) -> Html:
        first, story = row["first"], EMPTY
        if first["story"]:
            lines = tag("pre", "\n".join(first["story"]), class_="text")
            story = tag("details", join((tag("summary", "the first message's story"), lines)))
        return join((tag("b", row["cause"]), tag("div", first["text"], class_="soft"), story), "")

    rows = [row for row in summary["causes"] if row["verdict"] == verdict]
    columns = [
        Column("Guarantee", of=lambda row: tag("b", row["guarantee"])), Column("Cause", "w", of=matter),
        Column("Times", "n", of="count"), Column("Runs", "n"),
    ]  # fmt: skip
    gone = EMPTY
    if summary["previous"]:
        columns.insert(1, SINCE)
        names = [
            f"{row['guarantee']}: {row['cause']}" for row in summary["gone"] if row["verdict"] == verdict
        ]
        gone = tag("p", "Gone since the previous run: " + "; ".join(names) + ".") if names else EMPTY
    return join((table(columns, rows, empty="", whole=True) if rows else EMPTY, gone))


def undecided(summary: Row) -> Html:
    total = summary["counts"]["undecided"]
    every = sum(row["undecidable"] for row in summary["verdicts"])
    said = []
    if every:
        said.append(
            "Whether these are broken depends on clocks, on what was not read, or on how the run ended."
        )
    if every > total:
        said.append(
            f"{number(every - total)} of {number(every)} are only counted: not settled when the history ends, overdue "
            "without anything said of why, or lines not read, which count against every guarantee of their run."
        )
    if summary["undecided"]:
        said.append(first(summary, "undecided"))
    empty = "Nothing." if not every else "None of them has evidence to show."
    rows = listed(summary, "undecided", EVIDENCE, empty=empty)
    return section("undecided", "Not decidable", " ".join(said), caused(summary, "not decidable"), rows)


SINCE: Final = Column(
    "Since", "", "compared with the previous run", lambda row: tag("span", row["status"], class_=f"tag {row['status']}")
)  # fmt: skip

EVIDENCE: Final = (
    Column("Guarantee", of=lambda row: tag("b", row["guarantee"])),
    Column("What is the matter", "w", of="text"),
    Column("Message", "i", "topic/partition/producer_id/number",
           lambda row: tag("code", row["id"]) if row["id"] else soft("the run as a whole")),
    Column("Group", "i"),
    Column("At", "n", "seconds on the clock of its run, or the time of day, UTC",
           lambda row: (moment(row["at"]), row["at"])),
    Column("Run", "i"),
)  # fmt: skip
"""Columns of findings, broken or undecided."""


def remainder(summary: Row) -> Html:
    columns = [
        Column("Kind", "w"),
        Column("How many", "n", of="count"),
        Column("Where, or who", "w", "a file, the first, or the writers", "detail"),
        Column("Run", "i", of=lambda row: row["run"] or soft("every run")),
        Column("So", "w", of=lambda row: "no guarantee holds: what was in it is not known" if row["gap"] else
               "that something is absent proves nothing" if row["lossy"] else "changes no verdict"),
    ]  # fmt: skip
    empty = "Nothing: every line was read, and every writer that is named wrote a history."
    said = not_read(summary) if summary["unread"] else ""
    rows = listed(summary, "remainder", columns, empty=empty)
    return section("unread", "What was not read, or is not there", said, rows)


def clocks(summary: Row) -> Html:
    columns = [
        Column("Clock of", "w", "who writes by it", "writers"),
        Column("Findings", "w", of=lambda row: tag("b", row["findings"], class_="warn") if row["findings"] else ""),
        Column("Ahead by", "n", "of the run's reference: its readings less the reference's, in the middle",
               lambda row: "the reference" if row["reference"] else apart(row["ahead"])),
        Column("Known to", "n", "either way, in the middle", lambda row: "" if row["within"] is None or row["reference"]
               else (f"± {1000 * row['within']:,.2f} ms", row["within"])),
        Column("Runs faster by", "n", "than the reference, in parts per million",
               lambda row: "" if None in (row["rate"], row["rate_within"]) or row["reference"] else
               (f"{round(1e6 * row['rate']):+,d} ± {1e6 * row['rate_within']:,.0f} ppm", row["rate"])),
        Column("Time of day ahead", "n", "of the reference's: nothing is compared by it",
               lambda row: apart(row["day_ahead"])),
        Column("Placed", "n", "the share of its time in which it could be compared", shared("placed")),
        Column("Run", "i"),
    ]  # fmt: skip
    said = (
        "Lines of two clocks are compared by which must have come before which, never by the time of day. What a clock "
        "is known too badly for, or broke in, is not decidable."
    )
    shown = listed(summary, "clocks", columns, empty="Every run was written by one clock.")
    return section("clocks", "Clocks", said if summary["clocks"] else "", shown)


def latency(summary: Row) -> Html:
    of = "" if summary["runs"] == 1 else "; the worst run's"
    columns = [
        Column("Topic", "i"), Column("Group", "i"), Column("Messages", "n"), Column("Deliveries", "n"),
        Column("Redelivered", "n", "messages delivered more than once",
               lambda row: of_all(row["redelivered"], row["messages"])),
        Column("Untimed", "n", "not timed: their clocks, or who published them, are not known",
               lambda row: of_all(row["untimed"], row["messages"])),
        Column("p50", "n", f"half waited less{of}", took("p50")),
        Column("p99", "n", f"99 of 100 waited less{of}", took("p99")), Column("Longest", "n", of=took("max")),
    ]  # fmt: skip
    said = "From the publish to the first delivery, for each group. Redeliveries are counted, and not timed."
    shown = listed(summary, "latency", columns, empty="Nothing was delivered.")
    return section("latency", "How long messages waited", said, shown)


def redeliveries(summary: Row) -> Html:
    rows, more = summary["redeliveries"], cut(summary, "redeliveries")
    totals: Counter[tuple[str, str]] = Counter()
    for row in rows:
        totals[(row["topic"], row["group"])] += row["deliveries"]
    columns = [
        Column("Topic", "i"), Column("Group", "i"), Column("After", "", "how the delivery before ended"),
        Column("That is", "w", of=lambda row: CAUSES.get(row["after"], "")), Column("Deliveries", "n"),
        Column("Share", "n", "of its group's redeliveries",
               lambda row: "" if more else share(row["deliveries"], totals[(row["topic"], row["group"])])),
    ]  # fmt: skip
    shown = listed(summary, "redeliveries", columns, empty="Every message was delivered once at most.")
    return section("redeliveries", "Why messages were delivered again", shown)


def faults(summary: Row) -> Html:
    columns = [
        Column("Fault"), Column("Times", "n"), Column("Published", "n", "confirmed"),
        Column("Unknown", "n", "requests whose outcome nobody knows"), Column("Delivered", "n"), Column("Acked", "n"),
        Column("Broken", "n", "violations", marked("broken", "bad")),
    ]  # fmt: skip
    said = "Lines of the histories while a fault lasted. Faults overlap, so one line may count for several."
    shown = listed(summary, "faults", columns, empty="No fault is written in these histories.")
    return section("faults", "During faults", said if summary["faults"] else "", shown)


# ------------------------------------------------------------------------------------ pieces


def listed(summary: Row, name: str, columns: Sequence[Column], *, empty: str) -> Html:
    """Return a table of the summary's rows, with a filter if there is something to look for."""
    rows, more = summary[name], cut(summary, name)
    return table(columns, rows, empty=empty, more=more, whole=len(rows) <= SHORT and not more)


def label(verdict: str | None) -> Html:
    return EMPTY if verdict is None else tag("span", verdict, class_=f"tag {VERDICTS[verdict]}")


def cut(summary: Row, name: str) -> int:
    return int(summary["counts"][name]) - len(summary[name])


def first(summary: Row, name: str) -> str:
    """Return a sentence about the rows that are shown of a table that is cut; "" if it is whole."""
    if not cut(summary, name):
        return ""
    return (
        f"Here are the first of each guarantee, {number(len(summary[name]))} in all, and "
        f"{number(cut(summary, name))} more are in tables/violations; the filter searches those that are here."
    )


def not_read(summary: Row) -> str:
    """Return a sentence about the lines and writers that were not read."""
    return f"{plural(summary['unread'], 'line or writer', 'lines or writers')} not read, or missing."


def marked(name: str, level: str, of: str = "") -> Callable[[Row], Any]:
    """Return a count for a column, coloured unless it is 0, with its share of another count if that is named."""

    def shown(row: Row) -> tuple[Html, int]:
        count, every = row[name], row[of] if of else 0
        if not count:
            return soft("0"), count
        unit = tag("small", percent(count / every), class_="unit") if every >= count else EMPTY
        return join((tag("b", number(count), class_=level), unit), ""), count

    return shown


def of_all(count: int, every: int) -> tuple[Any, int]:
    if not count or not every:
        return number(count), count
    return join((number(count), tag("small", percent(count / every), class_="unit"))), count


def apart(seconds: float | None) -> Any:
    return "" if seconds is None else (f"{seconds:+,.4f} s", seconds)


def moment(at: float | None) -> str:
    """Return a time of a run in seconds, as evidence shows it; if it is a time of day, that, in UTC."""
    if at is None:
        return ""
    if 1e9 <= at < 1e11:
        return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-2]
    return f"{at:.4f} s"
