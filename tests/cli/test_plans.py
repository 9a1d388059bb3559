"""`quorumq deadletters redrive --plan` against real node processes."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from quorumq.client import MessageId, connect
from quorumq.client.client import Peek
from quorumq.core.values.types import Kind
from tests.cli.shell import Done, Running, Shell
from tests.patience import until

pytestmark = pytest.mark.e2e

HOLD_S = 60.0
"""No test here waits for a hold to end, and some take hundreds of messages at once: on a busy machine, too."""


class Plan:
    """A redrive plan of the dead letters of one topic, made from the listing of the command line."""

    def __init__(self, shell: Shell, path: Path, topic: str, group: str = "g") -> None:
        self.path = path
        (known,) = [line for line in shell("topics list --json").lines() if line["topic"] == topic]
        listed = shell(f"deadletters list {topic} --group {group} --each --json --limit 1000").lines()
        self.ids = [(line["id"], line["n"]) for line in listed]
        self.head: dict[str, Any] = {"quorumq_plan": 1, "cluster": None}
        self.decision = {
            "topic": topic, "topic_id": known["id"], "group": group, "failure": "f", "verdict": "redrive",
            "reason": "mended", "rate": 500,
        }  # fmt: skip
        self.write()

    def write(self, *more: Any) -> None:
        messages = [{"id": name, "generation": 0, "n": n} for name, n in self.ids]
        lines = [self.head, self.decision, *messages, *more]
        self.path.write_text("".join(json.dumps(line) + "\n" for line in lines))

    def __str__(self) -> str:
        return str(self.path)


def total_of(done: Done) -> dict[str, int]:
    """Return the sums of a plan's run without zeros."""
    last = done.lines()[-1]
    return {key: count for key, count in last.items() if type(count) is int and count}


def test_a_plan_is_redriven_once_however_often_it_is_run(shell: Shell, tmp_path: Path) -> None:
    shell("publish planned", *"abcdef", "--partition", "0")
    shell("consume planned --group g --max 6 --dead-letter no")
    plan = Plan(shell, tmp_path / "plan", "planned")
    assert len(plan.ids) == 6
    # Since the plan was made one dead letter was acked, which purges it, and one was redriven and died again.
    shell("consume planned --group g!dead --max 1")
    remaining = shell("deadletters list planned --group g --each --json").lines()
    shell("deadletters redrive planned --group g --limit 1")
    again = shell("consume planned --group g --max 1 --dead-letter 'still no' --json").lines()
    assert again[0]["id"] in [line["id"] for line in remaining]

    first = shell("deadletters redrive --plan", str(plan), "--dry-run")
    words = "4 messages would be redriven, 1 had been redriven before, 1 purged meanwhile"
    assert first.out.splitlines() == [f"planned g f: {words}", words]
    assert len(shell("deadletters list planned --group g --each --json").lines()) == 5

    done = total_of(shell("deadletters redrive --plan", str(plan), "--json"))
    assert done == {"chosen": 6, "redriven": 4, "redriven_before": 1, "purged": 1}
    done = total_of(shell("deadletters redrive --plan", str(plan), "--rate", "1000", "--json"))
    assert done == {"chosen": 6, "redriven_before": 5, "purged": 1}
    got = shell("consume planned --group g --max 4 --json").lines()
    assert len({line["id"] for line in got}) == 4, "each is back once"
    assert shell("consume planned --group g --wait 0.2").out == "", "and those left alone are not"
    done = total_of(shell("deadletters redrive --plan", str(plan), "--json"))
    assert done == {"chosen": 6, "acked": 4, "redriven_before": 1, "purged": 1}


def test_a_plan_that_was_killed_goes_on_where_it_stopped(
    shell: Shell, start: Callable[..., Running], tmp_path: Path
) -> None:
    shell("publish stopped", *(str(number) for number in range(40)))
    shell("consume stopped --group g --max 40 --dead-letter no")
    plan = Plan(shell, tmp_path / "plan", "stopped")
    running = start("deadletters", "redrive", "--plan", str(plan), "--rate", "2")
    until(lambda: shell.states("stopped").get("ready", 0) > 2, "something is redriven")
    assert running.send(signal.SIGINT) == 130
    assert "run it again" in running.err.read_text()
    rest = total_of(shell("deadletters redrive --plan", str(plan), "--rate", "9999", "--json"))
    assert 0 < rest["redriven_before"] < 40
    assert rest["redriven"] + rest["redriven_before"] == 40
    assert len({line["id"] for line in shell("consume stopped --group g --max 40 --json").lines()}) == 40
    assert shell("consume stopped --group g --wait 0.2").out == ""


