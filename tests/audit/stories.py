"""Small runs of real clients, written by hand, and the expected verdicts."""

from __future__ import annotations

import json
from typing import Any

from quorumq.history import Row

TWICE = "given-twice"


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
        self.seq = 0  # the number of the next message

    def add(self, who: str, kind: str, at: float, **fields: Any) -> Story:
        """A line; `at` is true time, and each writer's own clock is ahead by ``ahead`` of that writer."""
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
        """Handed over. If a node is named, it says that it won it, 2 ms there and back."""
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
        """A complete listing of the dead letters ended, 10 ms after it began."""
        where = {"topic": "t", "partition": 0, "group": "g", "spans": [], "state": "dead"}
        return self.add("client:p", "list", at, **where, complete=True, asked=at - 0.01)

    def die(self, at: float) -> Story:
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
        state = {"generation": 0, "from_ms": 0} if outcome == "ok" else {}
        return self.add("client:c", "set_group", at + 0.01, **where, outcome=outcome, **state)

    def ack(self, who: str, at: float, time: int) -> Story:
        return self.call(who, "ack", at, {**held(time), "op": time}, "acked")

    def reject(self, who: str, at: float, time: int, delay: float) -> Story:
        return self.call(who, "reject", at, {**held(time), "op": time}, delay=delay)

    def layout(self, at: float, number: int, *nodes: str) -> Story:
        """Node a has a layout of the partition durably."""
        return self.add("node:a", "layout", at, topic="t", partition=0, layout=number, nodes=list(nodes))

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

    def again(self, who: str, at: float) -> Story:
        """The writer goes on: so all that it wrote until then is in its file."""
        settings = {"boot": self.boot[who]} if who in self.boot else {}
        return self.add(who, "settings", at, history=1, clock="mono", settings=settings)

    def derive(self, at: float) -> Story:
        into = {"topic": "out", "partition": 0, "spans": [["~derived.1.1.1", 0, 1]]}
        where = {"topic": "t", "partition": 0, "group": "g", "spans": [["a.1.1.1", 0, 1]]}
        return self.add("client:c", "derive", at, **where, crcs="01020304", into=into)


def from_latest(run: str, published: float, *, outcome: str = "ok", listed: str = "") -> Story:
    """A group that is to begin with messages published from now on, at 1 s, by a request with this outcome; another one
    finds it at 3 s. A message of before or after that no client gets, and that a node lists in this state.
    """
    made = Story(run, boot=dict.fromkeys(("client:p", "client:c", "node:a"), "m1"))
    made.set_group(1, "latest", outcome).set_group(3, "earliest").publish(published)
    if outcome != "fail":
        made.register("node:a", 1.005, 0, latest="begun")
    if listed:
        made.listed("node:a", 9, listed)
    return made.drained(10)


def started(run: str, after: float) -> Story:
    """A group that begins some seconds after a message was published, which a node lists as skipped."""
    made = Story(run, boot=dict.fromkeys(("client:p", "node:a"), "m1")).publish(1)
    (at,) = (row["published_ms"] for row in made.rows if "published_ms" in row)
    made.add("node:a", "register", 2, topic="t", group="g", generation=0, from_ms=at + int(1000 * after))
    return made.listed("node:a", 9, "skipped").drained(10)


def created(run: str) -> Story:
    """A topic with a setting that was asked for and one that was left to the node, changed once."""
    made = Story(run, boot=dict.fromkeys(("client:p", "client:c", "node:a", "node:b"), "m1"))
    made.set_topic(0, settings={"max_deliveries": 7}, defaults={"ttl_s": 0.0})
    for node in ("node:a", "node:b"):
        made.has(node, 0.005, max_deliveries=7, ttl_s=0.0)
    return made.set_topic(1, settings={"max_deliveries": 9}).has("node:a", 1.005, max_deliveries=9, ttl_s=0.0)


