"""The report on dead letters: what it says, that nothing in it can escape, and that a browser shows it."""

from __future__ import annotations

import html
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from spark.report import page as p
from spark.report.deadletters import page
from tests.browser import Browser
from tests.spark.pages import HOSTILE, SHOWN, Elements, browsed

NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)


def page_input(word: str, payloads: bool = True) -> tuple[dict[str, Any], dict[str, Any]]:
    """A summary and facts of one group with every part filled, and ``word`` wherever a word can be."""
    times = [NOON - timedelta(minutes=15 * back) for back in range(12, -1, -1)]
    kind = {"topic": word, "group": word, "failure": word}
    row = {
        **kind, "status": "new", "dead": 12, "deaths": 1234, "share": 0.5, "error_class": word, "message": word,
        "reason": "rejected", "per_hour": 3.25, "first_died_at": times[0], "last_died_at": NOON, "versions": [word],
        "first_version": word,
        "topics": [word], "groups": [word], "sample_ids": [word],
    }  # fmt: skip
    of = {**kind, "failure_deaths": 3}
    result = {
        "failures": [row],
        "bursts": [{**of, "from_at": times[3], "to_at": times[5], "deaths": 40, "peak": 30, "usual": 2.0,
                    "score": 7.3}],
        "ages": [{**kind, "deaths": 1234, "dead": 12, "age_p50": 5.0, "age_p99": 3700.0, "age_max": 90000.0,
                  "to_death_p50": 0.25, "to_death_p99": None, "to_death_max": None}],
        "deploys": [{**kind, "version": word, "first_died_at": times[4], "deaths": 50, "before_per_hour": 1.0,
                     "after_per_hour": 12.0, "after_own": 20, "after_deaths": 24, "score": 6.1, "regression": True}],
        "places": [{**of, "kind": "host", "name": word, "deaths": 3, "dead": 1, "share": 0.1, "failures": 1,
                    "last_died_at": None}],
        "poison": [{**kind, "kind": "message", "name": word, "messages": 1, "deaths": 2, "dead": 1, "redrives": 1,
                    "failures": 1, "share": 0.01, "last_died_at": NOON, "sample_id": word}],
        "decisions": [{**kind, "verdict": "redrive", "messages": 12, "reason": word, "rate": 1.0}],
        "period": {"begin": times[0], "end": NOON, "seconds": 900},
        "payloads": payloads,
        "by_failure": [{"failure": name, "from_at": at, "deaths": 3} for at in times[::2] for name in (word, "")],
        "sparks": {(word, word, word): [(at, 3) for at in times[::2]]},
        "by_version": [{"version": word, "from_at": at, "deaths": 3} for at in times[::2]],
        "rates": [{**kind, "from_at": at, "deaths": 5, "usual": 4.0, "burst": at == times[3]} for at in times],
        "samples": {(word, word, word): {
            **kind, "id": word, "partition": 0, "generation": 0, "n": 0, "resolution": "dead", "reason": "rejected",
            "error_class": word, "message": word, "stack": word, "attempts": 3, "published_at": times[0],
            "died_at": NOON, "consumer": word, "consumer_version": word, "host": word, "node": word, "size": 64,
            **({"key": word.encode(), "payload": b"\xff" + word.encode(), "headers": {word: word}} if payloads else {}),
        }},
    }  # fmt: skip
    verdict = {"failures": 1, "messages": 12}
    summary = {
        "as_of": "2026-11-22T12:00:00.000Z", "source": word, "cluster": word, "nodes": "", "deaths": 1234, "dead": 12,
        "since": {"out": word, "as_of": "2026-11-21T12:00:00.000Z"}, "positions": None,
        "previous": {"out": word, "as_of": "2026-11-21T12:00:00.000Z"}, "failures": 1, "bursts": 1, "regressions": 1,
        "status": {"new": 1, "regressed": 0, "ongoing": 0, "gone": 0},
        "oldest_published_at": "2026-11-22T09:00:00.000Z",
        "undated": 2, "skewed": 1, "poison": 1, "plan": {"redrive": verdict, "hold": verdict, "discard": verdict},
        "problems": {"count": 1, "rows": [{"path": word, "kind": "torn", "reason": word}]},
    }  # fmt: skip
    return summary, result


def test_whatever_a_consumer_wrote_stays_text() -> None:
    harmless, hostile = Elements(page(*page_input("word"))), Elements(page(*page_input(HOSTILE)))
    assert hostile.names == harmless.names, "not one element more or less, in the plots neither"
    assert not hostile.open
    assert [name for name, _ in hostile.attributes] == [name for name, _ in harmless.attributes]
    assert SHOWN in hostile.text
    assert "\\u0000" in hostile.text
    assert not {"\x00", "\x1b", "\u202e"} & set(hostile.text)
    # In the names of plots too, where matplotlib escapes.
    svg = re.findall(r"<svg.*?</svg>", page(*page_input(HOSTILE)), re.DOTALL)
    assert any("&lt;/script&gt;" in text for text in svg)


