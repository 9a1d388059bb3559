"""The audit agrees with the simulator's judges, run by run and promise by promise, and never says more than it knows.

Spark is slow to start and to plan, so all runs of this file are audited at once: simulated ones, good and broken, and
small ones written by hand. Each test looks at its own runs.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import Row as SparkRow
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from quorumq.core.errors import NotFound, StorageError, UsageError
from quorumq.history import KINDS, Row
from sim.checkers import judge
from spark.histories import files, parsed, read
from spark.jobs.audit import SHOWN, audited, conclusion, exit_code, summarised
from spark.transforms import audit as t
from spark.transforms import audit_clocks
from spark.transforms.audit import GUARANTEES
from spark.transforms.audit_findings import shown
from tests.spark.audit_histories import (
    FAULTS,
    HUNTED_BY_NAME,
    PROMISES,
    Reading,
    caught,
    constant,
    drifting,
    good,
    jumping,
    on_machines,
)

TWICE = "given-twice"
GOOD = 4
ON_MACHINES = 2
MUTANTS = 4
"""Of the rules that are hunted every so many-th one is left out in a run; of the soak, every one."""
SOAK_GOOD = 1500
SEEDS = 200
"""Good runs among which one is found that can take each planted fault."""


def simulated(seeds: int, mutants: int, mutant_seeds: int) -> Iterator[tuple[str, list[Row]]]:
    """Runs by name."""
    left = dict(FAULTS)
    for seed in range(1, SEEDS):
        if seed > seeds and not left:
            break
        rows = good(seed)
        if seed <= seeds:
            yield f"good-{seed}", rows
        for name in list(left):
            plant, guarantee = left[name]
            made = plant(rows)
            if made is not None and any(guarantee in PROMISES.get(it.promise, ()) for it in judge(made)):
                del left[name]
                yield f"planted-{name}", made
    assert not left, f"no good run could take the faults {sorted(left)}"
    for name in [*HUNTED_BY_NAME][::mutants]:
        seed, rows = caught(name, range(1, mutant_seeds + 1))
        yield f"{name}-{seed}", rows


def of_machines(seeds: int) -> Iterator[tuple[str, list[Row]]]:
    """Runs by name, as several machines with wrong clocks would have written them: good ones, and one of each fault."""
    left = dict(FAULTS)
    readings: dict[str, Callable[[int], Reading]] = {
        "constant": constant, "drifting": drifting, "jumping": jumping
    }  # fmt: skip
    for seed in range(1, SEEDS):
        if seed > seeds and not left:
            break
        rows = good(seed, full=True)
        if seed <= seeds:
            for name, reading in readings.items():
                yield f"{name}-{seed}", on_machines(f"{name}-{seed}", rows, reading(seed))
        for name in list(left):
            plant, guarantee = left[name]
            made = plant(rows)
            if made is not None and any(guarantee in PROMISES.get(it.promise, ()) for it in judge(made)):
                del left[name]
                yield f"wrong-clocks-{name}", on_machines(f"wrong-clocks-{name}", made, constant(seed))
    assert not left, f"no good run could take the faults {sorted(left)}"


class Story:
    """A small run of real clients, written by hand."""

    def __init__(
        self, run: str, *, boot: dict[str, str] | None = None, ahead: dict[str, float] | None = None
    ) -> None:
        """`boot`: whose machine; `ahead`: how wrong a writer's clock and time of day are, in seconds."""
        self.run = run
        self.boot = boot or {}
        self.ahead = ahead or {}
        self.rows: list[Row] = []
        self.seq = 0  # of the message that is meant

    def add(self, who: str, kind: str, at: float, **fields: Any) -> Story:
        """A line; `at` is true time, and each writer's own clock is ahead of it by so much."""
        if not any(row["who"] == who for row in self.rows) and kind != "settings":
            boot = {"boot": self.boot[who]} if who in self.boot else {}
            self.add(who, "settings", at, history=1, clock="mono", settings=boot)
        ahead = self.ahead.get(who, 0.0)
        for name in ("until", "asked"):
            if name in fields:
                fields[name] += ahead
        common = {
            "run": self.run,
            "who": who,
            "at": at + ahead,
            "wall_ms": int(1e12 + (at + ahead) * 1000),
            "within": 0.0,
        }
        self.rows.append({**common, "kind": kind, **fields})
        return self

    def call(
        self, who: str, kind: str, at: float, where: dict[str, Any], outcome: str = "ok", **asked: Any
    ) -> Story:
        """Asked, and answered 10 ms later."""
        self.add(who, kind, at, **where, outcome="invoke", **asked)
        return self.add(who, kind, at + 0.01, **where, outcome=outcome)

    def publish(self, at: float = 0.0, **more: Any) -> Story:
        where = {"topic": "t", "partition": 0, "spans": [["a.1.1.1", 0, 1]], "op": 1}
        return self.call("client:p", "publish", at, where, crcs="0a0b0c0d", published_ms=int(1e12), **more)

    def deliver(self, who: str, at: float, until: float, time: int, node: str = "", **other: Any) -> Story:
        """Handed over; where a node is named, it says that it won it, which took 2 ms with both ways."""
        if node:
            self.add(node, "hold_won", at - 0.001, **held(time))
        more = {
            "token": f"{time:020d}@a",
            "attempt": 1,
            "until": until,
            "asked": at - (0.002 if node else 0.1),
            "crcs": "0a0b0c0d",
        }
        return self.add(who, "deliver", at, **{**held(time), **more, **other})

    def twice(self, until: float, again: float, nodes: tuple[str, str] = ("", "")) -> Story:
        """Delivered at 1 s to c, then to d, which acks it."""
        self.deliver("client:c", 1, until, 1, nodes[0])
        return self.deliver("client:d", again, again + 5, 2, nodes[1]).ack("client:d", again + 1, 2)

    def purge(self, at: float, start: int, outcome: str = "ok") -> Story:
        """One message is settled by its name."""
        where = {
            "topic": "t",
            "partition": 0,
            "group": "g",
            "spans": [["a.1.1.1", start, start + 1]],
            "op": 9,
        }
        self.add("client:p", "purge", at, **where, outcome="invoke")
        return self.add("client:p", "purge", at + 0.01, **where, outcome=outcome, messages=1)

    def listed(self, who: str, at: float, state: str, time: int = 1) -> Story:
        fields = {name: value for name, value in held(time).items() if name != "owner"}
        return self.add(who, "list", at, **fields, state=state, complete=True)

    def inventory(self, at: float) -> Story:
        """A complete listing of the dead letters came to its end, 10 ms after it began."""
        where = {"topic": "t", "partition": 0, "group": "g", "spans": [], "state": "dead"}
        return self.add("client:p", "list", at, **where, complete=True, asked=at - 0.01)

    def letter(self, at: float) -> Story:
        """Delivered, and made a dead letter at ``at``."""
        self.deliver("client:c", at - 1, at + 3, 1)
        for outcome in ("invoke", "ok"):
            self.add("client:c", "dead_letter", at, **held(1), op=1, outcome=outcome)
        return self

    def register(self, who: str, at: float, generation: int, **more: Any) -> Story:
        return self.add(who, "register", at, topic="t", group="g", generation=generation, from_ms=0, **more)

    def set_group(self, at: float, start: str, outcome: str = "ok", *, rewind: bool = False) -> Story:
        where = {"topic": "t", "group": "g", "op": len(self.rows), "rewind": rewind}
        self.add("client:c", "set_group", at, **where, outcome="invoke", start=start)
        told = {"generation": 0, "from_ms": 0} if outcome == "ok" else {}
        return self.add("client:c", "set_group", at + 0.01, **where, outcome=outcome, **told)

    def ack(self, who: str, at: float, time: int) -> Story:
        return self.call(who, "ack", at, {**held(time), "op": time}, "acked")

    def reject(self, who: str, at: float, time: int, delay: float) -> Story:
        return self.call(who, "reject", at, {**held(time), "op": time}, delay=delay)

    def set_topic(self, at: float, topic: str = "t", **asked: dict[str, Any]) -> Story:
        return self.call("client:p", "set_topic", at, {"topic": topic, "op": len(self.rows)}, **asked)

    def delete_topic(self, at: float) -> Story:
        return self.call("client:p", "delete_topic", at, {"topic": "t", "op": len(self.rows)})

    def delete_group(self, at: float, outcome: str = "ok", **more: Any) -> Story:
        where = {"topic": "t", "group": "g", "op": len(self.rows)}
        self.add("client:p", "delete_group", at, **where, outcome="invoke")
        return self.add("client:p", "delete_group", at + 0.01, **where, outcome=outcome, **more)

    def has(self, who: str, at: float, topic: str = "t", **settings: Any) -> Story:
        return self.add(who, "topic", at, topic=topic, settings=settings)

    def drained(self, at: float) -> Story:
        return self.add("sim", "phase", at, phase="drained")

    def derive(self, at: float) -> Story:
        into = {"topic": "out", "partition": 0, "spans": [["~derived.1.1.1", 0, 1]]}
        where = {"topic": "t", "partition": 0, "group": "g", "spans": [["a.1.1.1", 0, 1]]}
        return self.add("client:c", "derive", at, **where, crcs="01020304", into=into)


