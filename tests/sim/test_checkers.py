"""Each checker accepts a good history and names the fault of a bad one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from quorumq.core.values.types import Incarnation, Owner, Stamp
from quorumq.history import Row, check_row, owner_text, token_text
from sim.checkers import Violation, check_history
from sim.checkers.turns import EachInTurn
from sim.checkers.waits import NoLongWaits

PRODUCER_ID = "a.1.5eed.1"
OUTPUT = "~derived.1.0dd.1"


def owner(ballot: int, node: str = "a") -> str:
    return owner_text(Owner(node, Incarnation(1, 7), Stamp(ballot, node)))


class Story:
    """Writes lines for one partition and one group; ``at`` goes on by itself."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.at = 0.0

    def add(self, who: str, kind: str, at: float | None = None, **fields: object) -> Story:
        self.at = self.at + 0.1 if at is None else at
        row: Row = {
            "run": "r",
            "who": who,
            "at": self.at,
            "wall_ms": 0,
            "within": 0.0,
            "kind": kind,
            **fields,
        }
        assert check_row(row) == ""
        self.rows.append(row)
        return self

    def ask(
        self, who: str, kind: str, outcome: str, base: dict[str, object],
        asked: dict[str, object] | None = None, answer: dict[str, object] | None = None,
        times: tuple[float | None, float | None] = (None, None),
    ) -> Story:  # fmt: skip
        """A request and its outcome: the lines have ``base`` both, and ``asked`` or ``answer``."""
        self.add(who, kind, times[0], outcome="invoke", **(asked or {}), **base)
        return self.add(who, kind, times[1], outcome=outcome, **(answer or {}), **base)

    def publish(self, outcome: str = "ok", start: int = 0, stop: int = 1, crc: str = "0000000a") -> Story:
        base = {"topic": "t", "partition": 0, "spans": [[PRODUCER_ID, start, stop]], "op": 1}
        return self.ask(
            "client:p", "publish", outcome, base, {"crcs": crc * (stop - start), "published_ms": 10}
        )

    def of(
        self, ballot: int, start: int, stop: int, n: int, group: str = "g", generation: int = 0
    ) -> dict[str, object]:
        return {
            "topic": "t", "partition": 0, "group": group, "generation": generation, "n": n,
            "spans": [[PRODUCER_ID, start, stop]], "owner": owner(ballot),
        }  # fmt: skip

    def deliver(
        self, ballot: int, *, start: int = 0, stop: int = 1, n: int = 0, hold: float = 1.0, ago: float = 0.05,
        crc: str = "0000000a", at: float | None = None, attempt: int = 1, group: str = "g", generation: int = 0,
    ) -> Story:  # fmt: skip
        at = self.at + 0.1 if at is None else at
        return self.add(
            "client:c", "deliver", at, token=token_text(Stamp(ballot, "a")), attempt=attempt, until=at + hold,
            asked=at - ago, crcs=crc * (stop - start), **self.of(ballot, start, stop, n, group, generation),
        )  # fmt: skip

    def settle(
        self, kind: str, ballot: int, outcome: str, n: int = 0, group: str = "g", generation: int = 0,
        **more: object,
    ) -> Story:  # fmt: skip
        return self.ask(
            "client:c", kind, outcome, {"op": 2, **self.of(ballot, 0, 1, n, group, generation)}, {}, more
        )

    def redrive(self, n: int, outcome: str = "ok") -> Story:
        base = {"op": 3, **self.of(0, 0, 1, n)}
        del base["owner"]
        return self.ask("client:op", "redrive", outcome, base)

    def rewind(self, generation: int, from_ms: int = 0) -> Story:
        base = {"topic": "t", "group": "g", "op": 4, "rewind": True}
        self.add("client:op", "set_group", outcome="invoke", start="time", from_ms=from_ms, **base)
        for node in "abc":
            self.add(f"node:{node}", "register", topic="t", group="g", generation=generation, from_ms=from_ms)
        return self.add(
            "client:op", "set_group", outcome="ok", generation=generation, from_ms=from_ms, **base
        )

    def unmake(self, generation: int) -> Story:
        """The group is deleted."""
        base = {"topic": "t", "group": "g", "op": 6}
        self.add("client:op", "delete_group", outcome="invoke", **base)
        for node in "abc":
            register = {"generation": generation, "from_ms": 0, "buried": generation, "made": 0}
            self.add(f"node:{node}", "register", topic="t", group="g", **register)
        return self.add("client:op", "delete_group", outcome="ok", generation=generation, **base)

    def purge(self, group: str = "g", named: int | None = None) -> Story:
        """All of a group, or one message of it."""
        spans = {} if named is None else {"spans": [[PRODUCER_ID, named, named + 1]]}
        base = {"topic": "t", "partition": 0, "group": group, "op": 5, **spans}
        return self.ask("client:op", "purge", "ok", base, {}, {"messages": 1})

    def settled(self, state: str) -> Story:
        """A replica lists the message as skipped or purged."""
        return self.add(
            "node:a", "list", topic="t", partition=0, group="g", state=state, n=0, generation=0,
            spans=[[PRODUCER_ID, 0, 1]],
        )  # fmt: skip

    def dead(self, n: int = 0, nodes: str = "abc") -> Story:
        for node in nodes:
            self.add(
                f"node:{node}", "list", topic="t", partition=0, group="g", state="dead", n=n,
                spans=[[PRODUCER_ID, 0, 1]], complete=True,
            )  # fmt: skip
        return self

    def derive(
        self, start: int = 0, stop: int = 1, crc: str = "0000000b", producer_id: str = OUTPUT, index: int = 0
    ) -> Story:
        into = {"topic": "u", "partition": 0, "spans": [[producer_id, start, stop]], "index": index}
        return self.add(
            "client:c", "derive", topic="t", partition=0, group="g", spans=[[PRODUCER_ID, start, stop]],
            crcs=crc * (stop - start), into=into,
        )  # fmt: skip

    def output(self, ballot: int = 9, crc: str = "0000000b", producer_id: str = OUTPUT) -> Story:
        """The output of the first message is published, delivered and acked."""
        base = {"topic": "u", "partition": 0, "spans": [[producer_id, 0, 1]]}
        self.ask("client:c", "publish", "ok", {**base, "op": 8}, {"crcs": crc, "published_ms": 10})
        got = {**base, "group": "o", "generation": 0, "n": 0, "owner": owner(ballot)}
        self.add(
            "client:o", "deliver", token=token_text(Stamp(ballot, "a")), attempt=1, until=self.at + 1.0,
            asked=self.at, crcs=crc, **got,
        )  # fmt: skip
        return self.ask("client:o", "ack", "acked", {**got, "op": 9})

    def set_topic(self, outcome: str, op: int, sent: float, done: float, **settings: object) -> Story:
        base: dict[str, object] = {"topic": "t", "op": op}
        return self.ask("client:op", "set_topic", outcome, base, {"settings": settings}, times=(sent, done))

    def delete(self, outcome: str = "ok") -> Story:
        return self.ask("client:op", "delete_topic", outcome, {"topic": "t", "op": 20})

    def set_labels(self, outcome: str, op: int, sent: float, done: float, **labels: object) -> Story:
        base: dict[str, object] = {"topic": "t", "op": op}
        return self.ask("client:l", "set_labels", outcome, base, {"settings": labels}, times=(sent, done))

    def labels(self, op: int, sent: float, done: float, **labels: object) -> Story:
        base: dict[str, object] = {"topic": "t", "op": op}
        return self.ask("client:l", "labels", "ok", base, {}, {"settings": labels}, (sent, done))

    def registers(self, **settings: object) -> Story:
        """Add the final registers of nodes a and b for the topic."""
        for node in "ab":
            self.add(f"node:{node}", "topic", topic="t", settings=settings)
        return self

    def healed(self, bound: float = 10.0) -> Story:
        return self.add("sim", "phase", phase="healed", seconds=bound)

    def drained(self) -> Story:
        return self.add("sim", "phase", phase="drained")

    def broken(self) -> list[str]:
        return [violation.promise for violation in check_history(self.rows)]


def died() -> Story:
    """Its one message is a dead letter."""
    return Story().publish().deliver(5).settle("dead_letter", 5, "ok")


def test_a_good_history_breaks_nothing() -> None:
    assert Story().publish().deliver(5).settle("ack", 5, "acked").healed().drained().broken() == []


def test_an_unknown_publish_may_come_out_or_not() -> None:
    assert Story().publish("unknown").drained().broken() == []
    assert Story().publish("unknown").deliver(5).settle("ack", 5, "acked").drained().broken() == []


