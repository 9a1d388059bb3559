"""The report on the audit: that it says no more than the verdicts, and that nothing in it can escape."""

from __future__ import annotations

import copy
import io
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from quorumq.audit.findings import GUARANTEES
from spark.jobs.audit import compared
from spark.jobs.audit import shown as print_summary
from spark.report.audit import CAUSES, LOOKED_AT, NOTHING_TO_ASK, VERDICTS, moment, page
from tests.browser import Browser
from tests.spark.pages import HOSTILE, SHOWN, Elements, browsed

LISTS = ("broken", "undecided", "remainder", "latency", "redeliveries", "faults", "clocks")


def summary(*verdicts: str, word: str | None = None, runs: int = 1, unread: int = 0) -> dict[str, Any]:
    """A summary with these verdicts, the rest `holds`; with ``word`` every list has rows, and it is every text."""
    said = [*verdicts, *["holds"] * (len(GUARANTEES) - len(verdicts))]
    rows = [
        {"guarantee": guarantee, "verdict": verdict, "checked": 0 if verdict == "not checked" else 1234,
         "broken": 2 * (verdict == "broken"), "undecidable": 3 * (verdict == "not decidable"), "runs": runs,
         "runs_checked": int(verdict != "not checked"), "runs_broken": int(verdict == "broken")}
        for guarantee, verdict in zip(GUARANTEES, said, strict=True)
    ]  # fmt: skip
    result: dict[str, Any] = {"paths": [word or "h.jsonl"] * 5, "runs": runs, "lines": 4321, "unread": unread,
                             "verdicts": rows, "causes": [], "previous": None, "gone": None,
                             **{name: [] for name in LISTS}}  # fmt: skip
    if word is not None:
        finding = {"guarantee": "G1", "run": word, "group": word, "id": word, "at": 12.5, "text": word}
        waits = {"topic": word, "messages": 100, "deliveries": 106, "redelivered": 5, "untimed": 2}
        result |= {
            "broken": [finding] * 20,
            "causes": [{"verdict": said, "guarantee": "G1", "cause": word, "count": 20, "runs": 2,
                        "first": {**finding, "story": [word, word]}} for said in ("broken", "not decidable")],
            "undecided": [{**finding, "id": None, "group": None, "at": 1795312345.25}],
            "remainder": [
                {"run": word, "kind": word, "detail": word, "count": 2, "gap": False, "lossy": True},
                {"run": "", "kind": word, "detail": word, "count": 2, "gap": True, "lossy": True},
            ],
            "latency": [
                {**waits, "group": word, "p50": 0.0123, "p99": 10.6477, "max": 70.25},
                {**waits, "group": word + "2", "p50": -0.5, "p99": 0.0, "max": 0.25},
                {**waits, "group": word + "3", "p50": None, "p99": None, "max": None},
            ],
            "redeliveries": [
                {"topic": word, "group": word, "after": after, "deliveries": 3} for after in (*CAUSES, word)
            ],
            "clocks": [
                {"run": word, "writers": word, "reference": False, "ahead": -3e7, "within": 0.0012, "rate": 5e-5,
                 "rate_within": 1e-4, "day_ahead": 0.6, "placed": 0.98, "findings": word},
                {"run": word, "writers": word, "reference": True, "ahead": 0.0, "within": 0.0, "rate": 0.0,
                 "rate_within": 0.0, "day_ahead": 0.0, "placed": 1.0, "findings": ""},
                {"run": word, "writers": word, "reference": False, "ahead": None, "within": None, "rate": None,
                 "rate_within": None, "day_ahead": None, "placed": 0.0, "findings": word},
            ],
            "faults": [{"fault": word, "times": 2, "published": 9, "unknown": 1, "delivered": 8, "acked": 7,
                        "broken": 4}],
        }  # fmt: skip
    result["counts"] = {name: len(result[name]) for name in LISTS}
    return result