def from_latest(run: str, published: float, *, outcome: str = "ok", listed: str = "") -> Story:
    """A group that is to begin with what is published from now on, at 1 s, by a request with this outcome; another one
    finds it at 3 s. A message of before or after that nobody gets, and that a node lists in this state.
    """
    made = Story(run, boot=dict.fromkeys(("client:p", "client:c", "node:a"), "m1"))
    made.set_group(1, "latest", outcome).set_group(3, "earliest").publish(published)
    if outcome != "fail":
        made.register("node:a", 1.005, 0, latest="begun")
    if listed:
        made.listed("node:a", 9, listed)
    return made.drained(10)


def created(run: str) -> Story:
    """A topic with a setting that was asked for and one that was left to the node, changed once."""
    made = Story(run, boot=dict.fromkeys(("client:p", "client:c", "node:a", "node:b"), "m1"))
    made.set_topic(0, settings={"max_deliveries": 7}, defaults={"ttl_s": 0.0})
    for node in ("node:a", "node:b"):
        made.has(node, 0.005, max_deliveries=7, ttl_s=0.0)
    return made.set_topic(1, settings={"max_deliveries": 9}).has("node:a", 1.005, max_deliveries=9, ttl_s=0.0)


def held(time: int) -> dict[str, Any]:
    """The fields of a delivery: of another message where the time is beyond all others."""
    spans = [["a.1.1.1", max(0, time - 1000), max(0, time - 1000) + 1]]
    return {
        "topic": "t", "partition": 0, "group": "g", "generation": 0, "n": 0, "spans": spans,
        "owner": f"a.1.1#{time:x}@a",
    }  # fmt: skip


def letters(run: str, *listing: str) -> Story:
    """A dead letter that these nodes list in the end; each of two lists another one."""
    nodes = ("node:a", "node:b")
    made = Story(run, boot=dict.fromkeys((*nodes, "client:p", "client:c"), "m1")).publish()
    made.letter(2)
    for time, some in ((1, listing), (1001, nodes)):
        for node in some:
            made.listed(node, 10, "dead", time)
    return made.drained(9)


def on_one_node(run: str, *last: str) -> Story:
    """Confirmed with one copy of three, as far as nodes say; ``last`` are the kinds of their last lines."""
    where = {"topic": "t", "partition": 0, "spans": [["a.1.1.1", 0, 1]]}
    story = Story(run, boot={"node:a": "m1", "node:b": "m1", "client:p": "m1", "client:c": "m1"})
    story.add("client:p", "settings", 0, history=1, clock="mono", settings={"rf": 3, "boot": "m1"})
    for node in ("node:a", "node:b"):
        story.add(node, "start", 0, incarnation=1)
    story.add("node:a", "store", 0.005, **where).publish().deliver("client:c", 1, 5, 1).ack("client:c", 2, 1)
    for node, kind in zip(("node:a", "node:b"), last, strict=False):
        story.add(node, kind, 3, incarnation=1)
    return story


def won_only(run: str) -> Story:
    """A confirmed message was handed to somebody, as its node says, and no client wrote of it."""
    boot = dict.fromkeys(("node:a", "client:p"), "m1")
    return Story(run, boot=boot).publish().add("node:a", "hold_won", 1, **held(1)).drained(9)


def mortal(run: str, asked: float) -> Story:
    """A message that three nodes have for 2 s, and that was asked for then."""
    nodes = ("node:a", "node:b", "node:c")
    made = Story(run, boot=dict.fromkeys((*nodes, "client:p", "client:c"), "m1")).register("node:a", -1, 0)
    made.add("client:p", "settings", 0, history=1, clock="mono", settings={"rf": 3, "boot": "m1"})
    made.publish(ttl=2.0)
    for node in nodes:
        made.add(node, "store", 0.005, topic="t", partition=0, spans=[["a.1.1.1", 0, 1]])
    return made.deliver("client:c", asked + 0.1, asked + 5, 1).ack("client:c", asked + 1, 1)


