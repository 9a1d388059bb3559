"""The explorer: both columns of the table of rules, and its own soundness."""

from __future__ import annotations

import functools
import gc
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner
from sortedcontainers import SortedDict, SortedList

from quorumq.core import messages as m
from quorumq.core.node.nodecore import NodeCore
from quorumq.core.partition.attempts import Attempts
from quorumq.core.partition.lease import Lease
from quorumq.core.values.spans import SpanMap, SpanSet
from quorumq.core.values.types import Incarnation
from sim.__main__ import main
from sim.explorer.clone import clone, key_of
from sim.explorer.nodes import Nodes
from sim.explorer.requests import SPAN
from sim.explorer.scenario import Budget, Scenario
from sim.explorer.scenarios import SCENARIOS
from sim.explorer.search import Result, Walk, search
from sim.explorer.steps import Explorer, State
from sim.explorer.table import BOUNDS, explore, left_out
from sim.explorer.world import World
from sim.rules import EXPLORED, Rule, rule_named

BROKEN = {
    "raise-hears-the-set-before": "G3",
    "raise-tellers-have-adopted": "G3",
    "raise-the-set-before-tells": "stuck",
    "raise-holds-of-the-set-before": "G2",
    "quarantine": "G2",
    "quarantine-half": "G2",
    "quarantine-coordinator": "G2",
    "votes-wait-for-the-topic": "G2",
    "resync-brings-topics": "G2",
    "creation-as-seen": "DELETE",
    "groups-as-seen": "DELETE",
    "piggyback-is-voted-on": "G2",
    "own-vote-not-needed": "G1",
    "piggyback-is-durable": "G1",
    "piggyback-not-where-refused": "piggyback",
    "owner-is-an-attempt": "G2",
    "release-carries-ballot": "G2",
    "recovery-keeps-union": "G2",
    "recovery-hears-all": "G2",
    "recovery-tells-acked": "G2",
    "recovery-tells-grants": "G2",
    "recovery-tells-replaced": "G2",
    "recovery-keeps-acked": "G2",
    "own-tombstone": "G3",
    "failed-extend-releases-nothing": "G2",
    "replies-for-their-round": "G2",
    "no-replacing": "G2",
    "extend-never-revives": "fencing",
    "superseded-do-not-count": "G3",
    "superseded-of-five": "G3",
    "wiped-begins-far-above": "G3",
    "clean-stop-once": "G2",
    "leave-only-undelivered": "G2",
    "dead-needs-the-hold": "G7",
    "learned-dead-drops-no-hold": "G2",
    "holds-by-message": "G2",
    "nothing-overtakes-acked": "G2",
    "hints-never-vote": "G2",
    "ballots-only-rise": "fencing",
    "sync-before-answering": "G3",
    "give-back-only-called-off": "G2",
    "ack-ends-own-hold": "G2",
    "stale-generation-refused": "rewind",
    "deleted-is-not-read": "DELETE",
    "group-of-each-set": "rewind",
    "deletion-keeps-holds": "G2",
    "dead-granted-at-its-n": "G7",
    "redrive-where-it-died": "G3",
    "redriven-stands": "G7",
    "suspects-are-alone": "neighbours",
    "voters-name-suspects": "neighbours",
    "names-are-no-exception": "neighbours",
    "fetch-what-is-named": "named",
    "interrupted-is-no-attempt": "interrupted",
    "purge-asks-enough": "purge",
    "one-answer-counts-once": "purge",
    "purge-at-a-majority": "purge",
    "purge-what-is-named": "purge",
    "made-with-one-configuration": "G2",
    "made-with-one-list": "one topic",
    "moved-votes": "G3",
    "starts-by-number": "G3",
    "purge-overtakes-redrive": "G7",
    "acked-needs-exclusive": "one `acked`",
    "min-ballot-is-not-exclusive": "one `acked`",
    "clean-stop-keeps-ballots": "one `acked`",
    "extend-looks-at-acked": "G3",
    "creation-takes-over": "one topic",
    "creation-keeps-promise": "one topic",
    "decided-is-told": "one topic",
    "accepted-is-not-served": "one topic",
    "proposed-is-not-served": "one topic",
    "conflict-once-chosen": "conflict",
    "votes-are-durable": "one topic",
    "registers-are-durable": "created",
    "resync-brings-votes": "one topic",
    "superseded-votes": "one topic",
    "delete-hears-of-partitions": "DELETE",
    "alter-hears-of-deletion": "DELETE",
    "partitions-are-confirmed": "DELETE",
    "group-is-chosen": "one register",
    "group-takes-over": "one register",
    "ballot-zero-is-for-one": "one register",
    "decided-group-is-told": "one register",
    "group-votes-are-durable": "one register",
    "group-registers-are-durable": "stands",
    "voters-make-no-group": "forbidden",
    "latest-asks-enough": "latest",
    "latest-begins-once": "latest",
    "latest-at-a-majority": "latest",
    "begun-at-a-majority": "stands",
    "alter-reads-its-own": "stands",
    "group-hears-of-partitions": "stands",
    "pause-voters": "PAUSE",
    "pause-of-each-set": "PAUSE",
    "settings-above-promises": "PAUSE",
    "settings-as-seen": "PAUSE",
    "settings-are-asked-first": "PAUSE",
    "pause-outlasts-changes": "PAUSE",
    "pause-is-durable": "PAUSE",
    "labels-write-back": "labels",
    "labels-read-first": "labels",
    "labels-at-a-majority": "labels",
    "labels-are-durable": "labels",
    "labels-show-what-was-written": "labels",
    "claim-in-any-generation": "claims",
    "claim-outlasts-its-hold": "claims",
    "claim-is-durable": "claims",
    "claim-ends-by-its-owner": "claims",
    "names-of-other-windows": "names",
    "names-ask-enough": "names",
    "move-hears-the-set-before": "G3",
    "move-the-leaver-tells": "stuck",
    "move-tellers-have-adopted": "G3",
    "move-epoch-counts": "G2",
    "move-quarantine": "G2",
    "move-adoption-durable": "G3",
    "move-deletion-of-each-set": "DELETE",
    "move-group-of-each-set": "stands",
    "move-groups-of-its-layout": "RECLAIM",
    "move-is-announced": "one set",
    "resync-adopts-what-is-chosen": "one set",
    "move-waits-for-the-last-one": "stuck",
    "move-tells-no-more-closing": "G1",
    "move-tells-what-is-closed": "G1",
    "layout-outlives-changes": "one set",
    "move-holds-out-of-quarantine": "G2",
    "move-wiped-hears-the-present-set": "G3",
    "members-are-chosen": "one layout",
    "members-are-durable": "members",
    "resync-brings-members": "members",
    "removal-of-a-node-in-use": "removed",
    "placing-on-a-removed-node": "removed",
    "removed-nodes-are-not-waited-for": "stuck",
    "only-voters-count": "forbidden",
    "voters-before-tell": "created",
    "voters-tell-once-they-have-adopted": "created",
    "voters-count-in-one-epoch": "one topic",
    "voters-are-adopted-once-durable": "created",
    "new-voters-learn-what-was-accepted": "one topic",
    "resync-awaits-undecided-voters": "created",
    "added-voters-hear-those-before": "created",
    "added-voters-hear-adopters": "created",
    "added-voters-hear-the-set-before": "stuck",
}
"""The promise that breaks first without each rule."""