def test_a_run_is_compared_with_the_one_before() -> None:
    before, now = summary("broken", word="before"), summary("holds", "not decidable", word="now")
    now["causes"].append({**before["causes"][0], "count": 5})
    result = compared(now, before, "last")
    assert [(row["cause"], row["verdict"], row["status"]) for row in result["causes"]] == [
        ("now", "broken", "new"), ("now", "not decidable", "new"), ("before", "broken", "ongoing"),
    ]  # fmt: skip
    assert result["gone"] == [{"verdict": "not decidable", "guarantee": "G1", "cause": "before", "count": 20}]
    assert [row["was"] for row in result["verdicts"]] == ["broken", *["holds"] * (len(GUARANTEES) - 1)]
    text = page(result)
    assert all(
        it in text for it in ("compared with last", "Gone since the previous run: G1: before.", "ongoing")
    )
    alone = compared(now, None, "")
    assert (alone["previous"], alone["gone"], alone["verdicts"][0]["was"]) == (None, None, None)


def test_a_terminal_obeys_nothing_that_a_history_says() -> None:
    text = io.StringIO()
    said = {**summary("broken", word=HOSTILE, unread=4), "conclusion": HOSTILE}
    print_summary(Console(file=text, width=200), said)
    assert "pwned" in text.getvalue()
    assert not {"\x00", "\x1b", "\u202e"} & set(text.getvalue())


def shown(summary_: dict[str, Any]) -> tuple[str, str, str]:
    """Return the page's title, the level of the box on top, and the first sentence in that."""
    text = page(summary_)
    box = re.search(r'<div class="note (\w+) verdict"><b>(.*?)</b>', text)
    title = re.search(r"<title>(.*?) · Delivery audit</title>", text)
    assert box is not None
    assert title is not None
    return title[1], box[1], box[2]


@pytest.mark.parametrize(
    ("fields", "title", "level", "text"),
    [
        (summary(), "All hold", "good", "All 11 guarantees hold, in everything that was read."),
        (summary("not checked"), "10 of 11 hold", "plain", "10 of 11 guarantees hold. 1 was not checked."),
        (summary("not checked", "not checked"), "9 of 11 hold", "plain",
         "9 of 11 guarantees hold. 2 were not checked."),
        (summary(unread=1), "Not everything read", "warn",
         "11 of 11 guarantees hold in what was read, and that is not everything."),
        (summary("not decidable"), "Not decidable", "warn",
         "1 of 11 guarantees is not decidable. None was seen broken."),
        (summary("not decidable", "not checked", unread=4), "Not decidable", "warn",
         "1 of 11 guarantees is not decidable. None was seen broken."),
        (summary("not decidable", "broken", "not checked", unread=4), "Broken", "bad",
         "1 of 11 guarantees is broken, 2 times."),
        (summary("broken", "broken"), "Broken", "bad", "2 of 11 guarantees are broken, 4 times."),
        (summary(*["not checked"] * len(GUARANTEES)), "Nothing checked", "warn",
         "Nothing was checked: what was read has nothing that any guarantee could be asked of."),
        (summary(*["not checked"] * len(GUARANTEES), runs=0, unread=3), "Nothing checked", "warn",
         "Nothing was checked: what was read has nothing that any guarantee could be asked of."),
    ],
)  # fmt: skip
def test_the_conclusion_says_no_more_than_the_verdicts(
    fields: dict[str, Any], title: str, level: str, text: str
) -> None:
    assert shown(fields) == (title, level, text)


@pytest.mark.parametrize("verdict", [verdict for verdict in VERDICTS if verdict != "holds"])
@pytest.mark.parametrize("guarantee", list(GUARANTEES))
def test_green_is_only_where_every_guarantee_holds(guarantee: str, verdict: str) -> None:
    at = list(GUARANTEES).index(guarantee)
    assert shown(summary(*["holds"] * at, verdict))[1] != "good"


def test_each_verdict_names_its_guarantees_on_top() -> None:
    text = page(summary("broken", "not decidable", "not checked", unread=1500))
    box = Elements(text[text.index('<div class="note') : text.index('<div class="cards">')]).text
    assert re.sub(r"\s+", " ", box).endswith(
        "broken G1 durable not decidable G2 exclusive not checked G3 final holds G4 live · G5 faithful · G6 idempotent "
        "· G7 dead letters are conserved · groups as asked · delays as asked · derived once "
        "· settings as written not read 1,500 lines or writers not read, or missing. Which "
    )


def test_every_guarantee_says_what_was_looked_at_or_was_not_there() -> None:
    assert set(LOOKED_AT) == set(NOTHING_TO_ASK) == set(GUARANTEES)
    for looked, text in ((False, page(summary(*["not checked"] * len(GUARANTEES)))), (True, page(summary()))):
        assert [asked in text for asked in NOTHING_TO_ASK.values()] == [not looked] * len(GUARANTEES)
    assert re.search(r"<span>1,234\s*<small", text)