def odd(run: str) -> Story:
    """Settings that a history may say and no run can have."""
    story = Story(run)
    for at, settings in enumerate((
        {"rf": "three", "hold_min": 0, "nodes": 5, "boot": [1]}, {"rf": "NaN", "hold_min": -1, "nodes": [5, None]},
        {"rf": 1e300, "hold_min": 1e-300, "nodes": {"a": 1}, "boot": None}, {"rf": None, "hold_min": [], "nodes": "a"},
    )):  # fmt: skip
        story.add("client:p", "settings", at / 1000, history=1, clock="mono", settings=settings)
    return story


def beside_a_node(run: str, nodes: str) -> Story:
    """A producer shares the machine, whose clock is 5,000 s behind, with node a, which nobody fetches from."""
    boot = {"client:p": "m0", "node:a": "m0", "node:b": "m1", "node:c": "m2", "client:c": "m3"}
    made = Story(run, boot=boot, ahead={"client:p": -5000.0, "node:a": -5000.0, "node:c": 70.0})
    for node in nodes:
        who = f"node:{node}"
        settings = {"boot": boot[who], "nodes": ["a", "b", "c"]}
        made.add(who, "settings", 0, history=1, clock="mono", settings=settings)
    for op in range(2, 30):
        for node in nodes[1:]:
            made.deliver(
                "client:c",
                op / 5 + 0.001 * (node == "b"),
                op / 5 + 1,
                1000 + 2 * op + (node == "b"),
                f"node:{node}",
            )
        where = {"topic": "t", "partition": 0, "spans": [["a.1.1.2", op, op + 1]]}
        made.call("client:p", "publish", op / 5, {**where, "op": op}, crcs="0a0b0c0d", published_ms=int(1e12))
        for number, node in enumerate(nodes):
            made.add(f"node:{node}", "store", op / 5 + 0.001 * (number + 1), **where)
    return made