def held(time: int) -> dict[str, Any]:
    """The fields of a delivery: of another message if the time is beyond all others."""
    spans = [["a.1.1.1", max(0, time - 1000), max(0, time - 1000) + 1]]
    return {
        "topic": "t", "partition": 0, "group": "g", "generation": 0, "n": 0, "spans": spans,
        "owner": f"a.1.1#{time:x}@a",
    }  # fmt: skip


def deaths(run: str, *listing: str) -> Story:
    """A dead letter that these nodes list in the end; each of two lists another one."""
    nodes = ("node:a", "node:b")
    made = Story(run, boot=dict.fromkeys((*nodes, "client:p", "client:c"), "m1")).publish()
    made.die(2)
    for time, names in ((1, listing), (1001, nodes)):
        for node in names:
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
    """A confirmed message was handed to a client, as its node says, and no client wrote of it."""
    boot = dict.fromkeys(("node:a", "client:p"), "m1")
    return Story(run, boot=boot).publish().add("node:a", "hold_won", 1, **held(1)).drained(9)


def ttl_share(run: str, asked: float) -> Story:
    """A message that three nodes have for 2 s, and that was asked for then."""
    nodes = ("node:a", "node:b", "node:c")
    made = Story(run, boot=dict.fromkeys((*nodes, "client:p", "client:c"), "m1")).register("node:a", -1, 0)
    made.add("client:p", "settings", 0, history=1, clock="mono", settings={"rf": 3, "boot": "m1"})
    made.publish(ttl=2.0)
    for node in nodes:
        made.add(node, "store", 0.005, topic="t", partition=0, spans=[["a.1.1.1", 0, 1]])
    return made.deliver("client:c", asked + 0.1, asked + 5, 1).ack("client:c", asked + 1, 1)


def won_twice(run: str) -> Story:
    """A message that two nodes won, the one inside of the other's hold, and no client wrote of it."""
    boot = dict.fromkeys(("node:a", "node:b", "client:p"), "m1")
    made = Story(run, boot=boot).publish().add("node:a", "hold_won", 1, **held(1), until=5)
    return made.add("node:b", "hold_won", 3, **held(2), until=7)