EXHAUSTED = {
    "creation-as-seen", "groups-as-seen", "own-vote-not-needed", "piggyback-is-durable",
    "piggyback-not-where-refused", "recovery-keeps-union", "recovery-hears-all", "recovery-tells-acked",
    "recovery-tells-grants", "own-tombstone", "dead-needs-the-hold", "sync-before-answering",
    "deleted-is-not-read", "purge-asks-enough", "purge-at-a-majority", "purge-what-is-named",
    "fetch-what-is-named", "made-with-one-configuration", "made-with-one-list", "redrive-where-it-died",
    "latest-asks-enough", "latest-at-a-majority", "begun-at-a-majority", "settings-as-seen",
    "settings-are-asked-first", "pause-outlasts-changes", "pause-is-durable", "labels-at-a-majority",
    "claim-in-any-generation", "claim-is-durable", "names-of-other-windows", "names-ask-enough",
    "move-the-leaver-tells", "move-is-announced", "resync-adopts-what-is-chosen",
    "move-tells-no-more-closing", "move-tells-what-is-closed", "layout-outlives-changes",
    "group-of-each-set", "members-are-durable", "removal-of-a-node-in-use", "placing-on-a-removed-node",
    "removed-nodes-are-not-waited-for", "raise-the-set-before-tells",
}  # fmt: skip
"""Rules whose scenarios have at most `FEW` states, and are exhausted here."""

