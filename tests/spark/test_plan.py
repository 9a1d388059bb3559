"""The redrive plan: which rule decides, and in which order messages are redriven."""

from __future__ import annotations

import re
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from spark.jobs.deaths_analysis import in_order
from spark.transforms import deaths as t
from spark.transforms import plan
from tests.spark.rows import NOON, at, death, frame

OLD = at(-9000)


SEQS = count(1000)


def many(number: int, **said: Any) -> list[dict[str, Any]]:
    """Dead letters of one kind, two and a half hours old, with different payloads if ``said`` has none."""
    return [death(next(SEQS), **{"died_at": OLD, "error_class": "app.Odd", **said}) for _ in range(number)]


CASES: list[tuple[str, str, str, list[dict[str, Any]]]] = [
    # failure, verdict, rule, dead letters
    ("expired", "discard", "expired", many(2, fingerprint="", reason="expired")),
    ("often", "discard", "redriven-often", many(2, fingerprint="often", n=3) + many(2, fingerprint="often")),
    ("fresh", "hold", "still-happening",
     [*many(5, fingerprint="fresh"), death(1, fingerprint="fresh", died_at=at(-3599))]),
    # That it still happens is also seen at dead letters that were redriven already.
    ("settled", "hold", "still-happening",
     [*many(1, fingerprint="settled"), death(2, fingerprint="settled", died_at=at(-1), resolution="redriven")]),
    ("again", "hold", "died-again", many(1, fingerprint="again", n=1) + many(1, fingerprint="again")),
    ("seldom", "redrive", "quiet", many(1, fingerprint="seldom", n=1) + many(2, fingerprint="seldom")),
    ("payload", "hold", "same-payload",
     many(3, fingerprint="payload", payload=b"same") + many(3, fingerprint="payload")),
    ("timeout", "redrive", "transient", many(1, fingerprint="timeout", error_class="redis.exceptions.TimeoutError")),
    ("decode", "hold", "malformed", many(1, fingerprint="decode", error_class="UnicodeDecodeError")),
    ("crash", "redrive", "quiet", many(700, fingerprint="crash", reason="max-deliveries", error_class="")),
    # Another topic, where a newer version has failed since, of something else.
    ("mended", "redrive", "newer-version", many(1, fingerprint="mended", topic="mail", error_class="ValueError")),
    ("later", "hold", "malformed",
     many(1, fingerprint="later", topic="mail", error_class="ValueError", died_at=at(-8000), consumer_version="2.0")),
]  # fmt: skip


def decided(spark: SparkSession, overrides: dict[str, str] | None = None) -> tuple[DataFrame, DataFrame]:
    dead_letters = t.deaths(frame(spark, [row for case in CASES for row in case[3]]), NOON).cache()
    return dead_letters, judged(dead_letters, overrides)


def judged(dead_letters: DataFrame, overrides: dict[str, str] | None = None) -> DataFrame:
    cube = t.cube(dead_letters, 3600, NOON).cache()
    proof = plan.evidence(cube, t.again(dead_letters, t.repeated(dead_letters)), t.locations(cube, NOON))
    return plan.decisions(proof, NOON, overrides=overrides).cache()


@pytest.fixture(scope="module")
def decisions(spark: SparkSession) -> dict[str, Any]:
    return {row["failure"]: row for row in decided(spark)[1].collect()}


@pytest.mark.parametrize(
    ("failure", "verdict", "rule"), [case[:3] for case in CASES], ids=[case[0] for case in CASES]
)
def test_a_kind_of_failure_is_decided_by_the_first_rule_that_matches(
    decisions: dict[str, Any], failure: str, verdict: str, rule: str
) -> None:
    row = decisions[failure]
    assert (row["verdict"], row["rule"]) == (verdict, rule)
    assert (row["rate"] is not None) == (verdict == "redrive")


def test_reasons_are_sentences_with_the_numbers_in_them(decisions: dict[str, Any]) -> None:
    assert decisions["fresh"]["reason"] == "still happening: 1 died of it in the last 1 hour"
    assert decisions["often"]["reason"] == "2 of 4 died again after 3 redrives or more"
    assert decisions["payload"]["reason"] == "3 of 6 have the same payload: look at who publishes it"
    assert decisions["mended"]["reason"] == "not seen since version 2.0: it seems to be mended"
    assert len(decisions) == len(CASES)


def test_a_redrive_is_spread_and_never_faster_than_the_limit(decisions: dict[str, Any]) -> None:
    assert decisions["crash"]["rate"] == 2.0, "700 messages in about ten minutes"
    assert decisions["timeout"]["rate"] == 1.0


@pytest.mark.parametrize("size", [pytest.param(plan.ROWS_AT_ONCE, marks=pytest.mark.soak), 2])
def test_the_oldest_are_redriven_first_and_a_person_overrides_every_rule(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(plan, "ROWS_AT_ONCE", size)
    rows = [
        death(1, published_at=at(-10), died_at=OLD),
        death(3, published_at=at(-30), died_at=OLD, n=1),
        death(2, published_at=at(-30), died_at=OLD),
        death(4, published_at=at(-99), died_at=OLD, resolution="acked"),
        death(5, topic="mail", published_at=at(-99), died_at=OLD),
    ]
    dead_letters = t.deaths(frame(spark, rows), NOON)
    decisions = judged(dead_letters, {"f1": "redrive"})
    assert {(row["rule"], row["reason"]) for row in decisions.collect()} == {("override", "decided by hand")}
    messages = plan.messages(t.fetched(dead_letters, t.sketches(dead_letters, NOON), decisions), 4)
    messages.write.parquet(str(tmp_path / "messages"))
    assert len([*(tmp_path / "messages").glob("part-*")]) == -(-4 // size)
    seqs = [int(name.rpartition("/")[2]) for _, name, _, _ in in_order(tmp_path / "messages")]
    assert seqs == [2, 3, 1, 5], "kind by kind, and those settled since are left out"


@pytest.mark.parametrize("rule", plan.RULES, ids=[rule.name for rule in plan.RULES])
def test_the_rules_are_in_the_manual(rule: plan.Rule) -> None:
    text = Path("docs/spark.md").read_text()
    listed = re.findall(r"^\| `([a-z-]+)` \| (redrive|hold|discard) \|", text, re.MULTILINE)
    assert listed[plan.RULES.index(rule)] == (rule.name, rule.verdict)


def test_the_numbers_in_the_rules_are_in_the_manual() -> None:
    text = " ".join(Path("docs/spark.md").read_text().split())
    for limits in (plan.DEFAULTS, t.DEFAULTS):
        for name, value in limits._asdict().items():
            assert f"`{name}` {value:g}" in text, f"{name} = {value:g} is not in docs/spark.md"