def test_no_loss() -> None:
    other = Story().publish(stop=2, crc="0000000a").deliver(5).settle("ack", 5, "acked")
    assert other.drained().broken() == ["no loss"]
    assert Story().publish().deliver(5).drained().broken() == ["no loss"]
    assert Story().publish().deliver(5).broken() == []  # it says nothing before the end


def test_payload_without_retention_may_be_gone_before_a_later_generation() -> None:
    def story(retention: float) -> Story:
        story = Story().set_topic("ok", 1, 0.1, 0.2, retention_s=retention).publish()
        return story.deliver(5).settle("ack", 5, "acked").rewind(7).drained()

    assert story(60.0).broken() == ["no loss"]
    assert story(0.0).broken() == []


@pytest.mark.parametrize(("buried", "expected"), [(5, []), (4, ["no loss"])])
def test_a_group_that_ends_deleted_loses_nothing(buried: int, expected: list[str]) -> None:
    story = Story().publish().deliver(5, generation=4)
    story.add("node:a", "register", topic="t", group="g", generation=5, from_ms=0, buried=buried)
    assert story.drained().broken() == expected


@pytest.mark.parametrize(("nodes", "expected"), [("a", []), ("ab", ["no loss"])])
def test_a_group_that_no_majority_knows_need_not_be_there(nodes: str, expected: list[str]) -> None:
    """Seed 6019110: the node that began to make it crashed, and forgot it."""
    story = Story().add("sim", "settings", history=1, settings={"rf": 3})
    for node in nodes:
        story.add(f"node:{node}", "register", topic="t", group="g", generation=5, from_ms=0)
        story.add(f"node:{node}", "store", topic="t", partition=0, spans=[[PRODUCER_ID, 0, 1]])
    story.add("node:c", "store", topic="t", partition=0, spans=[[PRODUCER_ID, 0, 1]])
    assert story.publish().drained().broken() == expected
    assert story.deliver(5, generation=5).broken() == ["no loss"], "of the other nodes there is no history"


def test_a_confirmed_publish_is_durable_on_a_majority_by_then() -> None:
    def story(nodes: str) -> Story:
        story = Story().add("sim", "settings", history=1, settings={"rf": 3})
        for node in nodes:
            story.add(f"node:{node}", "store", topic="t", partition=0, spans=[[PRODUCER_ID, 0, 1]])
        return story.publish()

    assert story("ab").broken() == []
    assert story("aa").broken() == ["no loss"]
    assert story("").add("node:a", "store", topic="t", partition=0, spans=[[PRODUCER_ID, 0, 1]]).broken() == [
        "no loss"
    ]


@pytest.mark.parametrize(
    ("sets", "stored", "kept"),
    [
        (("abcde:abcde",), "ab", False),
        (("abcde:abcde",), "abe", True),
        (("a:abcde",), "ab", True),
        (("ade:abcde",), "bc", True),
        (("abd:abd",), "bc", False),
        (("abd:abd",), "bd", True),
        (("ad:abd",), "bc", True),
        (("abd:abd", "ae:aed"), "bc", False),
        (("abd:abd", "ae:aed", "a:aef"), "bd", False),
        (("abcde:abcde", "ab:abcdf"), "ade", True),
        (("abcde:abcde", "abc:abcdf"), "ade", False),
    ],
)
def test_a_confirmed_publish_is_durable_on_a_majority_of_a_set_that_may_have_counted_it(
    sets: tuple[str, ...], stored: str, kept: bool
) -> None:
    """The set was abc; ``sets`` are later ones, each with the nodes that had adopted it before the publish."""
    story = Story().add("sim", "settings", history=1, settings={"rf": 3})
    for number, (adopters, nodes) in enumerate((each.split(":") for each in sets), 2):
        for node in adopters:
            story.add(f"node:{node}", "layout", topic="t", partition=0, layout=number, nodes=[*nodes])
    for node in stored:
        story.add(f"node:{node}", "store", topic="t", partition=0, spans=[[PRODUCER_ID, 0, 1]])
    assert story.publish().broken() == ([] if kept else ["no loss"])


def test_no_thin_air() -> None:
    assert Story().deliver(5).broken() == ["no thin air"]
    assert Story().publish().deliver(5, crc="0000000b").broken() == ["no thin air"]
    assert Story().publish().deliver(5, crc="").broken() == ["no thin air"]


def test_exclusive_holds() -> None:
    assert Story().publish().deliver(5, at=1.0).deliver(6, at=1.9).broken() == ["exclusive holds"]
    assert Story().publish().deliver(5, at=1.0).deliver(6, at=2.0).broken() == []


def test_an_extend_lengthens_a_hold() -> None:
    story = Story().publish().deliver(5, at=1.0).settle("extend", 5, "ok", until=3.0)
    assert story.deliver(6, at=2.5).broken() == ["exclusive holds"]
    story = Story().publish().deliver(5, at=1.0).settle("extend", 5, "hold-lost")
    assert story.deliver(6, at=2.5).broken() == []


def test_an_extend_that_revives_a_hold_is_seen_though_the_other_delivery_came_first() -> None:
    story = Story().publish().deliver(5, at=1.0).deliver(6, at=2.5, hold=5.0)
    assert story.settle("extend", 5, "ok", until=4.0).broken() == ["exclusive holds"]


def test_an_extend_that_is_answered_after_its_own_ack_is_not_in_the_way_of_a_later_generation() -> None:
    def story(generation: int) -> Story:
        story = Story().publish().deliver(5, at=1.0).settle("ack", 5, "acked").rewind(7)
        return story.deliver(6, at=2.5, hold=5.0, generation=generation).settle("extend", 5, "ok", until=4.0)

    assert story(7).broken() == []
    assert "exclusive holds" in story(0).broken()


def test_a_reject_ends_a_hold_and_an_ack_does_not() -> None:
    story = Story().publish().deliver(5, at=1.0).settle("reject", 5, "unknown")
    assert story.deliver(6, at=1.5).broken() == []
    story = Story().publish().deliver(5, at=1.0).settle("ack", 5, "unknown")
    assert story.deliver(6, at=1.5).broken() == ["exclusive holds"]


def test_an_extend_does_not_bring_back_what_the_client_gave_up() -> None:
    story = (
        Story().publish().deliver(5, at=1.0).settle("reject", 5, "ok").settle("extend", 5, "ok", until=9.0)
    )
    assert story.deliver(6, at=2.5).broken() == []


@pytest.mark.parametrize("outcome", ["acked", "acked_after_expiry", "acked_unproven"])
def test_final_after_ack(outcome: str) -> None:
    story = Story().publish().deliver(5).settle("ack", 5, outcome)
    assert story.deliver(6, at=9.0).broken() == ["final after ack"]
    story = Story().publish().deliver(5).settle("ack", 5, outcome)
    early = story.deliver(6, at=9.0, ago=8.9).broken()  # the FETCH was sent before the verdict was heard
    assert early == (["final after ack"] if outcome == "acked" else [])


def test_one_delivery_at_most_hears_acked() -> None:
    story = Story().publish().deliver(5, at=1.0).deliver(6, at=3.0)
    assert story.settle("ack", 5, "acked").settle("ack", 5, "acked").broken() == []
    assert story.settle("ack", 6, "acked").broken() == ["final after ack"]


def test_tokens_rise() -> None:
    assert Story().publish().deliver(6, at=1.0).deliver(5, at=3.0).broken() == ["final after ack"]


def test_dead_letters_are_there_until_redriven_or_acked() -> None:
    assert died().drained().broken() == ["no loss", "dead letters conserved"]
    assert died().dead().drained().broken() == []
    assert died().dead(nodes="aab").drained().broken() == ["dead letters conserved"]
    assert died().deliver(6, at=9.0).broken() == ["dead letters conserved"]
    again = died().redrive(0).deliver(6, at=9.0, n=1)
    assert again.broken() == []
    assert again.settle("ack", 6, "acked", n=1).drained().broken() == []
    assert died().settle("ack", 5, "acked").drained().broken() == []


def test_nothing_is_redriven_unreachable_and_no_redrive_is_undone() -> None:
    assert Story().publish().deliver(5, n=1).broken() == ["dead letters conserved"]
    assert died().redrive(0).dead(n=0).drained().broken() == ["dead letters conserved"]


def test_an_acked_message_is_no_dead_letter() -> None:
    story = Story().publish().deliver(5).settle("ack", 5, "acked").dead()
    assert story.drained().broken() == ["dead letters conserved"] * 1