EXHAUSTED_LATER = {
    "raise-tellers-have-adopted", "move-epoch-counts", "labels-show-what-was-written",
    "voters-make-no-group", "pause-voters", "recovery-tells-replaced", "leave-only-undelivered",
    "purge-overtakes-redrive", "extend-looks-at-acked", "delete-hears-of-partitions",
    "alter-hears-of-deletion", "partitions-are-confirmed", "moved-votes", "one-answer-counts-once",
    "deletion-keeps-holds", "recovery-keeps-acked", "extend-never-revives", "superseded-do-not-count",
    "ballots-only-rise", "give-back-only-called-off", "starts-by-number", "acked-needs-exclusive",
    "clean-stop-keeps-ballots", "owner-is-an-attempt", "release-carries-ballot", "replies-for-their-round",
    "hints-never-vote", "dead-granted-at-its-n", "redriven-stands", "min-ballot-is-not-exclusive",
    "group-hears-of-partitions", "latest-begins-once", "pause-of-each-set", "claim-outlasts-its-hold",
    "move-waits-for-the-last-one", "move-wiped-hears-the-present-set",
}  # fmt: skip
"""Rules whose scenarios have more states: `make soak` exhausts them."""

FEW = 2_000

DEEP = 300
"""States that a scenario which is not exhausted is explored for, at most."""

FOUND_LATE = {
    "raise-hears-the-set-before", "deletion-keeps-holds", "quarantine-coordinator", "piggyback-is-voted-on",
    "release-carries-ballot", "recovery-keeps-acked", "failed-extend-releases-nothing", "extend-never-revives",
    "superseded-do-not-count", "wiped-begins-far-above", "clean-stop-once", "nothing-overtakes-acked",
    "hints-never-vote", "give-back-only-called-off", "stale-generation-refused", "creation-takes-over",
    "creation-keeps-promise", "decided-is-told", "conflict-once-chosen", "latest-begins-once",
    "alter-reads-its-own", "owner-is-an-attempt", "ack-ends-own-hold", "quarantine", "made-with-one-list",
    "replies-for-their-round", "superseded-of-five", "learned-dead-drops-no-hold", "votes-are-durable",
    "group-votes-are-durable", "resync-brings-votes", "superseded-votes", "suspects-are-alone",
    "voters-name-suspects", "names-are-no-exception", "voters-are-adopted-once-durable",
    "new-voters-learn-what-was-accepted", "recovery-tells-replaced",
}  # fmt: skip
"""Rules without which the first failure is after more than `LATE` states."""

LATE = 3_000

ALONE = {"stale-generation-refused", "conflict-once-chosen"}
"""The only rows of their promise, which run here though their failure is late."""


def name_of(thing: Rule | Scenario) -> str:
    return thing.name


# ------------------------------------------------------------------------- the table


def test_every_rule_is_in_this_table() -> None:
    assert {rule.name for rule in EXPLORED} == set(BROKEN)


@functools.cache
def left_out_of_its_scenario(name: str) -> Result:
    rule = rule_named(name)
    return explore(rule.scenario, rule, states_max=60_000)


@pytest.mark.parametrize(
    "rule",
    [
        pytest.param(rule, marks=pytest.mark.soak if rule.name in FOUND_LATE - ALONE else ())
        for rule in EXPLORED
    ],
    ids=name_of,
)
def test_without_the_rule_a_promise_breaks(rule: Rule) -> None:
    result = left_out_of_its_scenario(rule.name)
    assert (result.states > LATE) == (rule.name in FOUND_LATE), "where this row runs"
    assert result.violation.startswith(BROKEN[rule.name]), result.verdict
    assert result.trace[-1].strip() == f"!! {result.violation}"
    assert len(result.trace) == result.steps + 1


@pytest.mark.parametrize("rule", EXPLORED, ids=name_of)
def test_with_all_rules_no_promise_breaks(rule: Rule) -> None:
    """In all states if those are few, and else in the first ones; `make soak` explores all scenarios much deeper."""
    result = explore(rule.scenario, None, states_max=FEW if rule.name in EXHAUSTED else DEEP)
    assert not result.violation, "\n".join(result.trace)
    assert result.exhausted == (rule.name in EXHAUSTED)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=name_of)
