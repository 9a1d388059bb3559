"""Audits of partitions that were moved or raised: each request by the replica sets that may have counted it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumq.audit.audit import Audit, audit
from quorumq.audit.clocks import Clock, Times, requests_in_context
from quorumq.audit.files import read
from quorumq.audit.findings import BROKEN, Finding
from quorumq.audit.moment import Moment
from quorumq.audit.replicas import ReplicaSet, Slots, counting, first_of_each, most_replicas
from quorumq.history import Row
from quorumq.history.reader import histories_of
from sim.runner import run_schedule
from sim.schedule import draw
from tests.audit.stories import Story, beside_a_node, buried, held, text_of, ttl_share

THREE, FIVE = "abc", "abcde"
BATCH: dict[str, Any] = {"topic": "t", "partition": 0, "spans": [["a.1.1.1", 0, 1]]}


def adopted(story: Story, at: float, number: int, nodes: str, by: str) -> Story:
    """Nodes ``by`` have a layout of the partition durably."""
    for node in by:
        story.add(f"node:{node}", "layout", at, topic="t", partition=0, layout=number, nodes=list(nodes))
    return story


def raised(story: Story, at: float, by: str = FIVE) -> Story:
    """The partition is raised from three slots to five at ``at``, as far as nodes ``by`` know."""
    return adopted(adopted(story, at - 1, 1, THREE, THREE), at, 3, FIVE, by)


def named(run: str, **settings: Any) -> Story:
    """A run on one machine of a topic with three replicas."""
    boot = {**{f"node:{node}": "m1" for node in "abcdefg"}, "client:p": "m1", "client:c": "m1"}
    settings = {"rf": 3, "boot": "m1", **settings}
    return Story(run, boot=boot).add("client:p", "settings", -9, history=1, clock="mono", settings=settings)


def confirmed(story: Story, copies: str, at: float = 0.0) -> Story:
    """Published, stored on these nodes, confirmed, delivered and acked."""
    for node in copies:
        story.add(f"node:{node}", "store", at + 0.005, **BATCH)
    return story.publish(at).deliver("client:c", at + 1, at + 5, 1).ack("client:c", at + 2, 1)


def with_layouts(story: Story, nodes: str = FIVE) -> Story:
    """The story, whose partition was raised before its first line, as all nodes know by the clock of node a."""
    for node in nodes:
        story.boot.setdefault(f"node:{node}", "m1")
    return raised(story, -3)


def audited(path: Path, folder: Path) -> tuple[Audit, list[Finding]]:
    summary, parts = read(histories_of([str(path)]), folder)
    result = audit(summary, parts)
    return result, result.judged.findings


def audit_of(story: Story, folder: Path) -> Audit:
    (folder / "h").mkdir()
    (folder / "h" / "r.jsonl").write_text(text_of(story))
    return audited(folder / "h", folder / "parts")[0]


def verdict_of(story: Story, guarantee: str, folder: Path) -> str:
    (row,) = [it for it in audit_of(story, folder).verdicts if it["guarantee"] == guarantee]
    return str(row["verdict"])


COPIES: dict[str, tuple[Story, str]] = {
    "two of three": (confirmed(named("r"), "ab"), "holds"),
    "three of five": (confirmed(raised(named("r"), -1), "ade"), "holds"),
    "two of five": (confirmed(raised(named("r"), -1), "ab"), "broken"),
    "two of three, raised later": (raised(confirmed(named("r"), "ab"), 4), "holds"),
    "two of three, raised meanwhile": (confirmed(raised(named("r"), 0.002), "ab"), "holds"),
    "two of three, as only one of these has adopted five": (confirmed(raised(named("r"), -1, "ade"), "bc"), "holds"),
    "two of five, as only one of three has not adopted them": (confirmed(raised(named("r"), -1, "ab"), "bc"), "broken"),
    "one of three, while it is raised": (confirmed(raised(named("r"), 0.002), "a"), "broken"),
    "nodes without a slot": (confirmed(adopted(named("r"), -1, 2, "bcd", "abcd"), "ae"), "broken"),
    "the set after a move": (confirmed(adopted(named("r"), -1, 2, "bcd", "abcd"), "cd"), "holds"),
    "the set before a move": (confirmed(adopted(named("r"), -1, 2, "bcd", "d"), "ab"), "holds"),
    "a set before the last but one": (
        confirmed(adopted(adopted(adopted(named("r"), -3, 1, THREE, "a"), -2, 2, "bcd", "d"), -1, 3, "cde", "e"), "ab"),
        "broken",
    ),
    "a single replica that was raised": (
        confirmed(adopted(adopted(named("r", rf=1), -2, 1, "a", "a"), -1, 3, THREE, THREE), "a"), "broken"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", COPIES)
def test_a_publish_needs_a_majority_of_a_set_that_may_have_counted_it(name: str, tmp_path: Path) -> None:
    story, verdict = COPIES[name]
    assert verdict_of(story, "G1", tmp_path) == verdict


def test_layouts_by_clocks_that_nothing_compares_prove_no_set_to_be_over(tmp_path: Path) -> None:
    story = named("r")
    story.boot = {who: f"m-{who}" if who.startswith("node") else "m1" for who in story.boot}
    assert verdict_of(confirmed(raised(story, -1), "ab"), "G1", tmp_path) == "holds"


def test_a_loss_after_a_raise_is_found(tmp_path: Path) -> None:
    story = raised(named("r"), -1)
    for node in "abc":
        story.add(f"node:{node}", "store", 0.005, **BATCH)
    story.publish().register("node:a", -2, 0).inventory(8).drained(9)
    assert verdict_of(story, "G1", tmp_path) == "broken"


@pytest.mark.parametrize(("nodes", "verdict"), [("ab", "not checked"), ("abd", "broken")])
def test_a_message_is_buried_once_a_raised_majority_has_it(nodes: str, verdict: str, tmp_path: Path) -> None:
    story = with_layouts(buried("r", *(f"node:{node}" for node in nodes if node in "ab")))
    for node in nodes.replace("a", "").replace("b", ""):
        story.add(f"node:{node}", "dead_letter", 3.1, **held(1), outcome="ok")
    assert verdict_of(story, "G7", tmp_path) == verdict


@pytest.mark.parametrize(("more", "verdict"), [("", "not checked"), ("d", "not checked"), ("de", "broken")])
def test_a_ttl_is_asked_about_once_all_new_slots_have_a_copy(more: str, verdict: str, tmp_path: Path) -> None:
    story = with_layouts(ttl_share("r", 2.2))
    for node in more:
        story.add(f"node:{node}", "store", 0.006, **BATCH)
    assert verdict_of(story, "delays", tmp_path) == verdict


@pytest.mark.parametrize(("attempt", "verdict"), [(11, "holds"), (12, "broken")])
def test_each_slot_of_a_raised_set_may_count_a_delivery(attempt: int, verdict: str, tmp_path: Path) -> None:
    story = raised(named("r", hold_min=1.0), -1).publish().register("node:a", 0.5, 7)
    story.deliver("client:c", 2.6, 5, 1, generation=7, attempt=attempt)
    assert verdict_of(story, "groups", tmp_path) == verdict


@pytest.mark.parametrize(("nodes", "verdict"), [("ab", "holds"), ("abd", "broken")])
def test_a_group_that_no_majority_of_a_raised_set_had_may_never_have_been(
    nodes: str, verdict: str, tmp_path: Path
) -> None:
    story = raised(named("r", kept=True), -3)
    story.add("client:c", "fetch", -0.5, topic="t", group="g", op=1, outcome="invoke", start="earliest")
    for node in nodes:
        story.register(f"node:{node}", -0.4, 0)
    for node in "abc":
        story.add(f"node:{node}", "store", 0.005, **BATCH)
    assert verdict_of(story.publish().inventory(8).drained(9), "G1", tmp_path) == verdict


def test_copies_of_learners_do_not_make_a_clock_early(tmp_path: Path) -> None:
    """Three nodes get each batch a second after it was confirmed by two of three."""
    story = beside_a_node("r", "abc")
    for row in list(story.rows):
        if row["kind"] == "store" and row["who"] == "node:c":
            op = row["spans"][0][1]
            story.rows.remove(row)
            for node in "cde":
                story.boot.setdefault(f"node:{node}", "m1")
                story.add(f"node:{node}", "store", op / 5 + 1, **{name: row[name] for name in BATCH})
    clocks = {row["clock"]: row for row in audit_of(raised(story, 3), tmp_path).clocks}
    doubt = clocks["m0"]["within"] + clocks["m1"]["within"] + 1e-6
    assert clocks["m0"]["placed"] > 0.9
    assert abs(clocks["m0"]["ahead"] - clocks["m1"]["ahead"] + 5000.0) <= doubt


def test_registers_are_confirmed_by_a_majority_of_the_nodes_that_were_there_at_first() -> None:
    rows: list[dict[str, Any]] = []
    for node, nodes in (("a", "abc"), ("b", "abc"), ("d", "abcde")):
        settings = {"nodes": list(nodes)}
        rows.append({"run": "r", "who": f"node:{node}", "at": 0.0, "kind": "settings", "settings": settings})
        rows.append({"run": "r", "who": f"node:{node}", "at": 1.0, "kind": "topic", "topic": "t"})
    of = {("r", row["who"]): Clock(True, number, number) for number, row in enumerate(rows)}
    assert set(requests_in_context(rows, Times(of))["slots"].tolist()) == {3}


@pytest.mark.soak
def test_a_simulated_raise_is_clean_and_too_few_copies_after_it_are_found(tmp_path: Path) -> None:
    rows = run_schedule(draw(1, "moves"), full=True, keep=True).rows
    raises = [row for row in rows if row["kind"] == "layout" and len(row["nodes"]) == 5]
    assert raises
    assert not broken_in(rows, tmp_path / "good")
    last = [row for row in rows if row["kind"] == "publish" and row["outcome"] == "ok"][-1]
    mine = [row for row in rows if row["kind"] in ("publish", "store") and row["spans"] == last["spans"]]
    later = max(row["at"] for row in raises) + 1.0
    raised_one = {name: raises[-1][name] for name in ("topic", "partition")}
    again = {**raised_one, "spans": [["a.1.beef.1", 0, 1]]}
    copies = [row for row in mine if row["kind"] == "store"][:3]
    for count, causes in ((2, {"confirmed with too few copies"}), (3, set())):
        request = [row for row in mine if row["kind"] == "publish"]
        more = [{**row, **again, "at": later} for row in (*copies[:count], *request)]
        causes_after = {it.cause for it in broken_in([*rows, *more], tmp_path / str(count))}
        assert causes_after & {"confirmed with too few copies"} == causes


def test_a_simulated_node_whose_disk_is_slow_grants_holds_until_its_layout_is_durable(tmp_path: Path) -> None:
    assert not broken_in(run_schedule(draw(7, "moves"), full=True, keep=True).rows, tmp_path / "good")


def broken_in(rows: list[Row], folder: Path) -> list[Finding]:
    folder.mkdir()
    (folder / "r.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [it for it in audited(folder / "r.jsonl", folder / "parts")[1] if it.verdict == BROKEN]


def test_the_first_line_of_each_node_about_each_layout_is_kept() -> None:
    lines = [Slots(2, "abc", "node:a", _at(at)) for at in (3.0, 1.0, 2.0)]
    assert first_of_each(lines) == [lines[1]]


def _at(at: float) -> Moment:
    return Moment(at, at, at, 0)


def test_a_first_set_that_no_line_names_has_one_more_node_at_most() -> None:
    assert most_replicas([], 3) == 3
    assert most_replicas([Slots(2, "bcd", "node:b", _at(1.0))], 3) == 4
    assert most_replicas([Slots(1, "abc", "node:a", _at(1.0)), Slots(3, FIVE, "node:a", _at(2.0))], 3) == 5


@given(st.data())
def test_the_set_that_counted_a_round_is_among_those_that_may_have_done_so(data: st.DataObject) -> None:
    """Nodes adopt a raise and moves one by one; each vote is by the layout that its node has then."""
    sets: list[Sequence[str]] = ["abc", "abcde", "bcdef", "cdefg"]
    has = dict.fromkeys("abcdefg", 0)
    lines = [Slots(1, "abc", "node:a", _at(0.0))] if data.draw(st.booleans()) else []
    now, sent = 0.0, None
    length = data.draw(st.integers(0, 30))
    begins = data.draw(st.integers(0, length))
    voted: dict[int, set[str]] = {}
    for step in range(length):
        now += 1.0
        if step == begins:
            sent = now
        node = data.draw(st.sampled_from("abcdefg"))
        newest = max(has.values())
        slots = sets[newest]
        # The next layout is there only once every slot of the newest one has adopted that.
        limit = newest + 1 if all(has[it] == newest for it in slots) and newest + 1 < len(sets) else newest
        if has[node] < limit and data.draw(st.booleans()):
            has[node] = limit
            lines.append(Slots(limit + 1, sets[limit], f"node:{node}", _at(now)))
        elif sent is not None and node in sets[has[node]]:
            votes = voted.setdefault(has[node], set())
            votes.add(node)
            counted = ReplicaSet(len(sets[has[node]]), frozenset(f"node:{it}" for it in sets[has[node]]))
            having = {f"node:{it}" for it in votes}
            if counted.has_majority(having):
                assert any(it.has_majority(having) for it in counting(lines, 3, _at(sent), _at(now)))
