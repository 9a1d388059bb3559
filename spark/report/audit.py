"""The report on the delivery audit.

From the top: the conclusion, then the evidence, the lines that were not read, and figures (audit.html). Green means
that all of it holds: anything open, not checked or not read takes the colour away, and the words with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from quorumq.audit.words import titled
from quorumq.core.values.printable import plural

from .. import COMMAND
from .page import duration, number, percent, rendered

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


def page(summary: Row) -> str:
    """Return the whole report from summary.json."""
    by = {
        verdict: [row["guarantee"] for row in summary["verdicts"] if row["verdict"] == verdict]
        for verdict in VERDICTS
    }
    title, level, text = conclusion(summary, *map(len, by.values()))
    totals: Counter[tuple[str, str]] = Counter()
    for row in summary["redeliveries"]:
        totals[row["topic"], row["group"]] += row["deliveries"]
    named = [
        (verdict, " · ".join(titled(it).partition(":")[0] for it in mine))
        for verdict, mine in by.items()
        if mine
    ]
    return rendered(
        "audit.html", title=f"{title} · Delivery audit", command=COMMAND, tables=TABLES, verdicts=VERDICTS,
        looked_at=LOOKED_AT, nothing_to_ask=NOTHING_TO_ASK, causes=CAUSES, summary=summary, level=level,
        conclusion=text, named=named, figures=figures(summary), totals=totals,
        all_read=len(by["holds"]) == len(summary["verdicts"]) and not summary["unread"],
        cut=lambda name: cut(summary, name), moment=moment, titled=titled,
    )  # fmt: skip


def conclusion(summary: Row, broken: int, unsure: int, unchecked: int, holds: int) -> tuple[str, str, str]:
    """Return a word or two for the title, the level of the box on top, and its sentence."""
    every = len(summary["verdicts"])
    if broken:
        count = plural(sum(row["broken"] for row in summary["verdicts"]), "time")
        are = "is" if broken == 1 else "are"
        return "Broken", "bad", f"{broken} of {every} guarantees {are} broken, {count}."
    if unsure:
        are = "is" if unsure == 1 else "are"
        text = f"{unsure} of {every} guarantees {are} not decidable. None was seen broken."
        return "Not decidable", "warn", text
    if not holds:
        text = "Nothing was checked: what was read has nothing that any guarantee could be asked of."
        return "Nothing checked", "warn", text
    if summary["unread"]:
        text = f"{holds} of {every} guarantees hold in what was read, and that is not everything."
        return "Not everything read", "warn", text
    if unchecked:
        were = "was" if unchecked == 1 else "were"
        text = f"{holds} of {every} guarantees hold. {unchecked} {were} not checked."
        return f"{holds} of {every} hold", "plain", text
    return "All hold", "good", f"All {every} guarantees hold, in everything that was read."


def figures(summary: Row) -> Iterator[tuple[str, str]]:
    """Yield the numbers on top, each with its meaning."""
    verdicts, rows = summary["verdicts"], summary["latency"]
    yield number(sum(row["broken"] for row in verdicts)), "times broken"
    yield number(sum(row["undecidable"] for row in verdicts)), "times not decidable"
    yield number(summary["unread"]), "lines or writers not read, or missing"
    if not rows or cut(summary, "latency"):
        return
    deliveries, messages, again = (
        sum(row[it] for row in rows) for it in ("deliveries", "messages", "redelivered")
    )
    yield number(deliveries), "deliveries"
    yield percent(again / messages) if messages else "", "of messages delivered more than once"
    if slow := [row["p99"] for row in rows if row["p99"] is not None]:
        yield duration(max(slow)), "from publish to delivery, p99" + (", worst" if len(slow) > 1 else "")


def cut(summary: Row, name: str) -> int:
    """Return the number of rows of a list that are only in the tables."""
    return int(summary["counts"][name]) - len(summary[name])


def moment(at: float | None) -> str:
    """Return a time of a run in seconds, as evidence shows it; if it is a time of day, that, in UTC."""
    if at is None:
        return ""
    if 1e9 <= at < 1e11:
        return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-2]
    return f"{at:.4f} s"
