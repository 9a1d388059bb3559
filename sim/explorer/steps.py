"""Everything that may happen next.

A state is a flat tuple of numbers: one per node, then the messages that were ever sent and could still matter, then
what is left of the budget, then the facts. A message stays deliverable until it cannot matter any more, so a lost
one is one that is never delivered, a doubled one is delivered twice, and any order is tried.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from quorumq.core.types import Kind, NodeId
from sim.explorer import facts as outside
from sim.explorer import promises
from sim.explorer.facts import ACKING, LIVE, OVER, REJECTED, Facts, Operation
from sim.explorer.scenario import BUDGETS, Scenario
from sim.explorer.world import DEAD_GROUP, GROUP, WALL_MS, Outcome, Switches, World

State = tuple[int, ...]
Action = tuple[Any, ...]
Step = tuple[Action, State, str]
"""What was done, the state it led to, and the promise it broke or ""."""

SLOT = {name: at for at, name in enumerate(BUDGETS)}


class Explorer:
    """All steps of one scenario.

    Args:
        scenario: the bounds.
        switches: the driver's part of the rules; all on if None.
    """

    def __init__(self, scenario: Scenario, switches: Switches | None = None) -> None:
        self.scenario = scenario
        self.world = World(scenario, switches or Switches())
        self.count = len(scenario.nodes)
        self._nets: list[tuple[int, ...]] = []
        self._net_ids: dict[tuple[int, ...], int] = {}
        self._after_net: dict[tuple[int, tuple[int, ...], int, int], int] = {}
        self._budgets: list[tuple[int, ...]] = []
        self._budget_ids: dict[tuple[int, ...], int] = {}
        self._facts: list[Facts] = []
        self._fact_ids: dict[Facts, int] = {}
        self._heard: dict[tuple[int, int, int, int], tuple[int, str]] = {}
        self._spent: dict[tuple[int, int], int] = {}
        self._ticked: dict[tuple[int, int], int] = {}
        self.first = self._begin()

    # ------------------------------------------------------------------ keeping once

    def net_id(self, messages: tuple[int, ...]) -> int:
        found = self._net_ids.get(messages)
        if found is None:
            found = self._net_ids[messages] = len(self._nets)
            self._nets.append(messages)
        return found

    def budget_id(self, budget: tuple[int, ...]) -> int:
        found = self._budget_ids.get(budget)
        if found is None:
            found = self._budget_ids[budget] = len(self._budgets)
            self._budgets.append(budget)
        return found

    def fact_id(self, facts: Facts) -> int:
        found = self._fact_ids.get(facts)
        if found is None:
            found = self._fact_ids[facts] = len(self._facts)
            self._facts.append(facts)
        return found

    def facts(self, state: State) -> Facts:
        """What clients know in ``state``."""
        return self._facts[state[-1]]

    def messages(self, state: State) -> tuple[int, ...]:
        """The messages that may be delivered in ``state``."""
        return self._nets[state[-3]]

    def tick(self, state: State) -> int:
        """How many ticks have passed."""
        return self.scenario.ticks - self._budgets[state[-2]][0]

    def spend(self, budget: int, slot: int) -> int:
        found = self._spent.get((budget, slot))
        if found is None:
            left = list(self._budgets[budget])
            left[slot] -= 1
            found = self._spent[(budget, slot)] = self.budget_id(tuple(left))
        return found

    def _begin(self) -> State:
        locals_ = self.world.first_locals()
        facts = Facts(operations=tuple(Operation() for _ in self.scenario.operators))
        return (*locals_, self.net_id(()), self.budget_id(self.scenario.budget()), self.fact_id(facts))

    # ------------------------------------------------------------------------ steps

    def after(self, state: State, at: int, outcome: Outcome, tick: int) -> tuple[State, str]:
        """``state`` once node ``at`` has done what ``outcome`` says, and the promise that it broke."""
        world = self.world
        net, budget, fact = state[-3:]
        locals_ = (*state[:at], outcome.local, *state[at + 1 : -3])
        sent = outcome.sent
        if sent:
            sent = tuple([m for m in sent if not world.is_dead(m, locals_[world.to[m]], tick)])
        key = (net, sent, at, outcome.local)
        found = self._after_net.get(key)
        if found is None:
            to = world.to
            kept = [m for m in self._nets[net] if to[m] != at or not world.is_dead(m, outcome.local, tick)]
            found = self._after_net[key] = self.net_id(tuple(sorted({*kept, *sent})))
        problem = outcome.problem
        for request, reply in outcome.replies:
            fact, broken = self.hear(fact, request, reply, tick)
            problem = problem or broken or promises.handed_out(world, outcome.local, reply)
        state = (*locals_, found, budget, fact)
        facts = self._facts[fact]
        problem = problem or promises.conserved(world, locals_, facts)
        return state, problem or promises.one_topic(world, locals_, facts)

    def hear(self, fact: int, request: int, reply: int, tick: int) -> tuple[int, str]:
        """The facts once a client has heard a reply."""
        key = (fact, request, reply, tick)
        found = self._heard.get(key)
        if found is None:
            now = self.world.now(tick).mono
            after, problem = outside.heard(self._facts[fact], request, self.world.replies[reply], now)
            found = self._heard[key] = (self.fact_id(after), problem)
        return found

    def steps(self, state: State) -> Iterator[Step]:
        """Everything that may happen next, in a fixed order."""
        world, scenario = self.world, self.scenario
        net, budget, fact = state[-3:]
        left = self._budgets[budget]
        tick = scenario.ticks - left[0]
        to, deliver = world.to, world.deliver
        for message in self._nets[net]:
            at = to[message]
            if message in world.fetching:
                yield from self._remote(state, message, left, tick)
                continue
            outcome = deliver(state[at], message, tick)
            if (
                outcome.local == state[at]
                and not outcome.sent
                and not outcome.replies
                and not outcome.problem
            ):
                continue
            after, problem = self.after(state, at, outcome, tick)
            if after != state or problem:
                yield ("deliver", message), after, problem
        if scenario.give_up:
            for at in range(self.count):
                for number in world.locals[state[at]].core.context.rounds:
                    yield self._one(state, at, ("give up", number), tick)
        if scenario.unsynced:
            for at in range(self.count):
                if world.locals[state[at]].pending:
                    yield self._one(state, at, ("fsync",), tick)
        if scenario.operators:
            yield from self._operations(state, tick)
        if left[SLOT["attempts"]]:
            yield from self._fetches(state, tick)
        if left[SLOT["dead_reads"]] and self._listed(state):
            yield from self._fetches(state, tick, "dead_reads")
        if left[SLOT["rewinds"]]:
            for name in scenario.rewind_via or world.members:
                yield self._ask(
                    state, name, "rewinds", scenario.rewind_to, scenario.rewind_to, -1, (0, 0), tick
                )
        if left[SLOT["backlog_purges"]]:
            for name in scenario.purge_via or world.members:
                yield self._ask(state, name, "backlog_purges", "clear", "clear", -1, (0, 0), tick)
        if fact or len(self._facts) > 1:
            yield from self._settlings(state, left, tick)
        yield from self._links(state, tick)
        if left[SLOT["restarts"]]:
            for at in self._indexes(scenario.restart_nodes):
                yield self._restart(state, at, tick, "restarts")
        if left[SLOT["clean_stops"]]:
            for at in self._indexes(scenario.restart_nodes):
                yield self._restart(state, at, tick, "clean_stops")
        if left[SLOT["wipes"]]:
            for at in self._indexes(scenario.restart_nodes):
                yield self._wipe(state, at, tick)
        if left[SLOT["offers"]]:
            paid = (*state[:-2], self.spend(budget, SLOT["offers"]), fact)
            for at in range(self.count):
                for peer in sorted(world.locals[state[at]].links):
                    yield self._one(paid, at, ("offer", peer), tick)
        if left[0]:
            yield self._tick(state, tick)

    def _indexes(self, names: tuple[NodeId, ...]) -> list[int]:
        return [self.world.index[name] for name in names or self.scenario.nodes]

    def _one(self, state: State, at: int, what: Action, tick: int) -> Step:
        after, problem = self.after(state, at, self.world.do(state[at], what, tick), tick)
        return (what[0], self.scenario.nodes[at], *what[1:]), after, problem

    def _fetches(self, state: State, tick: int, slot: str = "attempts") -> Iterator[Step]:
        """A FETCH goes out and arrives: one that is under way longer only has its deadline earlier."""
        world = self.world
        net, budget, fact = state[-3:]
        coordinators = self.scenario.coordinators or world.members
        if self.scenario.symmetric and not self._facts[fact].attempts:
            coordinators = coordinators[:1]  # whatever happened before, happened to every choice of names
        if slot == "dead_reads":
            coordinators = self.scenario.dead_via or world.members
        group = DEAD_GROUP if slot == "dead_reads" else GROUP
        for name in coordinators:
            at = world.index[name]
            after, key = outside.started(
                self._facts[fact], name, world.now(tick).mono, of_dead=group != GROUP
            )
            begun = (*state[:-3], net, self.spend(budget, SLOT[slot]), self.fact_id(after))
            ahead = (max(world.locals[local].core.state.clock.value for local in state[:-3]) >> 16) + 1
            for wall_ms in (ahead, WALL_MS) if self.scenario.low_clocks else (ahead,):
                _, done, problem = self._one(begun, at, ("fetch", key, wall_ms, group), tick)
                yield ("fetch", name, key - 1, wall_ms == ahead), done, problem

    def _operations(self, state: State, tick: int) -> Iterator[Step]:
        """An operator asks, or a proposer has waited long enough after it met another's proposal."""
        world = self.world
        for index, (kind, name) in enumerate(self.scenario.operators):
            if not self._facts[state[-1]].operations[index].phase:
                yield self._ask(state, name, None, kind, kind, index, (0, 0), tick)
        for at in range(self.count):
            for _, _, what in world.locals[state[at]].core.state.timers:
                if what[0] == "again":
                    yield self._one(state, at, what, tick)

    def _remote(self, state: State, message: int, left: tuple[int, ...], tick: int) -> Iterator[Step]:
        """A RemoteFetch arrives. Every further copy of it is one more attempt, and is paid for as one."""
        world = self.world
        copy = world.fetching[message]
        if copy == message and not left[SLOT["attempts"]]:
            return
        net = [found for found in self._nets[state[-3]] if found != message or copy == message]
        budget = state[-2]
        if copy == message:
            budget = self.spend(budget, SLOT["attempts"])
        elif left[SLOT["attempts"]]:
            net.append(copy)
        at = world.to[message]
        changed = (*state[:-3], self.net_id(tuple(sorted(net))), budget, state[-1])
        after, problem = self.after(changed, at, world.deliver(state[at], message, tick), tick)
        yield ("deliver", message), after, problem

    def _settlings(self, state: State, left: tuple[int, ...], tick: int) -> Iterator[Step]:
        """The client settles a delivery through any node, in time or late; or somebody redrives."""
        world, scenario = self.world, self.scenario
        facts = self._facts[state[-1]]
        via = scenario.via or scenario.nodes
        for index, attempt in enumerate(facts.attempts):
            if attempt.receipt is None:
                continue
            mine = attempt.phase in (LIVE, OVER)
            wanted: list[tuple[str, str, str]] = []
            if left[SLOT["acks"]] and (mine or attempt.phase == ACKING):
                wanted.append(("acks", "ack", "ack"))
            if left[SLOT["rejects"]] and (mine or attempt.phase == REJECTED):
                wanted += [
                    ("rejects", "dead" if how == "dead" else "reject", how)
                    for how in scenario.reject_as
                    if how != "dead" or not attempt.of_dead
                ]
            if left[SLOT["extends"]] and mine:
                wanted.append(("extends", "extend", "extend"))
            if left[SLOT["leaves"]] and mine:
                if world.switches.leave_delivered:
                    at = world.index[attempt.node]
                    if index + 1 in world.locals[state[at]].core.context.given:
                        paid = (*state[:-2], self.spend(state[-2], SLOT["leaves"]), state[-1])
                        _, after, problem = self._one(paid, at, ("unsent", index + 1), tick)
                        yield ("connection dies", attempt.node, index), after, problem
                else:
                    wanted.append(("leaves", "leave", "leave"))
            for slot, kind, how in wanted:
                for name in via:
                    life = (attempt.receipt.generation, attempt.receipt.n)
                    yield self._ask(state, name, slot, kind, how, index, life, tick)
        for slot, kind in (("redrives", "redrive"), ("purges", "purge")):
            if left[SLOT[slot]]:
                for life in self._listed(state):
                    for name in via:
                        yield self._ask(state, name, slot, kind, kind, -1, life, tick)

    def _listed(self, state: State) -> list[tuple[int, int]]:
        """(generation, n) of the dead letters that some replica lists."""
        ranks = [self.world.locals[local].rank for local in state[:-3]]
        return sorted({(generation, n) for generation, _, n, kind in ranks if kind == Kind.DEAD})

    def _ask(
        self,
        state: State,
        name: NodeId,
        slot: str | None,
        kind: str,
        how: str,
        index: int,
        life: tuple[int, int],
        tick: int,
    ) -> Step:
        world = self.world
        now = world.now(tick)
        facts = self._facts[state[-1]]
        after, key = outside.asked(facts, kind, index, name, life, now.mono)
        budget = state[-2] if slot is None else self.spend(state[-2], SLOT[slot])
        begun = (*state[:-2], budget, self.fact_id(after))
        if kind in outside.OPERATIONS:
            request = world.operation(kind, index)
        else:
            receipt = facts.attempts[index].receipt if index >= 0 else None
            request = world.request(how, receipt, life, now)
        _, done, problem = self._one(begun, world.index[name], ("ask", key, request), tick)
        return ("ask", name, how, index, life[1]), done, problem

    def _links(self, state: State, tick: int) -> Iterator[Step]:
        """Two nodes that a start has parted find each other again; HELLO waits for the fsyncs before it."""
        world = self.world
        for a in range(self.count):
            for b in range(a + 1, self.count):
                busy = world.locals[state[a]].pending or world.locals[state[b]].pending
                if busy or world.are_linked(state[a], state[b]):
                    continue
                linked = world.link(state[a], state[b], tick)
                if linked is not None:
                    one, other = linked
                    after, problem = self.after(state, a, one, tick)
                    after, worse = self.after(after, b, other, tick)
                    yield ("link", self.scenario.nodes[a], self.scenario.nodes[b]), after, problem or worse

    def _restart(self, state: State, at: int, tick: int, slot: str) -> Step:
        world = self.world
        name = self.scenario.nodes[at]
        local = state[at]
        if slot == "clean_stops":
            local = world.do(local, ("clean stop",), tick).local
        outcome = world.restart(local, tick)
        fact = self.fact_id(outside.lost(self._facts[state[-1]], name))
        budget = self.spend(state[-2], SLOT[slot])
        after, problem = self.after((*state[:-2], budget, fact), at, outcome, tick)
        return ("crash" if slot == "restarts" else "clean stop", name), self._strip(after), problem

    def _strip(self, state: State) -> State:
        """Once nothing can crash any more, journals do not matter."""
        left = self._budgets[state[-2]]
        if left[SLOT["restarts"]] or left[SLOT["clean_stops"]] or left[SLOT["wipes"]]:
            return state
        return (*[self.world.forget_journal(local) for local in state[:-3]], *state[-3:])

    def _wipe(self, state: State, at: int, tick: int) -> Step:
        name = self.scenario.nodes[at]
        fact = self.fact_id(outside.lost(self._facts[state[-1]], name))
        after = (*state[:-2], self.spend(state[-2], SLOT["wipes"]), fact)
        problem = ""
        for index, outcome in enumerate(self.world.wipe(state[:-3], at, tick)):
            after, worse = self.after(after, index, outcome, tick)
            problem = problem or worse
        return ("wipe", name), self._strip(after), problem

    def _tick(self, state: State, tick: int) -> Step:
        """All clocks advance by one tick, and what was due happens."""
        world = self.world
        tick += 1
        now = world.now(tick).mono
        key = (state[-1], tick)
        fact = self._ticked.get(key)
        if fact is None:
            fact = self._ticked[key] = self.fact_id(outside.ticked(self._facts[state[-1]], now))
        after: State = (*state[:-2], self.spend(state[-2], 0), fact)
        problem = ""
        for at in range(self.count):
            if world.locals[after[at]].due <= now:
                after, worse = self.after(after, at, world.do(after[at], ("wake",), tick), tick)
                problem = problem or worse
        return ("tick",), after, problem