def test_a_plan_of_another_cluster_or_topic_changes_nothing(shell: Shell, tmp_path: Path) -> None:
    shell("publish guarded a b")
    shell("consume guarded --group g --max 2 --dead-letter no")
    plan = Plan(shell, tmp_path / "plan", "guarded")
    ids = plan.ids

    plan.head["cluster"] = "elsewhere"
    plan.write()
    said = shell("deadletters redrive --plan", str(plan), code=78).err
    assert "'elsewhere'" in said

    plan.head["cluster"] = None
    plan.ids = [(name.replace("/n", "/x", 1), n) for name, n in ids]
    plan.write()
    said = shell("deadletters redrive --plan", str(plan), code=64).err
    assert "none of the 2 messages" in said
    # Settled messages may have been reclaimed: a plan that names this cluster is not suspected.
    plan.head["cluster"] = "local"
    plan.write()
    assert total_of(shell("deadletters redrive --plan", str(plan), "--json")) == {"chosen": 2, "unknown": 2}

    plan.ids = [(name.replace(plan.decision["topic_id"], "ab" * 16), n) for name, n in ids]
    plan.decision["topic_id"] = "ab" * 16
    plan.write()
    said = shell("deadletters redrive --plan", str(plan), code=66).err
    assert "line 2" in said
    assert "ab" * 16 in said
    assert len(shell("deadletters list guarded --group g --each --json").lines()) == 2


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"id": "x/0/n1"', "line 5: '{\"id\": \"x/0/n1\"' is not a message to redrive: Input data was truncated"),
        ("[1]", "line 5: '[1]' is not a message to redrive: Expected `object`, got `array`"),
        ('{"id": "x/0/n1", "generation": 0, "n": 0}', "line 5: not a message id: 'x/0/n1'"),
        ('{"id": "ID", "generation": 0}', "Object missing required field `n`"),
        ('{"id": "ID", "generation": true, "n": 0}', "Expected `int`, got `bool` - at `$.generation`"),
        ('{"id": "OTHER", "generation": 0, "n": 0}', "is of another topic than the decision in line 2"),
        ('{"verdict": "maybe"}', "is not a decision: Invalid enum value 'maybe' - at `$.verdict`"),
        ('{"verdict": "hold"}', "Object missing required field `topic`"),
        ('{"verdict": "hold", "topic": "t", "topic_id": "T"}', "at `$.topic_id`"),
        ('{"verdict": "hold", "topic": "t", "topic_id": "TOPIC", "rate": 0}', "Expected `float` > 0.0 - at `$.rate`"),
    ],
)  # fmt: skip
def test_a_plan_with_a_wrong_line_does_nothing(shell: Shell, tmp_path: Path, line: str, said: str) -> None:
    if "wrong" not in [line["topic"] for line in shell("topics list --json").lines()]:
        shell("publish wrong a b")
        shell("groups create wrong g")
    shell.bury("wrong", 2)
    plan = Plan(shell, tmp_path / "plan", "wrong")
    name, topic = plan.ids[0][0], plan.decision["topic_id"]
    text = line.replace("ID", name).replace("OTHER", name.replace(topic, "ab" * 16)).replace("TOPIC", topic)
    plan.path.write_text(plan.path.read_text() + text + "\n")
    assert said in shell("deadletters redrive --plan", str(plan), code=64).err
    assert len(shell("deadletters list wrong --group g --each --json").lines()) == 2


def test_a_lookup_finds_scattered_messages_and_no_others(shell: Shell) -> None:
    made = []
    for _ in range(4):  # four producers, so four producer ids
        numbers = (str(number) for number in range(150))
        made += shell("publish looked", *numbers, "--partition", "0").out.split()
    shell("consume looked --group g --max 600 --dead-letter no")
    names = [MessageId.parse(text) for text in made]
    first, last = names[0], names[-1]
    strangers = [
        first._replace(seq=10_000),
        first._replace(producer_id=first.producer_id._replace(node="a")),
        last._replace(producer_id=last.producer_id._replace(node="z")),
        last._replace(producer_id=last.producer_id._replace(k=last.producer_id.k + 1)),
    ]
    requested = [*names[::37], *names[300:320], names[150], *strangers]

    async def look() -> dict[MessageId, Peek]:
        async with connect(shell.cluster.addresses) as client:
            return await client.lookup("looked", "g", requested)

    peeks = trio.run(look)
    assert set(peeks) == set(requested) - set(strangers)
    for name, peek in peeks.items():
        assert peek.peeked.record.kind == Kind.DEAD
        assert peek.ids(name.partition.topic) == [name]


def test_a_file_that_is_no_plan_is_refused(shell: Shell, tmp_path: Path) -> None:
    path = tmp_path / "plan"
    path.write_text("")
    assert "is empty" in shell("deadletters redrive --plan", str(path), code=64).err
    path.write_text('{"quorumq_plan": 2}\n')
    assert "line 1" in shell("deadletters redrive --plan", str(path), code=64).err
    path.write_text('{"quorumq_plan": 1}\n{"id": "x", "generation": 0, "n": 0}\n')
    assert "without a decision" in shell("deadletters redrive --plan", str(path), code=64).err
    path.write_text('{"quorumq_plan": 1}\n')
    assert shell("deadletters redrive --plan", str(path)).out == "the plan has nothing to redrive\n"
    assert "only --rate" in shell("deadletters redrive t --plan", str(path), code=2).err
    assert "--plan FILE" in shell("deadletters redrive t", code=2).err