def stories() -> list[Story]:
    """Runs of two machines whose times of day are half a second apart at most, and what can be said of them."""
    two = {"client:c": "m1", "client:d": "m2", "client:p": "m1", "node:a": "m0", "node:b": "m3"}
    far = {"client:d": 0.7, "node:a": -5000.0, "node:b": 3e7}
    one = dict.fromkeys(two, "m1")
    a, b, late = ("node:a", "node:a"), ("node:a", "node:b"), "client:c"
    # d and c both fetch from a and from b as well, so that these are known to each other.
    known = Story("", boot=two, ahead=far)
    for number, at in enumerate((0.5, 4.6, 5.05, 8.05)):
        for who, node in (
            ("client:c", "node:a"),
            ("client:d", "node:b"),
            ("client:d", "node:a"),
            ("client:c", "node:b"),
        ):
            known.seq += 1
            known.deliver(who, at + number / 1e4, at + 1, 1000 + known.seq, node)

    def apart(run: str) -> Story:
        made = Story(run, boot=two, ahead=far)
        made.rows = [{**row, "run": run} for row in known.rows]
        return made

    busy = Story("a-busy-producer", boot={**two, "client:p": "m9"}, ahead={**far, "client:p": 5000.0})
    busy.rows = [{**row, "run": busy.run} for row in known.rows]
    for op in range(2, 40):  # whose clock has more bounds than any other, all on one side
        where = {"topic": "t", "partition": 0, "spans": [["a.1.1.2", op, op + 1]]}
        busy.call("client:p", "publish", op / 5, {**where, "op": op}, crcs="0a0b0c0d", published_ms=int(1e12))
        for node in b:
            busy.add(node, "store", op / 5 + 0.001, **where)
    beside = [beside_a_node("beside-a-node", "abc"), beside_a_node("a-node-without-history", "ab")]
    silent = on_one_node("no-node-wrote", "stop", "stop")
    silent.rows = [row for row in silent.rows if not row["who"].startswith("node:")]
    late_group = mortal("new-group", 2.2)
    for row in late_group.rows:
        row["at"] += 1.5 * (row["kind"] == "register")
    turned = apart("a-day-turned").publish().twice(5, 9, b)
    for row in turned.rows:
        row["wall_ms"] -= 3_600_000 * (row["who"] == "client:d" and row["at"] > 6)
    broke = apart("a-clock-broke")
    broke.ahead = {**far, "client:d": 40.7}
    for number, who in enumerate(("client:c", "client:d")):  # which says that it is no node's clock
        broke.deliver(who, 20.1, 21, 1100 + number, "node:b").deliver(who, 20.12, 21, 1200 + number, "node:a")
    return [
        *beside,
        turned,
        busy.publish().twice(5, 5.2, b),
        Story(TWICE, boot=one).publish().deliver("client:c", 1, 5, 1).ack("client:c", 2, 1),
        apart("apart").publish().twice(5, 9, b),
        apart("close").publish().twice(5, 5.2, b),
        apart("closer").publish().twice(5, 5.0001, b),
        apart("through").publish().twice(20, 8, b),
        apart("again-after-acked").publish().deliver(late, 1, 2, 1, "node:a").ack(late, 1.5, 1)
        .deliver("client:d", 8, 9, 2, "node:b"),
        apart("token-falls").publish().deliver(late, 1, 2, 9, "node:a").deliver("client:d", 8, 9, 2, "node:b"),
        Story("by-one-node", boot=two, ahead=far).publish().twice(5, 5.2, a),
        Story("won-inside", boot=two, ahead=far).publish().deliver("client:c", 1, 5, 1, "node:a")
        .add("node:a", "hold_won", 3, **held(2)),
        Story("won-after", boot=two, ahead=far).publish().deliver("client:c", 1, 5, 1, "node:a")
        .add("node:a", "hold_won", 6, **held(2)),
        Story("won-twice", boot=one).publish().add("node:a", "hold_won", 1, **held(1), until=5)
        .add("node:b", "hold_won", 3, **held(2), until=7),
        Story("won-in-turn", boot=one).publish().add("node:a", "hold_won", 1, **held(1), until=5)
        .add("node:b", "hold_won", 5.1, **held(2), until=9),
        Story("won-and-given-back", boot=one).publish().add("node:a", "hold_won", 1, **held(1), until=5)
        .add("node:b", "release", 2, **{name: value for name, value in held(1).items()
                                        if name not in ("generation", "n")}, reason="rejected")
        .add("node:b", "hold_won", 3, **held(2), until=7),
        Story("won-again-redriven", boot=one).publish().add("node:a", "hold_won", 1, **held(1), until=5)
        .add("node:b", "hold_won", 3, **{**held(2), "generation": 1}, until=7),
        Story("no-nodes", boot=two, ahead=far).publish().twice(2, 9),
        broke.publish().twice(5, 20.2, b),
        Story("early", boot=one).publish(delay=3.0).deliver("client:c", 1, 5, 1).ack("client:c", 2, 1),
        Story("due", boot=one).publish(delay=0.5).deliver("client:c", 1, 5, 1).ack("client:c", 2, 1),
        Story("given-back", boot=one).publish().deliver("client:c", 1, 5, 1).reject("client:c", 2, 1, 3.0)
        .deliver("client:d", 4, 9, 2).ack("client:d", 5, 2),
        Story("came-back", boot=one).publish().deliver("client:c", 1, 5, 1).reject("client:c", 2, 1, 3.0)
        .deliver("client:d", 5, 9, 2).ack("client:d", 6, 2),
        letters("listed-by-all", "node:a", "node:b"),
        letters("listed-by-one", "node:a"),
        Story("purged", boot=one).publish().register("node:a", 0, 0).purge(0.5, 0)
        .deliver("client:c", 1, 5, 1).ack("client:c", 2, 1),
        Story("neighbour-purged", boot=one).publish().register("node:a", 0, 0).purge(0.5, 1)
        .deliver("client:c", 1, 5, 1).ack("client:c", 2, 1),
        Story("near", boot=one).publish().twice(5, 4.9),
        Story("waiting", boot=one).publish(),
        Story("nobody").add("client:p", "settings", 0, history=1, clock="mono", settings={}),
        Story("no-producer", boot=one).deliver("client:c", 1, 5, 1).ack("client:c", 2, 1),
        Story("lost-rewind").publish().register("node:a", 0, 0).register("node:c", 0, 7).register("node:c", 9, 0)
        .deliver("client:c", 1, 5, 1).ack("client:c", 2, 1).add("sim", "phase", 10, phase="drained"),
        Story("torn").publish().deliver("client:c", 1, 5, 1).ack("client:c", 2, 1),
        Story("missing-node").publish().deliver("client:c", 1, 5, 1).ack("client:c", 2, 1).add(
            "node:a", "settings", 0, history=1, clock="mono", settings={"nodes": ["a", "b"]}),
        on_one_node("too-few-copies", "stop", "stop"),
        on_one_node("killed-node", "stop"),
        silent,
        won_only("client-missing"),
        won_only("given-back-unsent").add("node:a", "release", 1.1, **{
            name: value for name, value in held(1).items() if name not in ("generation", "n")
        }).inventory(8),
        mortal("outlived", 2.2),
        mortal("in-time", 1.9),
        mortal("restarted", 2.2).add("node:b", "start", 1, incarnation=2),
        late_group,
        created("settled").set_topic(2, settings={}, defaults={"ttl_s": 5.0})
        .has("node:b", 1.1, max_deliveries=9, ttl_s=0.0).drained(10),
        created("stale-node").drained(10),
        created("told-by-nobody").has("node:a", 2, max_deliveries=3, ttl_s=0.0)
        .has("node:b", 2, max_deliveries=3, ttl_s=0.0).drained(10),
        created("remade").publish(2).deliver("client:d", 2.1, 5, 1).delete_topic(3)
        .set_topic(4, "t#1", settings={"max_deliveries": 1}, defaults={"ttl_s": 0.0})
        .has("node:a", 5, "t#1", max_deliveries=1, ttl_s=0.0).has("node:b", 5, "t#1", max_deliveries=1, ttl_s=0.0)
        .drained(10),
        created("group-deleted").publish(2).deliver("client:d", 2.1, 5, 1).delete_group(3).drained(10),
        created("group-kept").publish(2).deliver("client:d", 2.1, 5, 1).delete_group(3, "fail").drained(10),
        from_latest("before-latest", 0.5, listed="skipped"),
        from_latest("before-latest-unlisted", 0.5),
        from_latest("while-unknown", 2, outcome="unknown", listed="skipped"),
        from_latest("after-latest", 2, listed="skipped"),
        from_latest("after-latest-unlisted", 2).inventory(9),
        Story("letter-unlisted", boot=one).publish().letter(2).drained(9),
        Story("letter-listed-before", boot=one).publish().inventory(1.9).letter(2).drained(9),
        Story("letter-gone", boot=one).publish().letter(2).inventory(8).drained(9),
        Story("letter-listed-elsewhere", boot={**one, "client:p": "m7"}).publish().letter(2).inventory(8).drained(9),
        Story("listed-then-redriven", boot=one).publish().letter(2).listed("node:a", 3, "dead")
        .call("client:p", "redrive", 4, {**{n: v for n, v in held(1).items() if n != "owner"}, "op": 7})
        .deliver("client:d", 5, 9, 2, n=1).call("client:d", "ack", 6, {**held(2), "n": 1, "op": 8}, "acked")
        .inventory(8).drained(9),
        letters("acked-and-listed", "node:a", "node:b").ack("client:c", 3, 1),
        Story("purged-unlisted", boot=one).publish().register("node:a", 0, 0).purge(0.5, 0).drained(9),
        from_latest("after-all", 4, outcome="unknown", listed="skipped"),
        from_latest("latest-refused", 0.5, outcome="fail", listed="skipped"),
        from_latest("rewound-to-latest", 4, listed="skipped").set_group(5, "latest", rewind=True),
        from_latest("rewound-before", 4, listed="skipped").set_group(3.5, "latest", rewind=True),
        from_latest("rewind-unknown", 4, listed="skipped").set_group(3.5, "latest", "unknown", rewind=True),
        Story("in-a-deletion", boot=one).publish().delete_group(0.5, generation=1)
        .deliver("client:c", 1, 5, 1, generation=1),
        Story("purge-failed", boot=one).publish().purge(0.5, 0, "fail").listed("node:a", 9, "skipped").drained(10),
        Story("outputs-unread").publish().deliver("client:c", 1, 5, 1).derive(1.5).ack("client:c", 2, 1).drained(10),
        odd("odd-settings").publish().deliver("client:c", 1, 5, 1).deliver("client:c", 7, 12, 2)
        .ack("client:c", 8, 2).drained(10),
        Story("garbled", boot=one).publish().deliver("client:c", 1, 5, 1).ack("client:c", 2, 1),
    ]  # fmt: skip


class Seen(NamedTuple):
    """What the audit said, and what the judges say."""

    verdicts: dict[tuple[str, str], SparkRow]
    violations: list[SparkRow]
    clocks: dict[str, list[SparkRow]]
    remainder: dict[str, Counter[str]]
    latency: dict[str, SparkRow]
    judged: dict[str, set[str]]