def test_cut_lists_show_the_number_of_further_rows() -> None:
    fields = summary("broken", word="word")
    assert "more in" not in page(fields)
    fields["counts"].update(broken=1020, undecided=3, latency=60)
    text = page(fields)
    assert "1,020 violations" in text
    assert "20 in all, and 1,000 more are in tables/violations" in text
    assert "20 of 20</span> · 1,000 more in the tables" in text
    assert "1 of 1</span> · 2 more in the tables" in text
    assert "of messages delivered more than once" not in text, "no total of what is only a part"
    assert "of messages delivered more than once" in page(summary(word="word"))


def test_nothing_broken_is_said_with_what_could_not_be_checked() -> None:
    assert "Nothing was found broken.<" in page(summary())
    for fields in (summary("not checked"), summary(unread=1), summary("not decidable")):
        assert "Nothing was found broken in what could be checked." in page(fields)


def test_numbers_have_units_and_counts_their_number() -> None:
    text = page(summary(word="word"))
    assert "1 run ·" in text
    assert "2 runs ·" in page(summary(runs=2))
    for cell in ('data-v="10.6477">10.6 s<', 'data-v="0.0123">12 ms<', 'data-v="70.25">1 min 10 s<',
                 'data-v="-0.5">-500 ms<', 'data-v="12.5">12.5000 s<', ">2026-11-22 01:52:25.2500<"):  # fmt: skip
        assert cell in text
    assert "10.6477<" not in text
    for name in ("Checked", "Broken", "p50", "Longest", "Deliveries", "Times"):
        assert re.search(rf'<th class="n"[^>]*><button type="button">{name}<', text), (
            f"{name} is above its numbers"
        )


def test_a_time_is_shown_as_evidence_has_it() -> None:
    assert [moment(at) for at in (None, 0, 10.0, 10.64769, 1795312345.25)] == [
        "", "0.0000 s", "10.0000 s", "10.6477 s", "2026-11-22 01:52:25.2500"
    ]  # fmt: skip


def test_runs_are_told_apart_where_there_are_several() -> None:
    assert "Runs broken" in page(summary("broken", runs=2))
    assert "Runs broken" not in page(summary("broken"))


def test_unread_lines_are_shown_with_their_consequence() -> None:
    text = page(summary(word="word", unread=4))
    for said in ("proves nothing", "no guarantee holds", "every run"):
        assert said in text


def test_whatever_a_history_says_stays_text() -> None:
    harmless = Elements(page(summary("broken", word="word", unread=4)))
    hostile = Elements(page(summary("broken", word=HOSTILE, unread=4)))
    assert hostile.names == harmless.names
    assert not hostile.open
    assert [name for name, _ in hostile.attributes] == [name for name, _ in harmless.attributes]
    assert hostile.text.count(SHOWN) > 50
    assert not {"\x00", "\x1b", "\u202e"} & set(hostile.text)


def test_it_loads_nothing_and_its_links_lead_somewhere() -> None:
    text = page(summary("broken", word="word", unread=4))
    elements = Elements(text)
    assert not {"img", "link", "iframe", "object", "embed", "base", "form"} & set(elements.names)
    ids = [value for name, value in elements.attributes if name == "id"]
    assert len(set(ids)) == len(ids)
    links = {value for name, value in elements.attributes if name in ("src", "href") and value}
    assert links
    assert links <= {f"#{name}" for name in ids}
    assert "http:" not in text
    assert not re.search(r"url\((?!#)|@import", text)


def test_it_keeps_the_summary_as_it_was() -> None:
    fields = summary("broken", word="word")
    before = copy.deepcopy(fields)
    page(fields)
    assert fields == before


@pytest.mark.parametrize("width", [390, 1280])
def test_a_browser_shows_it_and_runs_its_script_only(browser: Browser, tmp_path: Path, width: int) -> None:
    seen = browsed(browser, page(summary("broken", word=HOSTILE, unread=4)), 2, width, tmp_path)
    assert seen == {
        "title": "Broken · Delivery audit", "sorted": "What is the matter", "shown": "0 of 20", "images": 0, "plots": 0,
        "clipped": 0, "wide": seen["wide"],
    }  # fmt: skip
    assert seen["wide"] <= width, "nothing sticks out: tables and plots scroll by themselves"