def test_nothing_is_loaded_from_anywhere() -> None:
    elements = Elements(page(*page_input("word")))
    assert not {"img", "link", "iframe", "object", "embed", "base", "form"} & set(elements.names)
    loads = [value for name, value in elements.attributes if name in ("src", "href", "xlink:href") and value]
    assert loads
    assert all(value.startswith("#") for value in loads)
    assert not re.search(r"url\((?!#)|@import", page(*page_input("word")))


def test_ids_are_unique_and_links_lead_somewhere() -> None:
    elements = Elements(page(*page_input("word")))
    ids = [value for name, value in elements.attributes if name == "id"]
    assert len(set(ids)) == len(ids)
    assert {value[1:] for name, value in elements.attributes if name == "href" and value} <= set(ids)


def test_a_kind_has_its_text_its_times_and_its_own_command() -> None:
    summary, details = page_input("word")
    details["failures"][0].update(
        failure="9f0c", error_class="shop.CardDeclined", message="declined\nby the bank"
    )
    details["decisions"][0].update(failure="9f0c", topic="the orders")
    details["sparks"] = {("word", "word", "9f0c"): [(NOON, 3), (NOON - timedelta(hours=3), 1)]}
    text = html.unescape(page(summary, details))
    assert 'title="9f0c">CardDeclined: declined</a>' in text
    assert "quorumq deadletters redrive 'the orders' --group word --fingerprint 9f0c" in text
    (bars,) = re.findall(r'class="spark".*?<path d="(.*?)"', text)
    assert bars.count("M") == 2
    assert 'failures = spark.read.parquet("tables/failures")' in text
    details["decisions"][0].update(verdict="hold")
    summary["plan"]["redrive"] = {"failures": 0, "messages": 0}
    text = html.unescape(page(summary, details))
    assert "It redrives nothing as it is." in text
    assert "the orders' --group word" not in text


def test_payloads_stay_out_unless_asked_for() -> None:
    summary, details = page_input("word", payloads=False)
    assert "are left out" in page(summary, details)
    summary, details = page_input("word")
    details["samples"][("word",) * 3]["payload"] = b"the payload"
    assert "the payload" in page(summary, details)


def test_unreadable_locations_are_on_top() -> None:
    text = page(*page_input("word"))
    assert text.index("could not be read") < text.index("dead letters now") < text.index("What to do")
    assert "died before they were published" in text


def test_no_dead_letters_is_a_report_that_says_so() -> None:
    summary, details = page_input("word")
    summary.update(deaths=0, dead=0, undated=0, skewed=0)
    details.update(failures=[])
    text = page(summary, details)
    assert "There are no dead letters." in text
    assert "could not be read" in text


def test_dead_letters_without_times_are_shown_without_plots_over_time() -> None:
    summary, details = page_input("word")
    details.update(by_failure=[], by_version=[], rates=[], bursts=[], deploys=[])
    assert "nothing to draw" in page(summary, details)


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (p.number(None), ""), (p.number(1234), "1,234"), (p.number(0), "0"), (p.number(12.34), "12.3"),
        (p.number(0.0432), "0.043"), (p.number(1234.5), "1,234"), (p.percent(0.5), "50 %"),
        (p.percent(0.0312), "3.1 %"),
        (p.percent(0.0001), "<0.1 %"), (p.percent(0.0), "0 %"), (p.percent(1.0), "100 %"), (p.duration(0.25), "250 ms"),
        (p.duration(4.25), "4.2 s"), (p.duration(59.99), "1 min"), (p.duration(3600), "1 h"),
        (p.duration(90061), "1 d 1 h"), (p.duration(86399.6), "1 d"), (p.duration(-2), "-2 s"), (p.size(900), "900 B"),
        (p.size(1536), "1.5 KiB"), (p.size(3 << 30), "3.0 GiB"), (p.time(NOON), "2026-11-22 12:00:00"),
    ],
)  # fmt: skip
def test_numbers_are_for_people(shown: str, text: str) -> None:
    assert shown == text


@pytest.mark.parametrize("width", [390, 1280])
def test_a_browser_shows_it_and_runs_its_script_only(browser: Browser, tmp_path: Path, width: int) -> None:
    seen = browsed(browser, page(*page_input(HOSTILE)), 2, width, tmp_path)
    assert (seen["title"], seen["sorted"], seen["shown"]) == ("Dead letters", "Dead", "0 of 1")
    assert (seen["images"], seen["plots"], seen["clipped"]) == (0, 3, 0)
    assert seen["wide"] <= width, "nothing sticks out: tables and plots scroll by themselves"