def buried(run: str, *nodes: str) -> Story:
    """A message that these of three nodes have buried, and that a complete listing does not show in the end."""
    boot = dict.fromkeys(("node:a", "node:b", "client:p", "client:c"), "m1")
    made = Story(run, boot=boot).add(
        "client:p", "settings", 0, history=1, clock="mono", settings={"rf": 3, "boot": "m1"}
    )
    made.publish().deliver("client:c", 1, 2, 1)
    for node in nodes:
        made.add(node, "dead_letter", 3, **held(1), outcome="ok")
    return made.inventory(8).drained(9)


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
    """A producer shares the machine, whose clock is 5,000 s behind, with node a, from which no client fetches."""
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
    """Runs of two machines whose times of day are half a second apart at most, and the expected verdicts."""
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
    for op in range(2, 40):  # its clock has more bounds than any other, all on one side
        where = {"topic": "t", "partition": 0, "spans": [["a.1.1.2", op, op + 1]]}
        busy.call("client:p", "publish", op / 5, {**where, "op": op}, crcs="0a0b0c0d", published_ms=int(1e12))
        for node in b:
            busy.add(node, "store", op / 5 + 0.001, **where)
    beside = [beside_a_node("beside-a-node", "abc"), beside_a_node("a-node-without-history", "ab")]
    silent = on_one_node("no-node-wrote", "stop", "stop")
    silent.rows = [row for row in silent.rows if not row["who"].startswith("node:")]
    late_group = ttl_share("new-group", 2.2)
    for row in late_group.rows:
        row["at"] += 1.5 * (row["kind"] == "register")
    turned = apart("a-day-turned").publish().twice(5, 9, b)
    for row in turned.rows:
        row["wall_ms"] -= 3_600_000 * (row["who"] == "client:d" and row["at"] > 6)
    broke = apart("a-clock-broke")
    broke.ahead = {**far, "client:d": 40.7}
    for number, who in enumerate(("client:c", "client:d")):  # the second one shows that it is no node's clock
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
        *(Story(run, boot=two, ahead=far).publish().deliver("client:c", 1, 5, 1, "node:a")
          .add("node:a", "hold_won", 3, **held(2)).again("client:c", at)
          for run, at in (("won-inside", 8), ("won-inside-so-far", 1.5))),
        won_twice("won-twice").again("node:a", 8),
        won_twice("won-twice-so-far"),
        won_twice("won-twice-and-a-node-missing").add(
            "node:a", "settings", 4, history=1, clock="mono", settings={"nodes": ["a", "b", "c"], "boot": "m1"}),
        Story("won-in-turn", boot=one).publish().add("node:a", "hold_won", 1, **held(1), until=5)
        .add("node:b", "hold_won", 5.1, **held(2), until=9),
        won_twice("won-and-given-back").add("node:b", "release", 2, **{name: value for name, value in held(1).items()
                                            if name not in ("generation", "n")}, reason="rejected"),
        Story("won-again-redriven", boot=one).publish().add("node:a", "hold_won", 1, **held(1), until=5)
        .add("node:b", "hold_won", 3, **{**held(2), "generation": 1}, until=7),
        buried("buried-by-a-majority", "node:a", "node:b"),
        buried("buried-by-one-node", "node:a"),
        Story("retried-otherwise", boot=one).publish().call("client:p", "publish", 1, {
            "topic": "t", "partition": 0, "spans": [["a.1.1.1", 7, 8]], "op": 2}, retries=1, crcs="0a0b0c0d"),
        Story("retried", boot=one).publish().call("client:p", "publish", 1, {
            "topic": "t", "partition": 0, "spans": [["a.1.1.1", 0, 1]], "op": 2}, retries=1, crcs="0a0b0c0d"),
        deaths("listed-in-mid-run", "node:a", "node:b").call("client:p", "redrive", 12, {
            **{n: v for n, v in held(1).items() if n != "owner"}, "op": 7})
        .deliver("client:d", 13, 19, 2, n=1).call("client:d", "ack", 14, {**held(2), "n": 1, "op": 8}, "acked"),
        Story("won-after", boot=two, ahead=far).publish().deliver("client:c", 1, 5, 1, "node:a")
        .add("node:a", "hold_won", 6, **held(2)),
        Story("no-nodes", boot=two, ahead=far).publish().twice(2, 9),
        broke.publish().twice(5, 20.2, b),
        Story("early", boot=one).publish(delay=3.0).deliver("client:c", 1, 5, 1).ack("client:c", 2, 1),
        Story("due", boot=one).publish(delay=0.5).deliver("client:c", 1, 5, 1).ack("client:c", 2, 1),
        Story("given-back", boot=one).publish().deliver("client:c", 1, 5, 1).reject("client:c", 2, 1, 3.0)
        .deliver("client:d", 4, 9, 2).ack("client:d", 5, 2),
        Story("came-back", boot=one).publish().deliver("client:c", 1, 5, 1).reject("client:c", 2, 1, 3.0)
        .deliver("client:d", 5, 9, 2).ack("client:d", 6, 2),
        deaths("listed-by-all", "node:a", "node:b"),
        deaths("listed-by-one", "node:a"),
        Story("purged", boot=one).publish().register("node:a", 0, 0).purge(0.5, 0)
        .deliver("client:c", 1, 5, 1).ack("client:c", 2, 1),
        Story("neighbour-purged", boot=one).publish().register("node:a", 0, 0).purge(0.5, 1)
        .deliver("client:c", 1, 5, 1).ack("client:c", 2, 1),
        Story("near", boot=one).publish().twice(5, 4.9).again("client:c", 6),
        Story("near-so-far", boot=one).publish().twice(5, 4.9),
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
        ttl_share("outlived", 2.2),
        ttl_share("in-time", 1.9),
        ttl_share("restarted", 2.2).add("node:b", "start", 1, incarnation=2),
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
        Story("death-unlisted", boot=one).publish().die(2).drained(9),
        Story("death-listed-before", boot=one).publish().inventory(1.9).die(2).drained(9),
        Story("death-delivered", boot=one).publish().die(2).deliver("client:d", 4, 8, 2).drained(9),
        Story("death-gone", boot=one).publish().die(2).inventory(8).drained(9),
        Story("death-listed-elsewhere", boot={**one, "client:p": "m7"}).publish().die(2).inventory(8).drained(9),
        Story("listed-then-redriven", boot=one).publish().die(2).listed("node:a", 3, "dead")
        .call("client:p", "redrive", 4, {**{n: v for n, v in held(1).items() if n != "owner"}, "op": 7})
        .deliver("client:d", 5, 9, 2, n=1).call("client:d", "ack", 6, {**held(2), "n": 1, "op": 8}, "acked")
        .inventory(8).drained(9),
        deaths("acked-and-listed", "node:a", "node:b").ack("client:c", 3, 1),
        Story("purged-unlisted", boot=one).publish().register("node:a", 0, 0).purge(0.5, 0).drained(9),
        from_latest("after-all", 4, outcome="unknown", listed="skipped"),
        from_latest("latest-refused", 0.5, outcome="fail", listed="skipped"),
        from_latest("rewound-to-latest", 4, listed="skipped").set_group(5, "latest", rewind=True),
        from_latest("rewound-before", 4, listed="skipped").set_group(3.5, "latest", rewind=True),
        from_latest("rewind-unknown", 4, listed="skipped").set_group(3.5, "latest", "unknown", rewind=True),
        started("before-its-start", 0.002), started("at-its-start", 0.0),
        Story("in-a-deletion", boot=one).publish().delete_group(0.5, generation=1)
        .deliver("client:c", 1, 5, 1, generation=1),
        Story("purge-failed", boot=one).publish().purge(0.5, 0, "fail").listed("node:a", 9, "skipped").drained(10),
        Story("outputs-unread").publish().deliver("client:c", 1, 5, 1).derive(1.5).ack("client:c", 2, 1).drained(10),
        odd("odd-settings").publish().deliver("client:c", 1, 5, 1).deliver("client:c", 7, 12, 2)
        .ack("client:c", 8, 2).drained(10),
        Story("without-slot", boot=one).publish().layout(0.5, 2, "b", "c", "d").deliver("client:c", 1, 5, 1)
        .ack("client:c", 2, 1),
        Story("slot-given-away-meanwhile", boot=one).publish().layout(0.95, 2, "b", "c", "d")
        .deliver("client:c", 1, 5, 1).ack("client:c", 2, 1),
        Story("slot-given-back", boot=one).publish().layout(0.5, 2, "b", "c", "d").layout(0.6, 3, "a", "b", "c")
        .deliver("client:c", 1, 5, 1).ack("client:c", 2, 1),
        Story("slot-by-other-clocks", boot=two, ahead=far).publish().layout(0.5, 2, "b", "c", "d")
        .deliver("client:c", 1, 5, 1).ack("client:c", 2, 1),
        deaths("death-moved", "node:b").layout(0.6, 2, "b", "c", "d"),
        Story("garbled", boot=one).publish().deliver("client:c", 1, 5, 1).ack("client:c", 2, 1),
    ]  # fmt: skip


def text_of(story: Story) -> str:
    """Its file; of two stories with lines that are none."""
    text = "".join(json.dumps(row) + "\n" for row in story.rows)
    if story.run == "torn":
        text += '{"run":"torn","who":"client:c","at":3,"wall_'
    if story.run == "garbled":
        text += '{"run":"garbled", what\n' + json.dumps({**story.rows[-1], "kind": "novel"}) + "\n"
        text += json.dumps({**story.rows[-1], "at": "soon"}) + "\n"
        text += json.dumps({**story.rows[-1], "kind": "settings", "history": 2, "settings": {}}) + "\n"
        text += json.dumps({name: value for name, value in story.rows[-1].items() if name != "owner"}) + "\n"
    return text