def seen_in(
    spark: SparkSession,
    folder: Path,
    runs: Iterator[tuple[str, list[Row]]],
    extra: list[Story],
    others: Iterable[tuple[str, list[Row]]] = (),
) -> Seen:
    judged: dict[str, set[str]] = {}
    folder.mkdir(exist_ok=True)
    with (folder / "simulated.jsonl").open("w") as file:
        for name, rows in runs:
            judged[name] = {violation.promise for violation in judge(rows)}
            file.writelines(json.dumps({**row, "run": name}) + "\n" for row in rows)
    with (folder / "machines.jsonl").open("w") as file:
        for _, rows in others:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    for story in extra:
        text = "".join(json.dumps(row) + "\n" for row in story.rows)
        if story.run == "torn":
            text += '{"run":"torn","who":"client:c","at":3,"wall_'
        if story.run == "garbled":
            text += '{"run":"garbled", what\n' + json.dumps({**story.rows[-1], "kind": "novel"}) + "\n"
            text += json.dumps({**story.rows[-1], "at": "soon"}) + "\n"
            text += json.dumps({**story.rows[-1], "kind": "settings", "history": 2, "settings": {}}) + "\n"
            text += (
                json.dumps({name: value for name, value in story.rows[-1].items() if name != "owner"}) + "\n"
            )
        (folder / f"{story.run}.jsonl").write_text(text)
        if story.run == TWICE:
            (folder / "copy.jsonl").write_text(text)
    adaptive = spark.conf.get("spark.sql.adaptive.enabled")
    # It plans everything several times, for so few rows.
    spark.conf.set("spark.sql.adaptive.enabled", "false")
    try:
        tables = audited(read(spark, [str(folder)]), folder.parent / "out")
        violations = tables["violations"].collect()
        verdicts = {(row["run"], row["guarantee"]): row for row in tables["verdicts"].collect()}
        clocks: dict[str, list[SparkRow]] = {}
        for row in tables["clocks"].collect():
            clocks.setdefault(row["run"], []).append(row)
        latency = {row["run"]: row for row in tables["latency"].collect()}
        remainder: dict[str, Counter[str]] = {}
        for row in tables["remainder"].collect():
            remainder.setdefault(row["run"], Counter())[row["what"]] += row["count"]
    finally:
        spark.conf.set("spark.sql.adaptive.enabled", str(adaptive))
    return Seen(verdicts, violations, clocks, remainder, latency, judged)