def test_general_scenarios_hold_near_their_beginning(scenario: Scenario) -> None:
    result = explore(scenario, None, states_max=DEEP)
    assert not result.violation, "\n".join(result.trace)


@pytest.mark.soak
@pytest.mark.parametrize("scenario", SCENARIOS, ids=name_of)
def test_general_scenarios_hold_for_long(scenario: Scenario) -> None:
    result = explore(scenario, None, states_max=700_000)
    assert not result.violation, "\n".join(result.trace)


@pytest.mark.soak
@pytest.mark.parametrize("rule", EXPLORED, ids=name_of)
def test_scenarios_of_the_rules_hold_for_long(rule: Rule) -> None:
    result = explore(rule.scenario, None, states_max=150_000)
    assert not result.violation, "\n".join(result.trace)
    assert result.exhausted or rule.name not in EXHAUSTED | EXHAUSTED_LATER


def test_bounds_are_back_after_an_exploration() -> None:
    before = [getattr(location, name) for location, name, _ in BOUNDS]
    with pytest.raises(ZeroDivisionError), left_out(None):
        raise ZeroDivisionError
    assert [getattr(location, name) for location, name, _ in BOUNDS] == before


# ------------------------------------------------------------------- soundness: what is one

SOME = Scenario(name="some", about="for its world")


def test_messages_and_requests_of_two_types_are_two_though_they_are_equal_as_tuples() -> None:
    explorer = Explorer(SOME)
    nodes, traffic = explorer.nodes, explorer.traffic
    release, released = m.Release(()), m.ReleaseReply(())
    assert release == released
    inc = Incarnation(1, 1)
    first, second = (traffic.message(m.Envelope("a", inc, "b", inc, 0, item)) for item in (release, released))
    assert [type(traffic.messages.all[number].message) for number in (first, second)] == [
        m.Release,
        m.ReleaseReply,
    ]
    assert m.AckRequest(()) == m.ReleaseRequest(())
    local = explorer.first[0]
    acked, leaving = (nodes.do(local, ("ask", 100, ask(())), 0) for ask in (m.AckRequest, m.ReleaseRequest))
    assert [
        type(traffic.replies.all[reply]) for outcome in (acked, leaving) for _, reply in outcome.replies
    ] == [m.SettleReply, m.NotedReply]


# ------------------------------------------------------------------- soundness: the clone


def walk(explorer: Explorer, states: int) -> Iterator[tuple[State, list[Any]]]:
    """The first ``states`` states, breadth first, with their steps."""
    seen = {explorer.first: None}
    queue = [explorer.first]
    for state in queue:
        steps = list(explorer.steps(state))
        yield state, steps
        if len(queue) < states:
            for _, after, _ in steps:
                if after not in seen:
                    seen[after] = None
                    queue.append(after)


BUSY = Scenario(
    name="busy",
    about="a little of everything",
    budget=Budget(
        attempts=2, acks=1, rejects=1, extends=1, releases=1, redrives=1, comparisons=1, restarts=1, ticks=2
    ),
    via=("a",),
)


def test_a_clone_is_equal_and_stepping_it_changes_nothing_else() -> None:
    with left_out(None):
        explorer = Explorer(BUSY)
        for _ in walk(explorer, 300):
            pass
        nodes = explorer.nodes
        keys = [key_of(local.core) for local in nodes.locals]
        assert len(keys) > 200
        for local, key in zip(nodes.locals, keys, strict=True):
            assert key_of(clone(local.core)) == key
        nodes.steps.clear()  # so that every node state is stepped once more, from clones of it
        for local in nodes.locals:
            local.dead.clear()
        for _ in walk(explorer, 300):
            pass
        assert [key_of(local.core) for local in nodes.locals][: len(keys)] == keys


def mutable_parts(value: Any, parts: dict[int, Any]) -> None:
    """Every object below ``value`` that can change."""
    if id(value) in parts or isinstance(value, (int, float, str, bytes, type(None))):
        return
    if isinstance(value, tuple):
        for item in value:
            mutable_parts(item, parts)
        return
    if isinstance(value, (dict, list, SortedDict, SortedList)):
        parts[id(value)] = value
        items = [part for pair in value.items() for part in pair] if isinstance(value, dict) else list(value)
        for item in items:
            mutable_parts(item, parts)
        return
    module = type(value).__module__
    if not module.startswith("quorumq.") or type(value).__name__ in ("Members", "NodeConfig"):
        return
    parts[id(value)] = value
    if isinstance(value, (SpanMap, SpanSet)):
        mutable_parts([run for _, runs in value.state() for run in runs], {})
        return
    names = [name for base in type(value).__mro__ for name in getattr(base, "__slots__", ())]
    for name in [*names, *getattr(value, "__dict__", {})]:
        mutable_parts(getattr(value, name, None), parts)  # a slot may have nothing in it yet


