"""Rows of the table `deadletters`, made by hand: only what a test is about is said."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from hashlib import sha256
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from spark.schemas import TABLES, schema
from spark.transforms import deaths as t

NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)
TOPIC_ID = {"jobs": "aa" * 16, "mail": "bb" * 16}


def at(seconds: float) -> datetime:
    """Seconds after noon, as a time."""
    return NOON + timedelta(seconds=seconds)


def death(seq: int = 0, **said: Any) -> dict[str, Any]:
    """A dead letter: of topic jobs and group g, died at noon of a ValueError, published a second before."""
    topic = said.get("topic", "jobs")
    topic_id = TOPIC_ID.get(topic, "cc" * 16)
    died = said.get("died_at", NOON)
    payload = said.get("payload", b"%d" % seq)
    row = {
        "id": f"{topic_id}/0/n1.1.{7:016x}.1/{seq}", "topic": topic, "topic_id": topic_id, "partition": 0,
        "producer_id": "n1.1.0007.1", "seq": seq, "group": "g", "generation": 0, "n": 0, "resolution": "dead",
        "reason": "rejected", "error_class": "ValueError", "message": "no", "stack": "", "fingerprint": "f1",
        "attempts": 1, "published_at": died - timedelta(seconds=1) if died else NOON, "first_delivered_at": None,
        "last_delivered_at": died, "died_at": died, "consumer": "c1", "consumer_version": "1.0", "host": "h1",
        "node": "n1", "key": None, "headers": None, "payload": payload,
        "size": None if payload is None else len(payload), "crc": None,
        "digest": None if payload is None else sha256(payload).hexdigest(), "replicas": ["n1", "n2"],
    }  # fmt: skip
    unknown = said.keys() - row.keys()
    assert not unknown, f"no such columns: {unknown}"
    return {**row, **said}


def frame(spark: SparkSession, rows: Iterable[dict[str, Any]]) -> DataFrame:
    """The table `deadletters` with these rows."""
    names = [column.name for column in TABLES["deadletters"]]
    values = [
        tuple(Decimal(row[name]) if name == "generation" else row[name] for name in names) for row in rows
    ]
    return spark.createDataFrame(values, schema("deadletters"))


def deaths(spark: SparkSession, *seqs: int) -> DataFrame:
    """The table `deaths` of the job with these messages."""
    return t.deaths(frame(spark, map(death, seqs)), NOON)