@pytest.fixture(scope="module")
def seen(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    folder = tmp_path_factory.mktemp("audit") / "in"
    return seen_in(spark, folder, simulated(GOOD, MUTANTS, 1), stories(), of_machines(ON_MACHINES))


def has_judge(row: SparkRow) -> bool:
    """Whether a judge of the simulator asks what this finding says."""
    of_nodes = row["guarantee"] == "G7" and " and not by " in row["text"]
    return not of_nodes and (row["guarantee"] != "G6" or "conflict" in row["text"])


def differences(seen: Seen) -> list[str]:
    """Runs and promises of which judges and audit do not say the same."""
    ours: dict[tuple[str, str], str] = {}
    for row in seen.violations:
        if row["verdict"] == "broken" and has_judge(row):
            ours[(row["run"], row["guarantee"])] = row["text"]
    found = []
    for run, promises in seen.judged.items():
        for promise, guarantees in PROMISES.items():
            texts = [ours[(run, name)] for name in guarantees if (run, name) in ours]
            if bool(texts) != (promise in promises):
                found.append(f"{run}: {promise}: the judge says {promise in promises}, the audit {texts}")
    return found


def test_the_audit_agrees_with_the_judges_on_every_run_and_promise(seen: Seen) -> None:
    assert differences(seen) == []
    broken = Counter(promise for promises in seen.judged.values() for promise in promises)
    assert set(PROMISES) <= set(broken), "every promise is broken in some run, or the test shows nothing"
    assert sum(name.startswith("good-") and not found for name, found in seen.judged.items()) == GOOD


@pytest.mark.soak
def test_the_audit_agrees_with_the_judges_on_thousands_of_runs(spark: SparkSession, tmp_path: Path) -> None:
    assert differences(seen_in(spark, tmp_path / "in", simulated(SOAK_GOOD, 1, 40), [])) == []


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_under_its_guarantee(seen: Seen, fault: str) -> None:
    verdict = seen.verdicts[(f"planted-{fault}", FAULTS[fault][1])]
    assert (verdict["verdict"], verdict["broken"] > 0) == ("broken", True)


def test_what_is_good_holds_and_what_did_not_occur_is_not_checked(seen: Seen) -> None:
    said = {row["verdict"] for (run, _), row in seen.verdicts.items() if run.startswith("good-")}
    assert said == {"holds", "not checked"}
    assert all(
        (row["verdict"] == "holds") == (row["checked"] > 0)
        for (run, _), row in seen.verdicts.items()
        if run.startswith("good-")
    )


@pytest.mark.parametrize(
    ("run", "guarantee", "verdict"),
    [
        ("apart", "G2", "holds"),
        ("a-day-turned", "G2", "holds"),
        ("close", "G2", "holds"),
        ("closer", "G2", "not decidable"),
        ("no-node-wrote", "G1", "not decidable"),
        ("client-missing", "G1", "not decidable"),
        ("given-back-unsent", "G1", "broken"),
        ("outlived", "delays", "broken"),
        ("in-time", "delays", "holds"),
        ("restarted", "delays", "not checked"),
        ("new-group", "delays", "not checked"),
        ("a-busy-producer", "G2", "holds"),
        ("through", "G2", "broken"),
        ("again-after-acked", "G3", "broken"),
        ("token-falls", "G3", "broken"),
        ("by-one-node", "G2", "holds"),
        ("won-inside", "G2", "broken"),
        ("won-after", "G2", "holds"),
        ("won-twice", "G2", "broken"),
        ("won-in-turn", "G2", "holds"),
        ("won-and-given-back", "G2", "holds"),
        ("won-again-redriven", "G2", "holds"),
        ("no-nodes", "G2", "not decidable"),
        ("near", "G2", "broken"),
        ("purged", "groups", "broken"),
        ("neighbour-purged", "groups", "holds"),
        ("waiting", "G2", "not checked"),
        ("early", "delays", "broken"),
        ("due", "delays", "holds"),
        ("given-back", "delays", "broken"),
        ("came-back", "delays", "holds"),
        ("listed-by-all", "G7", "holds"),
        ("listed-by-one", "G7", "broken"),
        ("before-latest", "groups", "not checked"),
        ("before-latest", "G1", "holds"),
        ("before-latest-unlisted", "G1", "holds"),
        ("while-unknown", "groups", "not checked"),
        ("after-latest", "groups", "broken"),
        ("after-latest-unlisted", "G1", "broken"),
        ("after-all", "groups", "broken"),
        ("latest-refused", "groups", "broken"),
        ("rewound-to-latest", "groups", "not checked"),
        ("rewound-before", "groups", "broken"),
        ("rewind-unknown", "groups", "not checked"),
        ("in-a-deletion", "groups", "broken"),
        ("letter-unlisted", "G7", "not decidable"),
        ("letter-unlisted", "G1", "not decidable"),
        ("letter-listed-before", "G7", "not decidable"),
        ("letter-gone", "G7", "broken"),
        ("letter-listed-elsewhere", "G7", "not decidable"),
        ("listed-then-redriven", "G7", "holds"),
        ("acked-and-listed", "G7", "broken"),
        ("purged-unlisted", "G1", "holds"),
        ("purge-failed", "groups", "broken"),
    ],
)
def test_a_story_is_judged_as_far_as_its_clocks_allow(
    seen: Seen, run: str, guarantee: str, verdict: str
) -> None:
    assert seen.verdicts[(run, guarantee)]["verdict"] == verdict


@pytest.mark.parametrize("clocks", ["constant", "drifting", "jumping"])
def test_no_wrong_clock_breaks_a_guarantee(seen: Seen, clocks: str) -> None:
    said = {run: row for (run, _), row in seen.verdicts.items() if run.startswith(f"{clocks}-")}
    assert len(said) == ON_MACHINES
    assert [row["text"] for row in seen.violations if row["run"] in said and row["verdict"] == "broken"] == []


def test_what_is_good_holds_by_clocks_that_are_years_apart(seen: Seen) -> None:
    """Where the lines connect the clocks of all clients; but for settings, which may be written faster one after the
    other than clocks can be told apart.
    """
    connected = {
        run
        for run, clocks in seen.clocks.items()
        if run.startswith("constant-") and all(row["placed"] for row in clocks if "client:" in row["writers"])
    }
    assert len(connected) > ON_MACHINES / 3
    said = Counter(
        row["verdict"]
        for (run, guarantee), row in seen.verdicts.items()
        if run in connected and guarantee != "settings"
    )
    assert set(said) == {"holds", "not checked"}
    assert said["holds"] > 4 * len(connected)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_by_wrong_clocks_as_well(seen: Seen, fault: str) -> None:
    """But for what is not decidable in any real run: settings, and copies where nodes did not stop."""
    verdict = seen.verdicts[(f"wrong-clocks-{fault}", FAULTS[fault][1])]["verdict"]
    assert verdict == ("not decidable" if fault in ("unwritten", "on-one-disk") else "broken")


def test_the_clocks_of_a_run_are_shown_with_what_is_wrong_with_them(seen: Seen) -> None:
    found = {row["clock"]: row for row in seen.clocks["apart"]}
    (reference,) = [clock for clock, row in found.items() if row["reference"]]
    ahead = {"m0": -5000.0, "m1": 0.0, "m2": 0.7, "m3": 3e7}
    for clock, row in found.items():
        apart = row["ahead"] - (ahead[clock] - ahead[reference])
        assert abs(apart) <= row["within"] + 1e-6, clock
        assert row["within"] < 0.01
        assert abs(row["day_ahead"] - row["ahead"]) < 0.01, "each time of day is as wrong as its clock"
        assert (row["findings"], row["placed"] > 0.5) == ("", True)
    assert {row["clock"] for row in seen.clocks["a-clock-broke"] if "jumped" in row["findings"]} == {"m2"}
    assert seen.verdicts[("a-clock-broke", "G2")]["verdict"] == "holds", (
        "the node that won it has a clock that is right"
    )
    (day,) = [row["findings"] for row in seen.clocks["a-day-turned"] if row["findings"]]
    assert day == "had its time of day turned by 3,599.8 s meanwhile, which changes no verdict"
    assert "near" not in seen.clocks, "one clock needs no comparison"
    assert {row["findings"] != "" for row in seen.clocks["no-nodes"] if not row["reference"]} == {True}


def test_a_producer_whose_clock_has_the_most_bounds_is_placed_and_is_no_reference(seen: Seen) -> None:
    found = {row["clock"]: row for row in seen.clocks["a-busy-producer"]}
    assert not found["m9"]["reference"]
    assert all(row["placed"] > 0.9 and row["within"] < 0.05 for row in found.values())


def test_a_wait_is_only_known_where_its_clocks_are(seen: Seen) -> None:
    """Nothing says how the producer's clock of the first run stands to the consumer's."""
    row = seen.latency["letter-listed-elsewhere"]
    assert (row["messages"], row["untimed"], row["p99"], row["max"]) == (1, 1, None, None)
    assert seen.latency["near"]["untimed"] == 0
    assert abs(seen.latency["near"]["max"] - 1) < 0.001
    placed = seen.latency["a-busy-producer"]
    assert placed["untimed"] == placed["messages"] - 1, "of the others nobody wrote of the publish"
    assert abs(placed["max"] - 1) < 0.1


def test_a_producer_is_placed_by_the_majority_that_had_what_it_published(seen: Seen) -> None:
    """It shares its machine with the node that has each batch first: the promise of one copy says nothing of it."""
    found = {row["clock"]: row for row in seen.clocks["beside-a-node"]}
    assert found["m0"]["placed"] > 0.9
    doubt = found["m0"]["within"] + found["m1"]["within"] + 1e-6
    assert abs(found["m0"]["ahead"] - found["m1"]["ahead"] + 5000.0) <= doubt
    assert not found["m0"]["findings"]
    assert (
        "is not to be placed"
        in {row["clock"]: row["findings"] for row in seen.clocks["a-node-without-history"]}["m0"]
    )


def test_a_history_without_deliveries_is_not_called_good(seen: Seen) -> None:
    assert {seen.verdicts[("nobody", name)]["verdict"] for name in GUARANTEES} == {"not checked"}


def test_what_is_missing_at_the_end_of_an_unfinished_run_is_not_decidable(seen: Seen) -> None:
    assert seen.verdicts[("near", "G1")]["verdict"] == "holds"
    row = seen.verdicts[("waiting", "G1")]
    assert row["checked"] == 0 or row["verdict"] == "not decidable"


def test_a_generation_that_a_node_lost_before_a_majority_had_it_asks_for_no_delivery(seen: Seen) -> None:
    assert seen.verdicts[("lost-rewind", "G1")]["verdict"] == "holds"


def test_a_delivery_from_a_producer_without_a_history_is_not_thin_air(seen: Seen) -> None:
    row = seen.verdicts[("no-producer", "G5")]
    assert (row["verdict"], row["broken"], row["undecidable"]) == ("not decidable", 0, 1)


def test_a_copy_that_is_in_no_history_is_missing_only_where_no_node_was_killed(seen: Seen) -> None:
    said = [seen.verdicts[(run, "G1")] for run in ("too-few-copies", "killed-node")]
    assert [(row["verdict"], row["broken"]) for row in said] == [("broken", 1), ("not decidable", 0)]


def test_settings_of_real_runs_hold_or_are_not_decidable(seen: Seen) -> None:
    """Not all that was asked for is told there, and a node may have been away: nothing is broken for sure."""
    said = {
        run: seen.verdicts[(run, "settings")] for run in ("settled", "stale-node", "told-by-nobody", "remade")
    }
    assert [(row["verdict"], row["broken"]) for row in said.values()] == [
        ("holds", 0), ("not decidable", 0), ("not decidable", 0), ("holds", 0),
    ]  # fmt: skip
    assert said["settled"]["checked"] == 3  # each setting, and that the nodes agree


def test_what_a_deleted_topic_had_is_not_lost(seen: Seen) -> None:
    assert not [row for row in seen.violations if row["run"] == "remade"]


def test_what_a_deleted_group_had_not_acked_is_not_lost(seen: Seen) -> None:
    lost = [row["run"] for row in seen.violations if row["guarantee"] == "G1"]
    assert "group-kept" in lost
    assert "group-deleted" not in lost


def test_settings_that_no_run_can_have_are_as_if_they_had_not_been_told(seen: Seen) -> None:
    assert not [row for row in seen.violations if row["run"] == "odd-settings"]
    assert seen.verdicts[("odd-settings", "G1")]["verdict"] == "holds"


def test_outputs_that_nobody_told_of_reading_are_not_missing(seen: Seen) -> None:
    assert seen.verdicts[("outputs-unread", "derived")]["verdict"] == "not checked"


def test_what_was_not_read_is_counted_and_its_run_holds_nothing(seen: Seen) -> None:
    reasons = seen.remainder["garbled"]
    assert reasons == {
        "not JSON": 1,
        "a kind that this version does not know: novel": 1,
        "a wrong type: at": 1,
        "a history of version 2; this reads 1": 1,
        "field owner is missing of a ack": 1,
    }
    assert {seen.verdicts[("garbled", name)]["verdict"] for name in GUARANTEES} == {"not decidable"}
    assert seen.verdicts[("garbled", "G2")]["undecidable"] == 4


def test_a_torn_last_line_and_a_missing_node_are_said_and_make_nothing_undecided(seen: Seen) -> None:
    assert seen.remainder["torn"] == {"a last line without its newline: the writer was killed": 1}
    assert seen.remainder["missing-node"] == {"a node without a history": 1}
    for run in ("torn", "missing-node"):
        assert seen.verdicts[(run, "G3")]["verdict"] == "holds"


@pytest.mark.soak
def test_the_command_writes_tables_a_summary_and_a_page_and_ends_with_1(tmp_path: Path) -> None:
    rows = FAULTS["flipped"][0](good(1))
    assert rows is not None
    (tmp_path / "h.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = tmp_path / "out 1"
    args = ["audit", "--history", str(tmp_path / "h.jsonl"), "--out", str(out), "--json"]
    done = subprocess.run([sys.executable, "-m", "spark", *args], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    summary = json.loads(done.stdout)
    assert summary == json.loads((out / "summary.json").read_text())
    assert [row["guarantee"] for row in summary["verdicts"]] == list(GUARANTEES)
    assert {row["guarantee"] for row in summary["verdicts"] if row["verdict"] == "broken"} == {"G5"}
    page = (out / "audit.html").read_text()
    assert "http://" not in page
    assert "https://" not in page
    assert summary["broken"][0]["id"] in page
    for table in (
        "verdicts",
        "violations",
        "remainder",
        "unread",
        "latency",
        "redeliveries",
        "faults",
        "divergence",
        "runs",
        "clocks",
    ):
        assert list((out / "tables" / table).glob("*.parquet"))


def test_exit_codes_tell_good_from_open() -> None:
    def summary(*verdicts: str, remainder: int = 0) -> dict[str, Any]:
        rows = [{"guarantee": f"G{i}", "verdict": verdict} for i, verdict in enumerate(verdicts)]
        return {"verdicts": rows, "remainder": [{"lossy": False}] + [{"lossy": True}] * remainder}

    cases = [
        (("holds", "not checked"), 0, 0, 0),
        (("holds", "not decidable"), 0, 0, 3),
        (("holds",), 1, 0, 3),
        (("not checked", "not checked"), 0, 0, 3),
        (("broken", "not decidable"), 1, 1, 1),
    ]
    for verdicts, remainder, loose, strict in cases:
        assert exit_code(summary(*verdicts, remainder=remainder), strict=False) == loose
        assert exit_code(summary(*verdicts, remainder=remainder), strict=True) == strict
    assert conclusion(summary("not checked", "holds")["verdicts"], 2) == (
        "not checked: G0; holds: G1; 2 lines or writers were not read, or are missing."
    )


def test_a_summary_shows_some_of_each_guarantee_and_counts_all(spark: SparkSession) -> None:
    many = SHOWN + 20
    found = [("r", "G1", "broken", "t", 0, "g", "o", i, f"t/0/o/{i}", float(i), "lost") for i in range(many)]
    found += [("r", "G3", "broken", "t", 0, "g", "o", 1, "t/0/o/1", 0.5, "again"),
              ("r", "G3", "not decidable", "t", 0, "g", "o", 2, "t/0/o/2", 0.5, "again?")]  # fmt: skip
    verdicts = [("r", "G1", "broken", many, many, 0), ("r", "G3", "broken", many, 1, 1),
                ("s", "G1", "not checked", 0, 0, 0)]  # fmt: skip
    rest = [(f"r{i}", "torn", "file", 2, False, True) for i in range(many)]
    rows = {
        "violations": (found, t.VIOLATIONS), "verdicts": (verdicts, t.VERDICTS), "remainder": (rest, t.REMAINDER),
        "latency": ([], t.LATENCY), "redeliveries": ([], t.REDELIVERIES), "faults": ([], t.FAULTS),
        "runs": ([("r", 9)], "run STRING, lines BIGINT"),
        "clocks": ([], audit_clocks.CLOCKS),
    }  # fmt: skip
    tables = {name: spark.createDataFrame(data, schema) for name, (data, schema) in rows.items()}
    summary = summarised(tables, ["h.jsonl"])
    assert [row["guarantee"] for row in summary["broken"]] == ["G1"] * SHOWN + ["G3"]
    assert [row["id"] for row in summary["undecided"]] == ["t/0/o/2"]
    assert summary["counts"] == {
        "broken": many + 1, "undecided": 1, "remainder": many, "latency": 0, "redeliveries": 0, "faults": 0,
        "clocks": 0,
    }  # fmt: skip
    first = summary["verdicts"][0]
    assert (first["guarantee"], first["runs"], first["runs_checked"], first["runs_broken"]) == ("G1", 2, 1, 1)
    assert summary["unread"] == 2 * many
    assert f"{2 * many} lines or writers were not read" in summary["conclusion"]


def test_evidence_shows_a_time_of_day_without_an_exponent(spark: SparkSession) -> None:
    times = spark.createDataFrame([(1795312345.12345,), (0.5,), (-2.0,), (None,)], "t DOUBLE")
    assert [text for (text,) in times.select(shown(F.col("t"))).collect()] == [
        "1795312345.1235 s", "0.5000 s", "-2.0000 s", None
    ]  # fmt: skip


def test_a_path_that_names_no_history_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not a history\n")
    for path in (tmp_path, tmp_path / "nothing.jsonl", tmp_path / "*.jsonl"):
        with pytest.raises(NotFound, match="no history here"):
            files(spark, [str(path)])


def test_a_file_is_read_by_its_very_name_and_none_is_passed_over(spark: SparkSession, tmp_path: Path) -> None:
    names = ["a 1%20.jsonl", "a[1].jsonl", "a1.jsonl", "{b,c}.jsonl"]
    for name in names:
        lines = [json.dumps(row) + "\n" for row in Story(name).publish().rows]
        (tmp_path / name).write_text("".join(lines) + lines[0][:-2])
    for paths in ([tmp_path], [tmp_path / name for name in names]):
        found = read(spark, [str(path) for path in paths])
        assert {tuple(row) for row in found.rows.groupBy("run").count().collect()} == {
            (name, 3) for name in names
        }
        assert {(row["run"], row["harmless"]) for row in found.unread.collect()} == {
            (name, True) for name in names
        }, "each ends with a line without its newline"
    for hidden in (".a.jsonl", "_a.jsonl"):
        (tmp_path / hidden).write_text("")
        with pytest.raises(UsageError, match=f"{hidden}: Spark passes over"):
            files(spark, [str(tmp_path)])
        (tmp_path / hidden).unlink()


@pytest.mark.soak
def test_a_blank_line_and_a_torn_gzip_cost_their_own_lines(spark: SparkSession, tmp_path: Path) -> None:
    lines = [json.dumps({**row, "run": "r", "detail": str(at * 7919 % 10007)}) + "\n"
             for at, row in enumerate(Story("r").publish().rows * 500)]  # fmt: skip
    packed = gzip.compress("".join(lines).encode())
    (tmp_path / "blank.jsonl").write_bytes(f"{lines[0]}\n  \n{lines[1]}\t\r\n\r\n".encode())
    blank = read(spark, [str(tmp_path / "blank.jsonl")])
    assert blank.rows.count() == 2
    assert [(row["reason"], row["harmless"]) for row in blank.unread.collect()] == [
        ("a blank line", True)
    ] * 4
    for cut in (len(packed) - 1, 40):
        path = tmp_path / f"torn-{cut}.jsonl.gz"
        path.write_bytes(packed[:cut])
        unpack = zlib.decompressobj(wbits=31)
        text = (unpack.decompress(packed[:cut]) + unpack.flush()).decode()
        found = read(spark, [str(path)])
        assert found.rows.count() == text.count("\n")
        (row,) = found.unread.collect()
        assert (row["reason"], row["harmless"]) == (
            "a last line without its newline: the writer was killed",
            True,
        )
        assert row["line"] == text.rpartition("\n")[2][:200]
    (tmp_path / "damaged.jsonl.gz").write_bytes(packed[:40] + bytes(20) + packed[60:])
    with pytest.raises(StorageError, match=r"damaged\.jsonl\.gz cannot be read"):
        read(spark, [str(tmp_path / "damaged.jsonl.gz")])


def test_a_number_beyond_all_clocks_is_not_read(spark: SparkSession) -> None:
    lines = [json.dumps(row) for row in Story("far").publish().rows]
    wild = [lines[1].replace('"within": 0.0', f'"within": {number}') for number in ("1e400", "-1e400")]
    frame = spark.createDataFrame([("f", line) for line in [*lines, *wild]], "file STRING, value STRING")
    found = parsed(spark, frame)
    assert found.rows.count() == len(lines)
    said = [(row["reason"], row["harmless"]) for row in found.unread.collect()]
    assert said == [("a number that is not finite", False)] * 2


def test_a_line_that_says_no_run_counts_against_the_run_of_its_file(
    spark: SparkSession, tmp_path: Path
) -> None:
    texts = {run: "".join(json.dumps(row) + "\n" for row in Story(run).publish().rows) for run in "abc"}
    (tmp_path / "one.jsonl").write_text(texts["a"] + "\0\0\0\n")
    (tmp_path / "two.jsonl").write_text(texts["b"] + texts["c"] + "\0\0\n")
    found = read(spark, [str(tmp_path)])
    assert {tuple(row) for row in found.unread.select("run", "line").collect()} == {
        ("a", "\0\0\0"),
        (None, "\0\0"),  # of one of two, or of both
    }


def test_a_real_file_that_is_given_twice_is_read_once(seen: Seen) -> None:
    assert seen.remainder[TWICE] == {"a file that was given twice, and is read once": 2}
    assert {seen.verdicts[(TWICE, name)]["verdict"] for name in ("G2", "G3", "G5")} == {"holds"}
    assert seen.verdicts[(TWICE, "G6")]["broken"] == 0


@pytest.mark.soak
def test_two_simulated_runs_of_one_name_hold_nothing(spark: SparkSession) -> None:
    rows = [
        {**row, "clock": "simulated"} if row["kind"] == "settings" else row
        for row in Story("r").publish().rows
    ]
    frame = spark.createDataFrame([("f", json.dumps(row)) for row in rows * 2], "file STRING, value STRING")
    found = parsed(spark, frame)
    of_doubled = t.doubled(found.rows)
    assert t.once(found.rows, of_doubled).count() == 2 * len(rows)
    (row,) = t.remainder(found.rows, found.unread, of_doubled).collect()
    assert (row["run"], row["detail"], row["count"], row["gap"], row["lossy"]) == (
        "r",
        "client:p",
        1,
        True,
        True,
    )
    assert "two runs have one name" in row["what"]


def test_every_kind_is_asked_about_or_left_out_on_purpose() -> None:
    """A kind that is added must be thought about here."""
    asked = {"publish", "store", "deliver", "ack", "reject", "dead_letter", "extend", "redrive", "list"}
    asked |= {"derive", "set_topic", "topic"}
    context = {
        "settings",
        "phase",
        "fault",
        "start",
        "stop",
        "crash",
        "purge",
        "set_group",
        "register",
        "truncated",
        "delete_topic",
        "delete_group",
        "fetch",
    }
    asked |= {"hold_won", "leave", "release"}
    told_by_clients_better = {"hold_lost", "expire"}
    assert asked | context | told_by_clients_better == set(KINDS)