def test_a_clone_shares_nothing_that_can_change_and_keeps_what_is_shared_within() -> None:
    with left_out(None):
        explorer = Explorer(BUSY)
        for _ in walk(explorer, 200):
            pass
    shared_within = 0
    for local in explorer.nodes.locals:
        twin = clone(local.core)
        ours: dict[int, Any] = {}
        theirs: dict[int, Any] = {}
        mutable_parts(local.core, ours)
        mutable_parts(twin, theirs)
        assert len(ours) == len(theirs) < 300, "each step of the explorer copies all of them"
        assert not ours.keys() & theirs.keys()
        for replica in twin.replicas.values():
            assert replica.node is twin.state
        for number, coordinator in twin.context.rounds.items():
            assert number in coordinator.rounds
            shared_within += any(coordinator is other for other in twin.context.requests.values())
    assert shared_within > 50


def test_a_key_tells_apart_what_behaves_differently() -> None:
    """Each of these fields decides something; a key that left one out would merge states that must not be."""
    with left_out(None):
        world = World(BUSY)
        core = world.nodes.locals[world.first_locals()[0]].core
        (replica,) = core.replicas.values()

    def changed(change: Any) -> NodeCore:
        twin = clone(core)
        change(twin, next(iter(twin.replicas.values())).views.groups["g"])
        return twin

    span = next(iter(replica.batches.index.items()))[0]
    changes: list[Any] = [
        lambda twin, view: setattr(twin.state, "quarantine_until", 5.0),
        lambda twin, view: setattr(twin.state.clock, "value", twin.state.clock.value + 1),
        lambda twin, view: setattr(view, "min_ballot", 7),
        lambda twin, view: view.available.spans.remove(span),
        lambda twin, view: view.leases.set(span, Lease(attempts=Attempts(0, 0, 1))),
        lambda twin, view: view.leases.set(span, Lease(attempts=Attempts(0, 0, 1, True))),
        lambda twin, view: view.leases.set(span, Lease(deferred_until=3.0)),
        lambda twin, view: twin.state.links.pop("b"),
        lambda twin, view: twin.context.called_off.update({3: None}),
    ]
    keys = [key_of(core), *[key_of(changed(change)) for change in changes]]
    assert len(set(keys)) == len(keys)


# ---------------------------------------------------------------- soundness: the rest


