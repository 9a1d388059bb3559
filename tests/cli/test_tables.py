"""On 80 columns no line is longer, and no table loses a number, a time or a part of a name."""

from __future__ import annotations

import io
from typing import Any

import click
import pytest
from rich.console import Console

from quorumq.cli import deadletters, groups, topics
from quorumq.client import Backlog, GroupConsumer, PartitionBacklog
from quorumq.core.messages import MetadataReply
from quorumq.core.values.types import STAMP_ZERO, Group, Stamp, Topic
from quorumq.lab import bench

TOPIC = "a-topic-of-the-warehouse.orders.received.and.checked.twice"
GROUP = "the-group-of-those-who-send-the-invoices.and.reminders"
MANY = 123_456_789
ID = f"{bytes(16).hex()}/12/node-1.1.{0:016x}.0/{MANY}"


class Screen:
    """A terminal of 80 columns."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.file = io.StringIO()
        for where in ("cli.common", "lab.bench"):
            monkeypatch.setattr(f"quorumq.{where}.console", lambda: Console(file=self.file, width=80))
        monkeypatch.setattr(click, "echo", lambda text, **_: print(text, file=self.file))

    def lines(self) -> list[str]:
        lines = self.file.getvalue().splitlines()
        assert max(map(len, lines)) <= 80, lines
        return lines

    def has(self, *whole: str) -> None:
        """These stand there unbroken."""
        text = "\n".join(self.lines())
        for part in whole:
            assert part in text, text

    def spells(self, name: str) -> None:
        """``name`` stands there, maybe over several lines, in the first column."""
        assert name in "".join(line.split(" ")[0] for line in self.lines())


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    return Screen(monkeypatch)


def test_a_backlog(screen: Screen) -> None:
    lines = "a\nforged line\x1b]0;owned\x07"
    reads = (
        GroupConsumer(
            GROUP, "1.2.3.dev456+gdeadbeef", "quorumq-client 0.1.0", "fe80::1234:5678:9abc:def0", MANY
        ),
        GroupConsumer(lines, "", "", "h", 6),
    )
    part = PartitionBacklog(63, MANY, MANY, MANY, MANY, 86_400.0 * 400, MANY, MANY, reads, MANY, MANY)
    groups._print_backlog(Backlog(*[MANY] * 4, 86_400.0 * 400, (part,), MANY, MANY, reads, MANY, MANY))
    assert sum(line.count("123,456,789") for line in screen.lines()) == 12
    screen.has("400 days, 0:00:00", "2,057,613.1", "0.1")
    assert sum(line.count("2,057,613.1") for line in screen.lines()) == 5
    assert not [line for line in screen.lines() if line.startswith("forged") or not line.isprintable()]


def test_groups(screen: Screen) -> None:
    made = Stamp(1_790_000_000_000 << 16, "n1")
    line = groups.fields_of(TOPIC, Group(b"", GROUP, 1 << 62, 1_780_000_000_000, made=made))
    groups._print([line])
    screen.has(*(groups.local_time(line[name])[:19] for name in ("from_ms", "since_ms")))
    screen.spells(TOPIC)


def test_topics(screen: Screen) -> None:
    homes = tuple(f"warehouse-{number}" for number in range(5))
    topic = Topic(bytes(16), TOPIC, 5, (homes,) * 64, 1_000_000, STAMP_ZERO)
    known = MetadataReply("c", "n", (), (topic,), (Group(bytes(16), GROUP, 0, 0),), 60.0)
    topics._list(known, as_json=False)
    screen.has(" 64 ", " 1,000,000 ")
    screen.spells(TOPIC)


def test_topics_stand_by_name(screen: Screen) -> None:
    names = ("c", "a", "b")
    made = tuple(Topic(name.encode(), name, 1, (("n",),), 5, STAMP_ZERO) for name in names)
    topics._list(MetadataReply("c", "n", (), made, (), 60.0), as_json=False)
    assert [line[0] for line in screen.lines()[-3:]] == ["a", "b", "c"]


@pytest.mark.parametrize("each", [False, True], ids=["kinds", "each"])
def test_dead_letters(screen: Screen, each: bool) -> None:
    line: dict[str, Any] = {
        "id": ID,
        "count": MANY,
        "fingerprint": "0123456789abcdef",
        "reason": "x",
        "error_class": "warehouse.errors.NoSuchAccountIsKnownToAnybodyHere",
        "message": "no such account " * 20,
        "last_died_ms": 1_790_000_000_000,
        "died_ms": 1_790_000_000_000,
        "attempts": 5,
    }
    deadletters._print([line], each)
    when = groups.local_time(line["died_ms"])[:19]
    screen.has(when, *([ID, "5 failed attempts"] if each else ["123,456,789", "0123456789abcdef"]))


def test_a_benchmark(screen: Screen) -> None:
    leg = dict.fromkeys(("p50", "p99", "p999", "max", "count"), 12_345.678)
    bench._print(
        {
            "bench": "stream",
            "messages": 10_000_000,
            "size": 1_000_000,
            "partitions": 64,
            "producers": 64,
            "consumers": 64,
            "groups": 64,
            "single": True,
            "nodes_cpu_s": 123_456.789,
            "clients_cpu_s": 123_456.789,
            "machine": {
                "cores": 64,
                "cpu": "A processor with a very long name (R) of a great company @ 2.90GHz",
                "python": "3.11.9",
                "system": "Linux 6.1.0-generic",
                "load_before": 1.5,
                "fsync_ms": {"p50": 1.234, "p99": 12.345},
            },
            "stream": {"messages_per_s": 1_234_567, "seconds": 1000.123},
            "tenths": {"publish": [1_234_567] * 10},
            "cpu_tenths": {"publish": [1_234.5] * 10},
            "node_bytes_a_message": 12_345,
            "restart_s": 1_234.56,
            "longest_pause_ms": 12_345,
            "publish_to_delivery_ms": leg,
            "redelivered": MANY,
            "outcomes": {"acked": 10_000_000, "acked-after-expiry": 10_000_000},
        }
    )
    assert sum(line.count("12,345.678") for line in screen.lines()) == 5


@pytest.mark.parametrize("token", ["", "shop.secret"])
def test_a_listing_without_a_line_names_rights_to_a_client_with_a_token(
    token: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It said that there were no topics, to a client that may see none of them."""
    monkeypatch.setenv("QUORUMQ_TOKEN", token)
    topics._list(MetadataReply("c", "n", (), (), (), 60.0), as_json=False)
    said = capsys.readouterr().err
    assert ("no topics yet: `quorumq topics create" in said, "lacks the rights" in said) == (
        True,
        bool(token),
    )