def test_live_after_healing() -> None:
    assert Story().publish().healed().add("sim", "phase", phase="end").broken() == ["live after healing"]
    assert Story().publish().healed(bound=2.0).deliver(5, at=9.0).broken() == ["live after healing"]


def timed(delay: float = 0.0, ttl: float = 0.0, wrong: str = "") -> Story:
    """Published at 0.0 s and stored by all; the nodes in ``wrong`` have another time of day since a start."""
    times = {name: seconds for name, seconds in (("delay", delay), ("ttl", ttl)) if seconds}
    base = {"topic": "t", "partition": 0, "spans": [[PRODUCER_ID, 0, 1]]}
    story = Story().add("sim", "settings", 0.0, history=1, settings={"rf": 3})
    story.add("client:p", "publish", 0.0, outcome="invoke", crcs="0000000a", op=1, **times, **base)
    for node in "abc":
        story.add(f"node:{node}", "store", 0.1, **base)
    for node in wrong:
        story.add("sim", "fault", 0.2, fault="wrong-clock", nodes=[node])
        story.add(f"node:{node}", "start", 0.3, incarnation=2)
    return story


@pytest.mark.parametrize(
    ("wrong", "expected"), [("", ["one wrong clock"]), ("b", ["one wrong clock"]), ("bc", [])]
)
def test_early_deliveries_are_judged_unless_many_clocks_were_wrong(wrong: str, expected: list[str]) -> None:
    assert timed(delay=5.0, wrong=wrong).deliver(5, at=4.8).broken() == expected
    assert timed(delay=5.0, wrong=wrong).deliver(5, at=5.0).broken() == []
    assert timed(delay=5.0, wrong=wrong).deliver(5, at=4.8, n=1).broken()[1:] == [], (
        "a redriven one is due at once"
    )


@pytest.mark.parametrize(("ttl", "expected"), [(30.0, []), (0.0, ["one wrong clock"])])
def test_a_ttl_that_a_creation_left_to_the_node_counts(ttl: float, expected: list[str]) -> None:
    """Seed 7005525."""
    story = timed()
    story.add("client:op", "set_topic", 0.1, topic="t", op=1, outcome="invoke", settings={"ttl_s": 0.0})
    settings = {"settings": {}, "defaults": {"ttl_s": ttl}}
    story.add("client:op", "set_topic", 0.2, topic="t", op=2, outcome="invoke", **settings)
    assert expired(story, 40.0).broken() == expected


def expired(story: Story, at: float) -> Story:
    return story.add("node:a", "dead_letter", at, outcome="ok", reason="expired", **story.of(5, 0, 1, 0))


@pytest.mark.parametrize(
    ("wrong", "expected"), [("", ["one wrong clock"]), ("b", ["one wrong clock"]), ("bc", [])]
)
def test_early_expiry_is_judged_unless_too_many_clocks_were_wrong(wrong: str, expected: list[str]) -> None:
    assert expired(timed(ttl=5.0, wrong=wrong), 4.8).broken() == expected
    assert expired(timed(ttl=5.0, wrong=wrong), 5.0).broken() == []


def test_a_delivery_after_expiry_is_judged_where_every_replica_knew() -> None:
    assert timed(ttl=5.0).deliver(5, at=5.5).broken() == ["one wrong clock"]
    assert timed(ttl=5.0).deliver(5, at=5.5, ago=2.0).broken() == [], "its FETCH was sent in time"
    assert timed(ttl=5.0, wrong="a").deliver(5, at=5.5).broken() == [], "a may have been asked, and one other"


def test_the_number_of_clocks_is_that_of_the_replicas() -> None:
    story = timed(ttl=5.0, wrong="b").add(
        "client:op", "set_topic", 0.4, topic="t", op=1, settings={"rf": 1}, outcome="invoke"
    )
    assert expired(story, 4.8).broken() == [], "the one clock may be the wrong one"


def test_expiry_after_a_rewind_is_judged_only_where_payload_is_kept() -> None:
    def story(kept: bool, *, retained: bool = True) -> Story:
        story = timed(ttl=5.0)
        story.rows[0]["settings"]["kept"] = kept
        if not retained:
            made = {"rf": 3, "retention_s": 0.0}
            story.add("client:op", "set_topic", 0.4, topic="t", op=1, settings=made, outcome="invoke")
        return story.rewind(7).deliver(5, at=5.5, generation=7)

    assert story(kept=True).broken() == ["one wrong clock"]
    assert story(kept=False).broken() == [], (
        "replicas that reclaimed it have no copy, and do not know its age"
    )
    assert story(kept=True, retained=False).broken() == [], "the topic may have been made without retention"


def test_nor_is_expiry_judged_for_a_group_that_was_made_later() -> None:
    def story(kept: bool) -> Story:
        story = timed(ttl=5.0)
        story.rows[0]["settings"]["kept"] = kept
        story.add("node:a", "register", 5.2, topic="t", group="g", generation=0, from_ms=0)
        return story.deliver(5, at=5.5)

    assert story(kept=True).broken() == ["one wrong clock"]
    assert story(kept=False).broken() == []


# ---------------------------------------------------------------------------------------- generations


def test_a_rewind_redelivers_only_the_messages_that_it_covers() -> None:
    def story(from_ms: int) -> Story:
        return Story().publish().deliver(5, at=1.0).settle("ack", 5, "acked").rewind(7, from_ms)

    assert story(50).drained().broken() == []
    assert story(0).drained().broken() == ["no loss"]
    again = story(0).deliver(6, at=9.0, generation=7)
    assert again.settle("ack", 6, "acked", generation=7).drained().broken() == []
    assert story(50).deliver(6, at=9.0, generation=7).broken() == ["groups as asked"], "before its start"