@pytest.mark.parametrize(
    "name",
    [
        "no-replacing",
        pytest.param("release-carries-ballot", marks=pytest.mark.soak),
        "leave-only-undelivered",
        "ballots-only-rise",
    ],
)
def test_pruned_messages_hide_no_counterexample(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same shortest violation is found when no message is ever taken out of the network."""
    rule = rule_named(name)
    pruned = explore(rule.scenario, rule, states_max=60_000)
    monkeypatch.setattr(Nodes, "_is_dead", lambda self, message, local, tick: False)
    everything = explore(rule.scenario, rule, states_max=200_000)
    assert (everything.steps, everything.violation) == (pruned.steps, pruned.violation)
    assert everything.states > pruned.states


def test_a_step_is_looked_up_only_where_it_is_the_same() -> None:
    """The cached result of each step is that of the core when asked again."""
    with left_out(None):
        explorer = Explorer(BUSY)
        for _ in walk(explorer, 600):
            pass
        nodes = explorer.nodes
        kept = dict(nodes.steps)
        checked = 0
        for key, outcome in kept.items():
            local, message, tick = key[0], key[1], key[-1]  # type: ignore[index]
            if isinstance(message, int) and len(key) == 3:  # type: ignore[arg-type]
                del nodes.steps[key]
                assert nodes.deliver(local, message, tick) == outcome
                checked += 1
        assert checked > 300


def test_the_first_fetch_may_go_through_the_first_node() -> None:
    """Nodes that differ by name only: choosing the first one's name loses nothing (the scenario's `symmetric`)."""
    symmetric = Scenario(name="s", about="", budget=Budget(attempts=2))
    spelled_out = Scenario(name="s", about="", budget=Budget(attempts=2), coordinators=("a", "b", "c"))
    assert symmetric.symmetric
    assert not spelled_out.symmetric
    few, many = explore(symmetric), explore(spelled_out)
    assert few.exhausted
    assert many.exhausted
    assert 2.5 < many.states / few.states < 3.5


def test_loss_duplication_and_reordering_are_all_tried() -> None:
    """One attempt, small enough to count by hand.

    Nothing yet; HOLDs on their way; granted by b, by c, by both; delivered on b's word, on c's, and with both granted
    (the source makes no later difference).
    """
    with left_out(None):
        explorer = Explorer(Scenario(name="one", about="", budget=Budget(attempts=1), give_up=False))
        result, _ = search(explorer)
    assert result.exhausted
    assert result.states == 8


def fresh_process(arguments: list[str]) -> list[dict[str, Any]]:
    """`python -m sim explore --json` in a new process with a hash seed of its own; times left out."""
    environment = {**os.environ, "PYTHONHASHSEED": "random"}
    run = subprocess.run(
        [sys.executable, "-m", "sim", "explore", "--json", *arguments],
        capture_output=True,
        text=True,
        env=environment,
    )
    assert run.returncode == 0, run.stderr
    rows = [json.loads(line) for line in run.stdout.splitlines()]
    for row in rows:
        del row["seconds"], row["states_per_s"]
    return rows


@pytest.mark.parametrize(
    "arguments",
    [
        ["--without", "no-replacing"],
        pytest.param(["--without", "release-carries-ballot"], marks=pytest.mark.soak),
        pytest.param(["--scenario", "rf1", "--states-max", "1200"], marks=pytest.mark.soak),
    ],
)
def test_every_process_finds_the_same(arguments: list[str]) -> None:
    first = fresh_process(arguments)
    assert first == fresh_process(arguments)
    assert first[0]["states"] > 1000


# ------------------------------------------------------------------- the command line


def test_command_line_tells_what_it_found() -> None:
    outcome = CliRunner().invoke(main, ["explore", "--without", "no-replacing"])
    assert outcome.exit_code == 0
    assert "violated in 6 steps" in outcome.output
    assert "DELIVERED a1" in outcome.output
    assert "!! G2 exclusive" in outcome.output


def test_command_line_names_what_there_is() -> None:
    outcome = CliRunner().invoke(main, ["explore", "--list"])
    assert outcome.exit_code == 0
    for thing in (*SCENARIOS, *EXPLORED):
        assert thing.name in outcome.output
    wrong = CliRunner().invoke(main, ["explore", "--without", "manners"])
    assert wrong.exit_code == 2
    assert "no rule is called 'manners'" in wrong.output


def test_command_line_fails_where_nothing_is_found_without_a_rule() -> None:
    outcome = CliRunner().invoke(
        main, ["explore", "--without", "quarantine", "--scenario", "release", "--states-max", "500"]
    )
    assert outcome.exit_code == 1


def test_all_replicas_close_a_producer_id_in_one_round() -> None:
    """In the product one of them begins it, at random."""
    with left_out(None):
        explorer = Explorer(next(one for one in SCENARIOS if one.name == "close-beside-a-move"))
        walk = Walk(explorer)
        for step in (("close", "a"), ("settle",)):
            walk.take_step(step)
        (replica,) = explorer.world.nodes.locals[walk.state[0]].core.replicas.values()
        assert SPAN.producer_id in replica.batches.closed


def test_a_search_keeps_the_collector_as_it_was_and_makes_no_garbage() -> None:
    scenario = next(scenario_ for scenario_ in SCENARIOS if scenario_.name == "acks")
    collected: list[bool] = []
    with left_out(None):
        explorer = Explorer(scenario)
        gc.collect()
        result, _ = search(explorer, 10_000, on_progress=lambda _: collected.append(gc.isenabled()))
        assert gc.isenabled()
        assert collected
        assert not any(collected)
        gc.disable()
        try:
            explorer = Explorer(scenario)
            gc.collect()
            search(explorer, 2_000)
            assert not gc.isenabled()
            assert gc.collect() < 10, "a node's state that is not kept is released at once"
        finally:
            gc.enable()
    assert result.core_steps > 1_000