@pytest.mark.parametrize("producer_id", ["~derived.1.0002.3", "~named.0.0002.0", "~named.60.0002.0"])
def test_a_rewind_covers_derived_or_named_ids(producer_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Published at 10 ms, before the beginning at 50 ms; the window ends at 60,000 ms."""
    monkeypatch.setitem(globals(), "PRODUCER_ID", producer_id)

    def story(from_ms: int = 50) -> Story:
        return Story().publish().deliver(5, at=1.0).settle("ack", 5, "acked").rewind(7, from_ms)

    assert story().drained().broken() == ["no loss"]
    again = story().deliver(6, at=9.0, generation=7)
    assert again.settle("ack", 6, "acked", generation=7).drained().broken() == []
    over = producer_id.startswith("~named.60")
    assert story(60_001).drained().broken() == ([] if over else ["no loss"])


def test_no_fetch_sent_after_a_rewind_gets_an_older_generation() -> None:
    assert Story().publish().rewind(7).deliver(5, at=9.0).broken() == ["groups as asked", "creations stand"]
    assert Story().publish().rewind(7).deliver(5, at=9.0, ago=8.9).broken() == []


def test_a_hold_outlives_a_rewind_unless_its_own_client_acked() -> None:
    story = Story().publish().deliver(5, at=1.0, hold=9.0).rewind(7)
    assert story.deliver(6, at=3.0, generation=7).broken() == ["exclusive holds"]
    story = Story().publish().deliver(5, at=1.0, hold=9.0).settle("ack", 5, "unknown").rewind(7)
    assert story.deliver(6, at=3.0, generation=7).broken() == []


def test_a_reject_that_failed_ends_no_hold() -> None:
    for late in (False, True):
        story = Story().publish().deliver(5, at=1.0, hold=9.0)
        if late:  # the other delivery was before the answer
            story.settle("reject", 5, "fail")
            failed = story.rows.pop()
            story.deliver(6, at=3.0).rows.append({**failed, "at": 3.5})
        else:
            story.settle("reject", 5, "fail").deliver(6, at=3.0)
        assert story.broken() == ["exclusive holds"]
    story = Story().publish().deliver(5, at=1.0, hold=9.0).settle("reject", 5, "hold-lost")
    assert story.deliver(6, at=3.0).broken() == []


def test_a_new_generation_counts_attempts_from_the_start() -> None:
    story = Story().add("sim", "settings", history=1, settings={"rf": 3, "hold_min": 1.0}).publish()
    story.add("node:a", "store", topic="t", partition=0, spans=[[PRODUCER_ID, 0, 1]])
    broken = story.rewind(7).deliver(6, generation=7, attempt=3).broken()
    assert broken == ["no loss", "groups as asked"], "the publish is told of on one node only"


@pytest.mark.parametrize(
    ("rejects", "wrong"), [([False], False), ([True], True), ([True] * 4, False), ([True, False], False)]
)
def test_a_delivery_that_was_given_back_as_interrupted_counts_as_no_attempt(
    rejects: list[bool], wrong: bool
) -> None:
    story = Story().add("sim", "settings", history=1, settings={"rf": 3, "hold_min": 99.0}).publish()
    story.add("node:a", "store", topic="t", partition=0, spans=[[PRODUCER_ID, 0, 1]]).rewind(7)
    for interrupted in rejects:  # 3 replicas may count 4 as 12, and 10 are free
        more = {"interrupted": True} if interrupted else {}
        story.add("client:c", "reject", op=2, outcome="invoke", **story.of(5, 0, 1, 0, generation=7), **more)
    broken = story.deliver(6, generation=7, attempt=2).broken()
    assert ("groups as asked" in broken) == wrong


def test_no_fetch_sent_after_a_deletion_reads_the_group_until_it_is_made_again() -> None:
    deleted = Story().publish().unmake(7)
    assert deleted.deliver(5, at=9.0).broken() == ["groups as asked"], "in what was there before"
    assert Story().publish().unmake(7).deliver(5, at=9.0, generation=7).broken() == ["groups as asked"]
    again = Story().publish().unmake(7).rewind(8).deliver(5, at=9.0, generation=8)
    assert again.settle("ack", 5, "acked", generation=8).drained().broken() == []


def test_a_deletion_voids_dead_letters_whatever_the_next_generation_covers() -> None:
    def story() -> Story:
        return died().unmake(7).rewind(8, 50)

    assert story().drained().broken() == []
    assert story().dead().drained().broken() == ["dead letters conserved"]


def test_a_deletion_that_no_node_has_in_the_end_voids_nothing() -> None:
    """It was not confirmed, and the node that had it lost it in a crash, before its fsync."""

    def story() -> Story:
        base = died()
        base.add("node:c", "register", topic="t", group="g", generation=7, from_ms=0, buried=7, made=0)
        return base.add("node:c", "register", topic="t", group="g", generation=0, from_ms=0)

    assert story().dead().drained().broken() == []
    assert story().drained().broken() == ["no loss", "dead letters conserved"], "it is still to be there"


def test_purged_messages_and_no_others_are_not_delivered() -> None:
    def story() -> Story:
        return Story().publish().purge()

    assert story().settled("skipped").drained().broken() == []
    assert story().deliver(5, at=9.0).broken() == ["groups as asked"]
    assert story().rewind(7).deliver(5, at=9.0, generation=7).broken() == []
    again = Story().publish().rewind(7).purge().deliver(5, at=9.0, generation=7)
    assert again.broken() == ["groups as asked"]
    again.rows.insert(0, {**again.rows[0], "who": "sim", "kind": "settings", "settings": {"kept": False}})
    assert again.broken() == [], "a majority may have reclaimed it, and PURGE have listed what a majority has"
    assert Story().publish().settled("skipped").drained().broken() == ["groups as asked"]


@pytest.mark.parametrize(("starts", "may_be"), [([11], True), ([10], False), ([11, 10], False)])
def test_messages_before_the_start_of_a_group_are_skipped(starts: list[int], may_be: bool) -> None:
    """It was published at 10 ms. Only the newest start counts."""
    story = Story().publish()
    for generation, from_ms in enumerate(starts):
        story.add("node:a", "register", topic="t", group="g", generation=generation, from_ms=from_ms)
    assert ("groups as asked" in story.settled("skipped").drained().broken()) is not may_be


def test_a_rewind_need_not_bring_back_reclaimed_payload() -> None:
    """The last replica that had it may be lost, though it was delivered again from there, and is DEAD again."""

    def story(kept: bool, settle: Callable[[Story], Story]) -> list[str]:
        base = Story().add("sim", "settings", history=1, settings={"kept": kept})
        settle(base.publish().deliver(5).settle("reject", 5, "ok"))
        return base.rewind(7).deliver(7, at=base.at + 1.0, generation=7).drained().broken()

    def acked(base: Story) -> Story:
        return base.deliver(6, group="g!dead").settle("ack", 6, "acked", group="g!dead")

    assert story(False, acked) == [], "by who reads the dead letters"
    assert story(False, Story.purge) == []
    assert story(True, acked) == story(True, Story.purge) == ["no loss"]
    assert story(False, lambda base: base) == ["no loss"], "nobody settled it in any generation"


@pytest.mark.parametrize(
    ("asked", "strays"),
    [
        ([{"rf": 3, "auto_create_groups": False}], True),
        ([{"rf": 3, "auto_create_groups": True}], False),
        ([{"rf": 3, "auto_create_groups": False}, {"auto_create_groups": True}], False),
        ([{"auto_create_groups": False}], False),
    ],
    ids=["none are made", "they are", "they may be since", "who knows what it was before"],
)
def test_a_group_that_no_one_made_reads_only_where_set(asked: list[dict[str, object]], strays: bool) -> None:
    def story() -> Story:
        made = Story()
        for op, settings in enumerate(asked):
            made.add("client:op", "set_topic", topic="t", op=op, settings=settings, outcome="invoke")
        return made

    def found(base: Story) -> bool:
        return "groups asked for" in base.broken()

    register = {"topic": "t", "group": "g", "generation": 0, "from_ms": 0}
    assert found(story().publish().deliver(5)) == strays
    assert found(story().publish().deliver(5, group="g!dead")) == strays
    assert found(story().add("node:a", "register", **register)) == strays
    created = story().add(
        "client:op", "set_group", topic="t", group="g", op=9, rewind=False, outcome="invoke"
    )
    assert not found(created.add("node:a", "register", **register).publish().deliver(5))


def test_a_purge_by_name_is_of_what_it_names() -> None:
    assert Story().publish().purge(named=0).settled("skipped").drained().broken() == []
    assert Story().publish().purge(named=0).deliver(5, at=9.0).broken() == ["groups as asked"]
    beside = Story().publish().purge(named=1).settled("skipped").drained()
    assert beside.broken() == ["groups as asked"], "only a neighbour was named"
    assert Story().publish().purge(named=1).deliver(5, at=9.0).broken() == []

    assert died().purge("g!dead", 0).settled("purged").drained().broken() == []
    assert died().purge("g!dead", 0).dead().drained().broken() == ["dead letters conserved"]
    gone = ["dead letters conserved", "groups as asked"]
    assert died().purge("g!dead", 1).settled("purged").drained().broken() == gone
    assert died().purge("g!dead", 1).dead().drained().broken() == []
    assert died().purge("g!dead", 0).redrive(0, "unknown").drained().broken() == []
    assert "no loss" in died().purge("g!dead", 1).redrive(0, "unknown").drained().broken()


def test_dead_letters_end_by_purge_or_ack_and_are_void_where_a_rewind_covers_them() -> None:
    assert died().purge("g!dead").settled("purged").drained().broken() == []
    assert died().purge("g!dead").dead().drained().broken() == ["dead letters conserved"]
    read = died().deliver(9, at=5.0, group="g!dead")
    assert read.settle("ack", 9, "acked", group="g!dead").settled("purged").drained().broken() == []
    assert died().settled("purged").drained().broken() == ["dead letters conserved", "groups as asked"]
    again = died().rewind(7).deliver(8, at=9.0, generation=7)
    assert again.settle("ack", 8, "acked", generation=7).drained().broken() == []
    assert died().rewind(7, 50).drained().broken() == ["dead letters conserved"], "it stands"
    assert died().rewind(7, 50).dead().drained().broken() == []


def test_a_message_purged_during_an_unanswered_redrive_may_be_gone() -> None:
    assert died().purge("g!dead").redrive(0, "unknown").drained().broken() == []
    assert died().purge("g!dead").redrive(0).drained().broken() == ["no loss"]


def test_a_redriven_message_is_delivered() -> None:
    gone = ["dead letters conserved"]
    assert died().rewind(7, 50).redrive(0).drained().broken() == gone
    assert died().redrive(0).rewind(7, 50).drained().broken() == gone, "it stands"
    assert died().redrive(0, "unknown").rewind(7, 50).drained().broken() == gone, "it is one or the other"
    assert died().rewind(7, 50).redrive(0, "unknown").dead().drained().broken() == []
    later = died().redrive(0).rewind(7, 50).deliver(6, at=9.0, n=1)
    assert later.settle("ack", 6, "acked", n=1).drained().broken() == []


@pytest.mark.parametrize(
    ("began", "ended", "problems"),
    [(0.5, 5.0, []), (0.5, 1.5, []), (0.1, 0.2, ["dead letters conserved"]), (2.5, 5.0, [])],
)
def test_a_message_redriven_beside_a_rewind_to_latest_may_be_skipped(
    began: float, ended: float, problems: list[str]
) -> None:
    """A rewind to latest makes no generation: it skips messages open before its answer."""
    story = Story().publish().deliver(5, at=0.05).settle("dead_letter", 5, "ok")
    base = {"topic": "t", "group": "g", "rewind": True, "op": 9}
    story.add("client:o", "set_group", began, outcome="invoke", start="latest", from_ms=0, **base)
    story.add("client:o", "set_group", ended, outcome="ok", generation=0, from_ms=0, **base)
    story.at = 1.0
    story.redrive(0).settled("skipped").rows.sort(key=lambda row: row["at"])
    story.at = 9.0
    assert [it for it in story.drained().broken() if it == "dead letters conserved"] == problems


@pytest.mark.parametrize(("rewind", "problems"), [(True, []), (False, ["groups as asked"])])
def test_a_rewind_to_latest_of_unknown_outcome_may_skip_after_any_other_confirmation(
    rewind: bool, problems: list[str]
) -> None:
    """Seed 9900468: it is a PURGE under way; a creation of unknown outcome is over once the group is confirmed."""
    story = Story()
    base = {"topic": "t", "group": "g", "rewind": rewind, "op": 9}
    story.add("client:o", "set_group", 0.1, outcome="invoke", start="latest", from_ms=0, **base)
    story.add("client:o", "set_group", 0.2, outcome="unknown", **base)
    story.add("client:c", "fetch", 0.3, topic="t", group="g", op=3, outcome="invoke", start="earliest")
    story.add("client:c", "fetch", 0.4, topic="t", group="g", op=3, outcome="ok", messages=1)
    story.at = 1.0
    broken = story.publish().settled("skipped").drained().broken()
    assert [it for it in broken if it == "groups as asked"] == problems


@pytest.mark.parametrize(
    ("outcomes", "possible"),
    [
        ("ok ok", {2}),
        ("ok unknown", {1, 2}),
        ("unknown ok", {1, 2}),
        ("ok fail", {1}),
        ("unknown unknown", {1, 2}),
    ],
)
def test_a_setting_has_the_value_of_its_last_writer(outcomes: str, possible: set[int]) -> None:
    """One write after the other: of 1, then of 2."""
    first, second = outcomes.split()
    for value in (1, 2, 3):
        story = Story().set_topic(first, 6, 0.0, 0.2, max_deliveries=1)
        story.set_topic(second, 7, 0.3, 0.5, max_deliveries=2).drained().registers(max_deliveries=value)
        assert story.broken() == ([] if value in possible else ["settings as written"])


@pytest.mark.parametrize(("ttl_s", "partitions", "expected"), [(0.0, 1, 0), (5.0, 1, 1), (0.0, 2, 1)])
def test_defaults_of_a_creation_may_have_been_written(ttl_s: float, partitions: int, expected: int) -> None:
    story = Story().set_topic("ok", 6, 0.0, 0.2, max_deliveries=1)
    story.rows[-2]["defaults"] = {"ttl_s": 0.0, "partitions": 1}
    story.drained().registers(max_deliveries=1, ttl_s=ttl_s, partitions=partitions)
    assert story.broken() == ["settings as written"] * expected


def test_either_of_two_simultaneous_writes_may_be_the_last() -> None:
    for value in (1, 2):
        story = Story().set_topic("ok", 6, 0.0, 0.4, max_deliveries=1)
        story.set_topic("ok", 7, 0.3, 0.5, max_deliveries=2).drained().registers(max_deliveries=value)
        assert story.broken() == []


@pytest.mark.parametrize(("partitions", "expected"), [(1, 1), (2, 1), (3, 0), (4, 0), (5, 1)])
def test_partitions_only_become_more(partitions: int, expected: int) -> None:
    story = Story().set_topic("ok", 6, 0.0, 0.2, partitions=3).set_topic("ok", 7, 0.3, 0.5, partitions=1)
    story.set_topic("unknown", 8, 0.6, 0.7, partitions=4).drained().registers(partitions=partitions)
    assert story.broken() == ["settings as written"] * expected


def test_all_nodes_have_one_register_in_the_end() -> None:
    story = Story().set_topic("ok", 6, 0.0, 0.2, ttl_s=1.0).set_topic("unknown", 7, 0.3, 0.5, ttl_s=2.0)
    story.drained().registers(ttl_s=1.0).add("node:c", "topic", topic="t", settings={"ttl_s": 2.0})
    assert story.broken() == ["settings as written"]


def test_a_message_lives_at_least_as_long_as_the_shortest_ttl_of_its_topic() -> None:
    def story(ttl_s: float) -> Story:
        story = timed()
        story.rows[0]["settings"]["rf"] = 3
        return story.set_topic("unknown", 6, 0.2, 0.3, ttl_s=ttl_s)

    assert expired(story(5.0), 4.5).broken() == ["one wrong clock"]
    assert expired(story(5.0), 5.1).broken() == []
    assert expired(story(0.0), 5.1).broken() == ["one wrong clock"], "it has no TTL at all"
    assert expired(timed(ttl=5.0).set_topic("ok", 6, 0.2, 0.3, ttl_s=1.0), 4.8).broken() == [
        "one wrong clock"
    ]
    assert expired(timed(), 0.5).broken() == [], "what the topic's TTL was, this history does not say"


def test_outputs_of_what_was_acked_are_there() -> None:
    def story() -> Story:
        return Story().publish().deliver(5).derive()

    assert story().output().settle("ack", 5, "acked").drained().broken() == []
    assert story().settle("ack", 5, "acked").drained().broken() == ["derived once"]
    assert story().settle("ack", 5, "acked").broken() == [], "it says nothing before the end"
    assert story().deliver(6, at=5.0).settle("ack", 6, "unknown").drained().broken() == []
    in_part = story().derive(index=1, producer_id="~derived.1.0dd.2").output()
    assert in_part.settle("ack", 5, "acked").drained().broken() == ["derived once"], (
        "the second output is missing"
    )


def test_an_output_has_one_id_and_the_same_bytes_whoever_derives_it() -> None:
    def story() -> Story:
        return Story().publish().deliver(5).derive().output()

    assert story().deliver(6, at=5.0).derive().broken() == []
    assert story().deliver(6, at=5.0).derive(crc="0000000c").broken() == ["derived once"] * 2
    assert story().deliver(6, at=5.0).derive(producer_id="~derived.1.0dd.2").broken() == ["derived once"]
    two = Story().publish(stop=2).deliver(5, stop=2).derive().derive()
    two.rows[-1]["spans"] = [[PRODUCER_ID, 1, 2]]
    two.rows[-1]["crcs"] = "0000000c"
    assert two.broken() == ["derived once"], "two inputs have one output"


def test_no_output_comes_from_thin_air() -> None:
    assert Story().publish().deliver(5).derive().output(crc="0000000c").broken() == ["derived once"]
    other = Story().publish().deliver(5).derive().output(producer_id="~derived.1.0dd.2")
    assert other.broken() == ["derived once"]


def test_topics_are_judged_apart() -> None:
    """A group that reads one topic owes nothing to messages of another."""
    story = Story().publish().deliver(5).settle("ack", 5, "acked").derive().output().drained()
    assert story.broken() == []
    for row in story.rows:
        if row.get("topic") == "u":
            row["topic"] = "t"
    assert "no loss" in story.broken()


def test_a_message_acked_or_purged_by_all_groups_may_be_confirmed_without_a_store() -> None:
    def story() -> Story:
        story = Story().add("client:p", "settings", history=1, settings={"rf": 3}).publish("unknown")
        return story.add("node:a", "store", topic="t", partition=0, spans=[[PRODUCER_ID, 0, 1]]).deliver(5)

    assert story().settle("ack", 5, "acked").publish().broken() == []
    assert story().purge("g!dead").publish().broken() == []
    before = Story().add("client:p", "settings", history=1, settings={"rf": 3}).purge()
    assert "no loss" in before.publish("unknown").deliver(5).publish().broken(), "it was purged before"
    assert story().publish().broken() == ["no loss"]


def test_a_redriven_message_may_die_again() -> None:
    assert died().redrive(0).drained().broken() != []
    again = died().redrive(0).deliver(6, n=1, group="g!dead").settle("ack", 6, "acked", n=1, group="g!dead")
    assert "dead letters conserved" not in again.drained().broken()


# ---------------------------------------------------------------------- deleted for good


@pytest.mark.parametrize(
    ("outcome", "expected"), [("ok", []), ("unknown", []), ("invoke", []), ("fail", ["no loss"])]
)
def test_messages_of_a_topic_that_may_be_deleted_need_not_exist(outcome: str, expected: list[str]) -> None:
    story = Story().publish(stop=2).deliver(1).settle("ack", 1, "acked")
    assert story.delete(outcome).drained().broken() == expected


def test_nothing_of_a_deleted_topic_is_delivered_or_settled() -> None:
    assert Story().publish().delete().deliver(1).broken() == ["deleted for good"]
    assert Story().publish().delete().deliver(1, ago=0.3).broken() == [], "that FETCH was sent before"
    assert Story().publish().delete("unknown").deliver(1).broken() == []
    assert Story().delete().publish().broken() == ["deleted for good"]
    for kind, outcome in (("ack", "acked"), ("ack", "acked_unproven"), ("reject", "ok"), ("extend", "ok")):
        until = {"until": 9.0} if kind == "extend" else {}
        story = Story().publish().deliver(1).delete().settle(kind, 1, outcome, **until)
        assert story.broken() == ["deleted for good"], kind
    assert Story().publish().deliver(1).delete().settle("ack", 1, "fail").broken() == []


def test_in_the_end_no_node_has_a_deleted_topic() -> None:
    assert Story().publish().delete().registers(ttl_s=1.0).drained().broken() == []
    story = Story().publish().delete().drained().add("node:c", "topic", topic="t", settings={})
    assert story.broken() == ["deleted for good"]


def test_a_topic_created_again_is_another_topic() -> None:
    story = Story().publish(stop=2).deliver(1).settle("ack", 1, "acked")
    again = [{**row, "topic": "t#1"} for row in story.rows]
    story.delete().drained()
    assert story.broken() == []
    story.rows[:0] = again
    assert story.broken() == ["no loss"], "there is a message that was never delivered"


# ---------------------------------------------------------------------- limited groups


def limited(
    *limits: tuple[float, str], count: int = 30, seconds: float = 1.0, inside: float | None = None
) -> list[str]:
    """Return the broken promises of three nodes with limits and their outcomes, and then deliveries.

    Args:
        inside: messages a second of a limit that was asked for and set while the first one was under way.
    """
    story = Story().publish(stop=count)
    for node in "abc":
        story.add(f"node:{node}", "start", incarnation=1)
    for op, (per_second, outcome) in enumerate(limits):
        base = {"topic": "t", "group": "g", "op": op, "per_second": per_second, "burst": 1}
        story.add("client:op", "limit_group", outcome="invoke", **base)
        if inside is not None and not op:
            for each in ("invoke", "ok"):
                story.at += 0.01
                story.add("client:op2", "limit_group", outcome=each, **{**base, "per_second": inside})
        story.add("client:op", "limit_group", story.at + 0.01, outcome=outcome, **base)
        story.at += 0.01
    story.at += 1.0
    for at in range(count):
        story.deliver(at + 1, start=at, stop=at + 1, at=story.at + seconds / count, ago=0.001)
    return [violation.promise for violation in check_history(story.rows)]


def test_a_limited_group_gets_no_more_than_all_tokens_of_its_nodes() -> None:
    assert limited((2.0, "ok")) == ["limited groups"]
    assert limited((2.0, "ok"), seconds=6.0) == []
    assert limited((20.0, "ok")) == []
    assert limited((2.0, "unknown")) == limited((2.0, "fail")) == []
    assert limited((2.0, "ok"), (0.0, "unknown")) == [], "the limit may have ended"
    assert limited((2.0, "unknown"), (2.0, "ok")) == [], "the first one may come later"
    assert limited((2.0, "ok"), (9.0, "fail"), (2.0, "ok")) == ["limited groups"]
    assert limited((2.0, "ok"), inside=0.0) == [], "the second one may have come about last"
    assert limited((2.0, "ok"), (2.0, "ok"), inside=0.0) == ["limited groups"]


# ---------------------------------------------------------------------- creations stand


class Making(Story):
    """A story with requests that may make, rewind or delete group g."""

    def __init__(self) -> None:
        super().__init__()
        self.ops = 100

    def call(
        self, kind: str, outcome: str, *, lasts: float = 0.05, at: float | None = None, **fields: object
    ) -> Making:
        """A request: its invoke, and its outcome ``lasts`` seconds later; none if ``outcome`` is ""."""
        self.ops += 1
        answer = {name: fields.pop(name) for name in ("messages", "generation") if name in fields}
        if kind != "fetch" and outcome == "ok":
            answer.setdefault("generation", 0)
        asked = {name: fields.pop(name) for name in ("start", "from_ms") if name in fields}
        base = {"topic": "t", "group": "g", "op": self.ops, **fields}
        self.add("client:op", kind, at, outcome="invoke", **asked, **base)
        if outcome:
            self.add("client:op", kind, self.at + lasts, outcome=outcome, **answer, **base)
        return self

    def made(self, start: str = "earliest", outcome: str = "ok", **fields: object) -> Making:
        return self.call("set_group", outcome, start=start, rewind=False, **fields)  # type: ignore[arg-type]

    def fetched(self, start: str = "latest", outcome: str = "ok", got: int = 1, **fields: object) -> Making:
        answer = {"messages": got} if outcome == "ok" else {}
        return self.call("fetch", outcome, start=start, **answer, **fields)  # type: ignore[arg-type]

    def later(self, seconds: float = 0.2) -> Making:
        self.at += seconds
        return self

    def got(self, ballot: int, seq: int, generation: int = 0, **more: object) -> Making:
        return self.deliver(  # type: ignore[return-value]
            ballot,
            start=seq,
            stop=seq + 1,
            generation=generation,
            at=self.at + 2.0,
            **more,  # type: ignore[arg-type]
        )

    def send(self, seq: int, outcome: str = "ok") -> Making:
        base = {"topic": "t", "partition": 0, "spans": [[PRODUCER_ID, seq, seq + 1]], "op": 500 + seq}
        more: dict[str, object] = {"crcs": "0000000a", "published_ms": 10}
        return self.ask("client:p", "publish", outcome, base, more)  # type: ignore[return-value]

    def ack(self, ballot: int, seq: int, outcome: str = "acked", generation: int = 0) -> Making:
        base = {"op": 900 + ballot, **self.of(ballot, seq, seq + 1, 0, "g", generation)}
        return self.ask("client:c", "ack", outcome, base)  # type: ignore[return-value]

    def stands(self) -> bool:
        """Return True if the checker of creations is content."""
        return "creations stand" not in self.broken()


def test_messages_published_after_a_creation_are_delivered() -> None:
    for start in ("earliest", "latest"):
        assert Making().made(start).send(0).got(5, 0).ack(5, 0).drained().stands()
        assert not Making().made(start).send(0).drained().stands()
        assert Making().made(start, "unknown").send(0).drained().stands(), "it may not be there yet"
        assert Making().made(start, "fail").send(0).drained().stands()
    assert Making().made("time", from_ms=20).send(0).drained().stands(), "it was published before that time"
    assert not Making().made("time", from_ms=10).send(0).drained().stands()


@pytest.mark.parametrize("from_ms", [0, 20])
def test_a_rewind_to_latest_keeps_the_time_that_its_answer_names(from_ms: int) -> None:
    story = Making().made("time", from_ms=from_ms)
    base = {"topic": "t", "group": "g", "rewind": True, "op": 9}
    story.add("client:op", "set_group", outcome="invoke", start="latest", from_ms=0, **base)
    story.add("client:op", "set_group", outcome="ok", generation=0, from_ms=from_ms, **base)
    assert story.send(0).drained().stands() is bool(from_ms), "the producer's clock says 10 ms"


@pytest.mark.parametrize(("start", "broken"), [("latest", []), ("earliest", ["no loss"])])
def test_a_message_settled_by_each_group_need_not_be_stored_again(start: str, broken: list[str]) -> None:
    """Seed 9600182: group g has acked the message of an earlier try, h skips it, and the last try is confirmed."""
    story = Making()
    story.add("sim", "settings", history=1, settings={"rf": 3})
    story.add("node:a", "store", topic="t", partition=0, spans=[[PRODUCER_ID, 0, 1]])
    story.send(0, "unknown").got(5, 0).later().ack(5, 0).fetched(start, group="h")
    story.add("node:a", "register", topic="t", group="h", generation=0, from_ms=0)
    assert story.later().send(0).broken() == broken


def test_a_group_from_latest_gets_no_earlier_messages() -> None:
    assert not Making().send(0).made("latest").got(5, 0).stands()
    assert Making().send(0).made("latest").drained().stands()
    assert Making().send(0, "unknown").made("latest").got(5, 0).stands(), "it may have come later"
    assert Making().send(0).made("latest").made("earliest").got(5, 0).stands() is False, "the first stands"
    assert Making().made("earliest", "").send(0).made("latest").got(5, 0).stands(), "either may have made it"


def test_a_group_from_earliest_gets_the_whole_backlog() -> None:
    assert not Making().send(0).made("earliest").drained().stands()
    assert Making().send(0).made("earliest").got(5, 0).ack(5, 0).drained().stands()
    unkept = Making().add("sim", "settings", history=1, settings={"kept": False})
    assert unkept.send(0).made("earliest").drained().stands()  # type: ignore[attr-defined]


def test_a_backlog_requested_by_some_is_delivered_whole_or_not_at_all() -> None:
    def story() -> Making:
        return Making().send(0).send(1).made("latest", "").later().made("earliest")

    assert story().drained().stands()
    assert story().got(5, 0).got(6, 1).drained().stands()
    assert not story().got(5, 0).drained().stands()


def test_a_group_has_one_generation_until_somebody_asks_for_another() -> None:
    assert not Making().send(0).send(1).made().got(5, 0).got(6, 1, 7).stands()
    assert Making().made(generation=3).made(generation=3).stands()
    assert not Making().made(generation=3).made(generation=7).stands(), "the second one is told of another"
    assert not Making().send(0).made(generation=3).got(5, 0, 7).stands()
    rewound = Making().send(0).send(1).made().got(5, 0)
    assert rewound.call("set_group", "unknown", start="earliest", rewind=True).got(6, 1, 7).stands()
    rewound = Making().send(0).send(1).made().got(5, 0)
    assert not rewound.call("set_group", "fail", start="earliest", rewind=True).got(6, 1, 7).stands()
    deleted = (
        Making().send(0).send(1).made().got(5, 0).call("delete_group", "ok", generation=6).made(generation=7)
    )
    assert deleted.got(6, 1, 7).stands()
    assert not deleted.got(7, 0, 8).stands()


def test_a_fetch_never_makes_a_deleted_group_again_nor_moves_it() -> None:
    def story(maker: Callable[[Making], Making]) -> Making:
        return maker(Making().send(0).made().call("delete_group", "ok", generation=6).later()).later().made()

    assert story(lambda before: before.fetched("latest", "unknown")).drained().stands() is False, (
        "it is from earliest"
    )
    assert story(lambda before: before.made("latest", "unknown")).drained().stands()


def test_an_acked_message_is_not_delivered_again_without_a_rewind() -> None:
    acked = Making().send(0).made().got(5, 0).ack(5, 0)
    assert acked.stands()
    assert not acked.got(6, 0, 7).stands()
    assert not Making().send(0).made().got(5, 0).ack(5, 0, "stale-generation").stands()


@pytest.mark.parametrize(("got", "nodes", "stands"), [(1, "", False), (0, "ab", False), (0, "a", True)])
def test_a_fetch_shows_a_group_by_messages_or_a_majority(got: int, nodes: str, stands: bool) -> None:
    story = Making()
    for node in "abc":
        story.add(f"node:{node}", "start", incarnation=1)
    story.call("fetch", "", start="latest")
    for node in nodes:
        story.add(f"node:{node}", "register", topic="t", group="g", generation=5, from_ms=10)
    base = {"topic": "t", "group": "g", "op": story.ops}
    story.add("client:op", "fetch", outcome="ok", messages=got, **base)
    assert story.send(0).drained().stands() == stands


def test_a_fetch_of_one_partition_says_nothing_of_the_others() -> None:
    assert Making().fetched("latest", partition=1).send(0).drained().stands()
    assert not Making().fetched("latest", partition=0).send(0).drained().stands()


# ---------------------------------------------------------------------- failed for certain


def test_a_message_with_failed_publishes_alone_is_never_delivered() -> None:
    assert Story().publish("fail").deliver(5).broken() == ["failed for certain"]
    assert Story().publish("unknown").deliver(5).broken() == []
    again = Story().publish("fail")
    again.rows += [{**row, "op": 2} for row in Story().publish("unknown").rows]
    assert again.deliver(5).broken() == []


def test_a_group_whose_creations_failed_is_not_there() -> None:
    register = {"topic": "t", "group": "g", "generation": 0, "from_ms": 0}

    def found(story: Story) -> bool:
        return "failed for certain" in story.add("node:a", "register", **register).broken()

    assert found(Making().made(outcome="fail"))
    assert found(Making().fetched(outcome="fail"))
    assert not found(Making().made(outcome="fail").fetched(outcome="unknown"))
    assert not found(Making().made(outcome="fail").made(outcome=""))
    assert not found(Story()), "nobody knows where it comes from"


def test_nothing_lives_or_dies_by_requests_that_failed() -> None:
    assert "failed for certain" in died().redrive(0, "fail").deliver(6, at=9.0, n=1).broken()
    assert died().redrive(0, "unknown").deliver(6, at=9.0, n=1).broken() == []

    def dead(outcome: str) -> bool:
        story = Story().publish().deliver(5).settle("dead_letter", 5, outcome).dead()
        for row in story.rows:
            if row["kind"] == "list":
                row["reason"] = "rejected"
        return "failed for certain" in story.drained().broken()

    assert dead("fail")
    assert not dead("unknown")


def test_a_purge_that_failed_settles_nothing() -> None:
    story = Story().publish().purge().settled("skipped")
    assert story.drained().broken() == []
    for row in story.rows:
        if row["kind"] == "purge" and row["outcome"] == "ok":
            row["outcome"] = "fail"
    assert story.drained().broken() == ["groups as asked"]


def test_a_message_whose_acks_failed_is_not_settled() -> None:
    assert Story().publish().deliver(5).settle("ack", 5, "unknown").drained().broken() == []
    assert Story().publish().deliver(5).settle("ack", 5, "fail").drained().broken() == ["no loss"]


@pytest.mark.parametrize(
    ("writes", "expected"),
    [
        ([(True, "ok"), (False, "ok")], True),
        ([(True, "ok"), (False, "unknown")], False),
        ([(True, "unknown"), (False, "ok")], False),
        ([(True, "fail"), (False, "ok")], True),
    ],
)
def test_no_fetch_makes_a_group_once_its_topic_was_told_to_make_none(
    writes: list[tuple[bool, str]], expected: bool
) -> None:
    story = Making()
    for op, (value, outcome) in enumerate(writes):
        story.set_topic(outcome, op, op + 0.1, op + 0.2, rf=3, auto_create_groups=value)
    story.at = 9.0
    story.fetched("earliest", "unknown").add(
        "node:a", "register", topic="t", group="g", generation=0, from_ms=0
    )
    assert ("groups asked for" in story.broken()) == expected
    if writes[0] == (True, "ok"):
        early = Making().call("fetch", "unknown", start="earliest", at=0.05)
        early.rows += story.rows
        assert "groups asked for" not in early.broken(), "one FETCH was sent before"


def won(story: Story, node: str, ballot: int, at: float, until: float | None, n: int = 0) -> Story:
    """A node says that it won the message, and until when."""
    end = {} if until is None else {"until": until}
    return story.add(f"node:{node}", "hold_won", at, **story.of(ballot, 0, 1, n), **end)


@pytest.mark.parametrize(
    ("second", "until", "expected"), [(3.0, 9.0, ["exclusive holds"]), (9.5, 9.0, []), (3.0, None, [])]
)
def test_two_wins_are_exclusive_by_the_nodes_lines_alone(
    second: float, until: float | None, expected: list[str]
) -> None:
    story = won(won(Story().publish(), "a", 5, 1.0, until), "b", 6, second, second + 8)
    assert story.broken() == expected
    assert won(story, "b", 6, second + 0.1, second + 8).broken() == expected, "one attempt in two lines"


def test_a_hold_that_may_be_given_back_is_in_nobodys_way() -> None:
    def story() -> Story:
        return won(Story().publish(), "a", 5, 1.0, 9.0)

    mine = {name: value for name, value in story().of(5, 0, 1, 0).items() if name not in ("generation", "n")}
    for who, kind, more in (
        ("node:b", "release", {}),
        ("node:a", "hold_lost", {}),
        ("client:c", "leave", {"op": 4, "generation": 0, "n": 0}),
        ("client:c", "reject", {"op": 4, "generation": 0, "n": 0, "outcome": "invoke"}),
        ("client:c", "dead_letter", {"op": 4, "generation": 0, "n": 0, "outcome": "invoke"}),
    ):
        assert won(story().add(who, kind, 2.0, **{**mine, **more}), "b", 6, 3.0, 9.0).broken() == [], kind
    assert won(story(), "b", 6, 3.0, 9.0, n=1).broken() == [], "a redrive may open at once what was acked"
    buried = story().add("node:b", "dead_letter", 2.0, outcome="ok", **Story().of(5, 0, 1, 0))
    assert won(buried, "b", 6, 3.0, 9.0).broken() == ["exclusive holds"]


def test_a_death_known_to_a_majority_is_a_dead_letter() -> None:
    def buried(*nodes: str) -> Story:
        story = Story().publish().deliver(5)
        for node in nodes:
            line = story.of(5, 0, 1, 0)
            story.add(f"node:{node}", "dead_letter", outcome="ok", reason="max-deliveries", **line)
        return story

    gone = ["dead letters conserved", "no loss"]
    assert sorted(buried("a", "b").drained().broken()) == gone
    assert buried("a", "a").drained().broken() == ["no loss"]
    assert buried("a", "b").dead().drained().broken() == []
    five = buried("a", "b")
    settings = {"history": 1, "settings": {"rf": 5}}
    five.rows.insert(0, {**five.rows[0], "who": "sim", "kind": "settings", **settings})
    assert five.drained().broken().count("dead letters conserved") == 0


def test_a_listing_in_mid_run_says_nothing_of_what_was_asked_later() -> None:
    done = died().dead().redrive(0).deliver(6, n=1).settle("ack", 6, "acked", n=1)
    assert done.drained().broken() == []
    assert done.dead(n=0).broken() == ["dead letters conserved"] * 2
    again = died().dead().redrive(0).deliver(6, n=1).settle("dead_letter", 6, "ok", n=1).dead(n=1)
    assert again.drained().broken() == []
    assert died().dead().purge("g!dead").settled("purged").drained().broken() == []


def test_a_retry_has_the_numbers_of_the_first_try() -> None:
    def tried(first: int, retries: int) -> Story:
        base = {"topic": "t", "partition": 0, "op": 7, "outcome": "invoke", "retries": retries}
        more = {"spans": [[PRODUCER_ID, first, first + 1]], "crcs": "0000000a", "published_ms": 10}
        return Story().publish("unknown").add("client:p", "publish", **base, **more)

    assert tried(0, 1).broken() == []
    assert tried(1, 1).broken() == ["no thin air"]
    assert tried(1, 2).broken() == [], "what it retries is not there"


def long_waits(story: Story, bound: float = 1.0) -> list[Violation]:
    checker = NoLongWaits(bound)
    for row in story.rows:
        if row["kind"] in checker.kinds:
            checker.see(row)
    return checker.verdict()


def acked(story: Story, ballot: int, at: float) -> Story:
    """The client acks a message, number ``ballot``, and has nothing in hand then."""
    return story.add("client:c", "ack", at, op=2, outcome="invoke", **story.of(ballot, ballot, ballot + 1, 0))


def test_nothing_waits_for_long_while_a_client_waits() -> None:
    """Each message waits for 1.5 s. The client has another one in hand meanwhile, but for the last."""
    story = acked(Story().publish(stop=1).deliver(0), 0, 0.5)
    story.publish(start=1, stop=3).deliver(1, start=1, stop=2)
    acked(story, 1, 2.2).deliver(2, start=2, stop=3)
    acked(story, 2, 2.5)
    assert long_waits(story) == []
    story.publish(start=3, stop=4).deliver(3, start=3, stop=4, at=4.2)
    assert [violation.promise for violation in long_waits(story)] == ["no long waits"]
    assert long_waits(story, 0.0) == []


@pytest.mark.parametrize(("bound", "broken"), [(3, ["each in turn"]), (4, []), (0, [])])
def test_a_partition_with_messages_is_not_passed_over_again_and_again(bound: int, broken: list[str]) -> None:
    """The group gets three deliveries of partition 1 while a message of partition 0 waits."""
    story = Story()
    story.add("sim", "settings", history=1, settings={"rf": 3, "passed_max": bound})
    story.publish(start=0, stop=5)
    for row in story.rows[-2:]:
        story.rows.append({**row, "partition": 1})
    for seq in range(3):
        story.deliver(seq, start=seq, stop=seq + 1)
        story.rows[-1]["partition"] = 1
    story.deliver(3, start=0, stop=5)
    checker = EachInTurn()
    for row in story.rows:
        if row["kind"] in checker.kinds:
            checker.see(row)
    assert [violation.promise for violation in checker.verdict()] == broken


@pytest.mark.parametrize("starts", [True, False])
def test_no_publish_waits_for_long_unless_a_node_has_just_started(starts: bool) -> None:
    story = Story()
    publish = {"topic": "t", "partition": 0, "spans": [[PRODUCER_ID, 0, 1]], "op": 1}
    story.add("client:p", "publish", outcome="invoke", crcs="0000000a", published_ms=10, **publish)
    if starts:
        story.add("node:b", "start", 0.5, incarnation=1, outcome="fresh")
    story.add("client:p", "publish", 1.6, outcome="ok", **publish)
    assert bool(long_waits(story)) is not starts


def test_a_read_of_labels_shows_the_last_confirmed_change() -> None:
    def broken(story: Story) -> list[str]:
        return [
            violation.text
            for violation in check_history(story.rows)
            if violation.promise == "labels as written"
        ]

    def story() -> Story:
        return (
            Story()
            .add("sim", "settings", 0.0, history=1, settings={})
            .set_labels("ok", 1, 1.0, 2.0, owner="a")
        )

    assert not broken(story().labels(2, 3.0, 4.0, owner="a"))
    assert not broken(story().set_labels("unknown", 2, 3.0, 4.0, owner="b").labels(3, 5.0, 6.0, owner="a"))
    assert not broken(story().set_labels("ok", 2, 3.0, 5.0, owner="b").labels(3, 4.0, 4.5, owner="a"))
    assert "written again" in broken(story().labels(2, 3.0, 4.0))[0]
    lost = {"fault": "bereave", "seconds": 0.1, "nodes": ["b"]}
    assert not broken(story().add("sim", "fault", 2.5, **lost).labels(2, 3.0, 4.0)), (
        "a majority lost its disks"
    )
    assert (
        "written again"
        in broken(story().set_labels("ok", 2, 3.0, 4.0, owner="b").labels(3, 5.0, 6.0, owner="a"))[0]
    )
    assert "nobody wrote it" in broken(story().labels(2, 3.0, 4.0, owner="a", team="x"))[0]
    assert (
        "nobody had written"
        in broken(story().set_labels("fail", 2, 3.0, 3.5, owner="b").labels(3, 4.0, 5.0, owner="b"))[0]
    )
    older = story().set_labels("unknown", 2, 3.0, 4.0, owner="b").labels(3, 5.0, 6.0, owner="b")
    assert "written again" in broken(older.labels(4, 7.0, 8.0, owner="a"))[0]


def test_a_claim_stands_over_a_rewind_unless_the_message_was_acked() -> None:
    for acked, broken in ((False, ["claims kept"]), (True, [])):
        story = Story().publish().deliver(1, hold=0.2).deliver(2, attempt=2)
        for outcome in ("invoke", "ok"):
            story.add("client:c", "claim", op=9, outcome=outcome, until=60.0, **story.of(2, 0, 1, 0))
        if acked:
            story.settle("ack", 1, "acked_after_expiry")
        assert [it for it in story.deliver(3, generation=1).broken() if it == "claims kept"] == broken


def test_a_name_keeps_one_of_the_ids_that_were_asked_for_before_it_was_confirmed() -> None:
    """A window ends between two callers: both ids count, and a third one does not."""

    def named(story: Story, op: int, window: int, outcome: str, **times: float) -> Story:
        base = {"topic": "t", "partition": 0, "spans": [[f"~named.60.0.{window}", 61, 62]], "op": op}
        more = {"crcs": "0000000a", "published_ms": 10} if outcome == "invoke" else {}
        return story.add("client:n", "publish", outcome=outcome, **base, **more, **times)

    story = named(named(Story(), 1, 5, "invoke", asked=0.01), 2, 6, "invoke", asked=0.02)
    for op, window in ((1, 5), (2, 6), (3, 6), (3, 5)):
        named(named(story, op, window, "invoke", asked=story.at), op, window, "ok")
    assert "names kept" not in story.broken()
    assert "names kept" in named(story, 4, 7, "invoke", asked=story.at).broken()
