"""Everything that may happen next.

A state is a flat tuple of numbers: one per node, then the messages that were ever sent and could still matter, then
the rest of the budget, then the facts. A message stays deliverable until it cannot matter any more. So if it is never
delivered, it is lost, and if it is delivered twice, it is doubled, and any order is tried.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import astuple
from itertools import combinations
from typing import Any

from quorumq.core.messages import ClientRequest, Publish
from quorumq.core.values.types import Group, Kind, NodeId
from sim.explorer import members, promises, requests
from sim.explorer import observations as outside
from sim.explorer.journals import Moved
from sim.explorer.machine import Outcome
from sim.explorer.numbered import Numbered
from sim.explorer.observations import ACKING, GROUP_OPERATIONS, LIVE, OVER, REJECTED, Observations, Operation
from sim.explorer.requests import DEAD_GROUP, GROUP
from sim.explorer.scenario import BUDGETS, WALL_MS, Scenario, now_at
from sim.explorer.world import World

State = tuple[int, ...]
Action = tuple[Any, ...]
Step = tuple[Action, State, str]
"""Action, the state it led to, and the promise it broke or ""."""

SLOT = {name: at for at, name in enumerate(BUDGETS)}

STARTS = {
    "restarts": "crash", "clean_stops": "clean stop", "wipes": "wipe", "resyncs": "lose", "restores": "restore"
}  # fmt: skip
"""Action on a node that starts again, by the budget that it spends."""


class Explorer:
    """All steps of one scenario."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.world = World(scenario)
        self.nodes = self.world.nodes
        self.traffic = self.nodes.traffic
        self.count = len(scenario.nodes)
        self._nets: Numbered[tuple[int, ...]] = Numbered()
        self._after_net: dict[tuple[int, tuple[int, ...], int, int], int] = {}
        self._budgets: Numbered[tuple[int, ...]] = Numbered()
        self._observations: Numbered[Observations] = Numbered()
        self._answered: dict[tuple[int, int, int, int, Group | None], tuple[int, str]] = {}
        self._seen: dict[tuple[int, Group], tuple[int, str]] = {}
        self._on_groups = any(kind in GROUP_OPERATIONS for kind, _ in scenario.operators)
        self._on_members = any(requests.is_change(kind) for kind, _ in scenario.operators)
        self._moves = bool(scenario.operators) and (bool(scenario.move) or self._on_members)
        self._spent: dict[tuple[int, int], int] = {}
        self._ticked: dict[tuple[int, int], int] = {}
        self._alone: dict[State, list[tuple[int, Action]]] = {}
        self._parted: dict[State, list[tuple[int, int]]] = {}
        self.first = self._begin()
        members = self.world.members
        self._requests = (
            ("rewinds", scenario.rewind_via or members, scenario.rewind_to),
            ("publishes", scenario.publish_via or members, ("publish",)),
            ("backlog_purges", scenario.purge_via or members, ("beside" if scenario.beside else "clear",)),
        )

    def observations(self, state: State) -> Observations:
        """Return the clients' knowledge in ``state``."""
        return self._observations.all[state[-1]]

    def messages(self, state: State) -> tuple[int, ...]:
        """Return the messages that may be delivered in ``state``."""
        return self._nets.all[state[-3]]

    def tick(self, state: State) -> int:
        """Return the number of ticks that have passed."""
        return self.scenario.budget.ticks - self._budgets.all[state[-2]][0]

    def spend(self, budget: int, slot: int) -> int:
        number = self._spent.get((budget, slot))
        if number is None:
            remaining = list(self._budgets.all[budget])
            remaining[slot] -= 1
            number = self._spent[(budget, slot)] = self._budgets.number(tuple(remaining))
        return number

    def _begin(self) -> State:
        scenario = self.scenario
        operations = tuple(Operation() for _ in scenario.operators)
        observed = Observations(
            operations=operations,
            kinds=tuple(kind for kind, _ in scenario.operators),
            before=bool(scenario.stored_on),
            acks_end_nothing=scenario.acks_end_nothing,
        )
        budget = self._budgets.number(astuple(scenario.budget))
        return (
            *self.world.first_locals(),
            self._nets.number(()),
            budget,
            self._observations.number(observed),
        )

    # ------------------------------------------------------------------------ steps

    def after(self, state: State, at: int, outcome: Outcome, tick: int) -> tuple[State, str]:
        """Return ``state`` after ``outcome`` at node ``at``, and the promise that it broke."""
        world, nodes, to = self.world, self.nodes, self.traffic.to
        local, sent, replies, problem = outcome
        net, budget, fact = state[-3:]
        locals_ = (*state[:at], local, *state[at + 1 : -3])
        if sent:
            sent = tuple([m for m in sent if not nodes.is_dead(m, locals_[to[m]], tick)])
        key = (net, sent, at, local)
        net_number = self._after_net.get(key)
        if net_number is None:
            before = self._nets.all[net]
            kept = [m for m in before if to[m] != at or not nodes.is_dead(m, local, tick)]
            net_number = self._after_net[key] = self._nets.number(tuple(sorted({*kept, *sent})))
        group = nodes.locals[local].group if self._on_groups else None
        if group is not None:
            fact, broken = self._see(fact, group)
            problem = problem or broken
        for request, reply in replies:
            fact, broken = self.hear(fact, request, reply, tick, group)
            problem = problem or broken or promises.handed_out(world, local, reply)
        if self.scenario.budget.publishes:
            problem = problem or promises.granted_in_vain(world, outcome.sent)
        state = (*locals_, net_number, budget, fact)
        observed = self._observations.all[fact]
        settled, reads_anew = max(observed.dead[1], observed.redriven[1]) >= 0, observed.reads_anew
        if settled:
            problem = problem or promises.conserved(world, locals_, observed)
        if self.scenario.beside:
            problem = problem or promises.unnamed(world, locals_)
        if self.scenario.reject_as == ("interrupted",):
            problem = problem or promises.spared(world, locals_)
        if self.scenario.operators:
            problem = problem or promises.one_topic(world, locals_, observed)
        if self._moves:
            problem = problem or promises.one_set(world, locals_)
        if self.scenario.budget.closes:
            problem = problem or promises.not_closed(world, locals_, observed)
        if self.scenario.budget.reclaims and reads_anew:
            problem = problem or promises.kept_payload(world, locals_)
        if self._on_members:
            problem = problem or members.members_broken(world, locals_, observed)
        if self._on_groups:
            problem = problem or promises.group_stands(world, locals_, observed)
        return state, problem

    def _see(self, fact: int, group: Group) -> tuple[int, str]:
        """Return the facts when a node has this register of the group."""
        result = self._seen.get((fact, group))
        if result is None:
            after, problem = outside.seen(self._observations.all[fact], group)
            result = self._seen[(fact, group)] = (self._observations.number(after), problem)
        return result

    def _after_all(
        self, state: State, outcomes: Iterable[tuple[int, Outcome]], tick: int
    ) -> tuple[State, str]:
        """Return the state, and the first broken promise, after several nodes have stepped one after the other."""
        problem = ""
        for at, outcome in outcomes:
            state, worse = self.after(state, at, outcome, tick)
            problem = problem or worse
        return state, problem

    def hear(self, fact: int, request: int, reply: int, tick: int, group: Group | None) -> tuple[int, str]:
        """Return the facts when a client has got a reply from a node that has this register of the group."""
        key = (fact, request, reply, tick, group)
        result = self._answered.get(key)
        if result is None:
            now = now_at(tick).mono
            answer = self.traffic.replies.all[reply]
            after, problem = outside.answered(self._observations.all[fact], request, answer, now, group)
            result = self._answered[key] = (self._observations.number(after), problem)
        return result

    def steps(self, state: State) -> Iterator[Step]:
        """Yield everything that may happen next, in a fixed order."""
        nodes, scenario = self.nodes, self.scenario
        net, budget, fact = state[-3:]
        remaining = self._budgets.all[budget]
        tick = scenario.budget.ticks - remaining[0]
        to, fetching, known = self.traffic.to, self.traffic.fetching, nodes.steps
        for message in self._nets.all[net]:
            at = to[message]
            if message in fetching:
                yield from self._remote(state, message, remaining, tick)
                continue
            local = state[at]
            outcome = known.get((local, message, tick)) or nodes.deliver(local, message, tick)
            if outcome.local == local and not (outcome.sent or outcome.replies or outcome.problem):
                continue
            after, problem = self.after(state, at, outcome, tick)
            if after != state or problem:
                yield ("deliver", message), after, problem
        locals_ = state[:-3]
        alone = self._alone.get(locals_)
        if alone is None:
            alone = self._alone[locals_] = self._find_alone(locals_)
        for at, action in alone:
            yield self._one(state, at, action, tick)
        if scenario.operators:
            yield from self._operations(state, tick)
        if scenario.move or scenario.added or scenario.voters:
            for at, local in enumerate(locals_):
                if self.world.may_adopt(local):
                    yield self._one(state, at, ("adopt",), tick)
        if remaining[SLOT["attempts"]]:
            yield from self._fetches(state, tick)
        if remaining[SLOT["busy"]]:
            yield from self._fetches(state, tick, "busy")
        if remaining[SLOT["dead_reads"]] and self._listed(state):
            yield from self._fetches(state, tick, "dead_reads")
        for slot, via, kinds in self._requests:
            if remaining[SLOT[slot]]:
                for name in via:
                    for kind in kinds:
                        yield self._ask(state, tick, name, slot, kind)
        if fact or len(self._observations.all) > 1:
            yield from self._settlings(state, remaining, tick)
        parted = self._parted.get(locals_)
        if parted is None:
            parted = self._parted[locals_] = self._find_parted(locals_)
        for a, b in parted:
            yield from self._link(state, a, b, tick)
        for slot in STARTS:
            if remaining[SLOT[slot]]:
                for name in scenario.restart_nodes or scenario.nodes:
                    yield self._start(state, scenario.index[name], tick, slot)
        if remaining[SLOT["comparisons"]]:
            paid = (*state[:-2], self.spend(budget, SLOT["comparisons"]), fact)
            for at in range(self.count):
                for peer in sorted(nodes.locals[state[at]].links):
                    yield self._one(paid, at, ("offer", peer), tick)
        if remaining[SLOT["reclaims"]]:
            paid = (*state[:-2], self.spend(budget, SLOT["reclaims"]), fact)
            for at in range(self.count):
                yield self._one(paid, at, ("reclaim",), tick)
        if remaining[SLOT["closes"]]:
            paid = (*state[:-2], self.spend(budget, SLOT["closes"]), fact)
            for name in scenario.coordinators or self.world.members:
                yield self._one(paid, scenario.index[name], ("close",), tick)
        if remaining[0]:
            yield self._tick(state, tick)

    def _find_alone(self, locals_: State) -> list[tuple[int, Action]]:
        """Return the actions that a node may take by itself: a round gives up, or an fsync ends."""
        scenario = self.scenario
        every = [(at, self.nodes.locals[local]) for at, local in enumerate(locals_)]
        alone: list[tuple[int, Action]] = []
        if scenario.give_up:
            alone += [
                (at, ("give up", number))
                for at, node_state in every
                for number in node_state.core.context.rounds
            ]
        if scenario.unsynced:
            alone += [(at, ("fsync",)) for at, node_state in every if node_state.pending]
        return alone

    def _one(self, state: State, at: int, action: Action, tick: int) -> Step:
        after, problem = self.after(state, at, self.nodes.do(state[at], action, tick), tick)
        return (action[0], self.scenario.nodes[at], *action[1:]), after, problem

    def _fetches(self, state: State, tick: int, slot: str = "attempts") -> Iterator[Step]:
        """Send a FETCH and let it arrive. If it were under way longer, only its deadline would be earlier."""
        world, nodes = self.world, self.nodes
        net, budget, fact = state[-3:]
        coordinators = self.scenario.coordinators or world.members
        if self.scenario.symmetric and not self._observations.all[fact].attempts:
            coordinators = coordinators[:1]  # earlier events happened to every choice of names
        if slot == "dead_reads":
            coordinators = self.scenario.dead_via or world.members
        group = DEAD_GROUP if slot == "dead_reads" else GROUP
        for name in coordinators:
            at = self.scenario.index[name]
            after, key = outside.started(
                self._observations.all[fact],
                name,
                now_at(tick).mono,
                of_dead=group != GROUP,
                idle=slot != "busy",
            )
            started = (*state[:-3], net, self.spend(budget, SLOT[slot]), self._observations.number(after))
            ahead = (max(nodes.locals[local].core.state.clock.value for local in state[:-3]) >> 16) + 1
            for wall_ms in (ahead, WALL_MS) if self.scenario.low_clocks else (ahead,):
                _, done, problem = self._one(
                    started, at, ("fetch", key, wall_ms, group, slot != "busy"), tick
                )
                yield ("fetch", name, key - 1, wall_ms == ahead), done, problem

    def _operations(self, state: State, tick: int) -> Iterator[Step]:
        """Let an operator ask; or let a proposer go on when it met another's proposal and waited long enough."""
        nodes = self.nodes
        for index, (kind, name) in enumerate(self.scenario.operators):
            phase = self.observations(state).operations[index].phase
            if phase in ("", "found"):
                yield self._ask(state, tick, name, None, "put" if phase else kind, index=index)
        for at in range(self.count):
            for _, _, action in nodes.locals[state[at]].core.state.timers:
                if action[0] == "again":
                    yield self._one(state, at, action, tick)

    def _remote(self, state: State, message: int, remaining: tuple[int, ...], tick: int) -> Iterator[Step]:
        """Deliver a RemoteFetch. If it was delivered before, that is one more attempt, and is paid for as one."""
        nodes, traffic = self.nodes, self.traffic
        copy = traffic.fetching[message]
        if copy == message and not remaining[SLOT["attempts"]]:
            return
        net = [envelope for envelope in self._nets.all[state[-3]] if envelope != message or copy == message]
        budget = state[-2]
        if copy == message:
            budget = self.spend(budget, SLOT["attempts"])
        elif remaining[SLOT["attempts"]]:
            net.append(copy)
        at = traffic.to[message]
        changed = (*state[:-3], self._nets.number(tuple(sorted(net))), budget, state[-1])
        after, problem = self.after(changed, at, nodes.deliver(state[at], message, tick), tick)
        yield ("deliver", message), after, problem

    def _settlings(self, state: State, remaining: tuple[int, ...], tick: int) -> Iterator[Step]:
        """Settle a delivery as its client, through any node, in time or late; or redrive as an operator."""
        nodes, scenario = self.nodes, self.scenario
        observed = self.observations(state)
        via = scenario.via or scenario.nodes
        for index, attempt in enumerate(observed.attempts):
            if attempt.receipt is None:
                continue
            mine = attempt.phase in (LIVE, OVER)
            settlings: list[tuple[str, str, str]] = []
            if remaining[SLOT["acks"]] and (mine or attempt.phase == ACKING):
                settlings.append(("acks", "ack", "ack"))
            if remaining[SLOT["rejects"]] and (mine or attempt.phase == REJECTED):
                settlings += [
                    ("rejects", "dead" if how == "dead" else "reject", how)
                    for how in scenario.reject_as
                    if how != "dead" or not attempt.of_dead
                ]
            if remaining[SLOT["extends"]] and mine:
                settlings.append(("extends", "extend", "extend"))
            if remaining[SLOT["claims"]] and mine:
                settlings.append(("claims", "claim", "claim"))
            if remaining[SLOT["releases"]] and mine:
                if nodes.release_delivered:
                    at = self.scenario.index[attempt.node]
                    if index + 1 in nodes.locals[state[at]].core.context.releases.unsent:
                        paid = (*state[:-2], self.spend(state[-2], SLOT["releases"]), state[-1])
                        _, after, problem = self._one(paid, at, ("unsent", index + 1), tick)
                        yield ("connection dies", attempt.node, index), after, problem
                else:
                    settlings.append(("releases", "leave", "leave"))
            for slot, kind, how in settlings:
                for name in via:
                    life = (attempt.receipt.generation, attempt.receipt.n)
                    yield self._ask(state, tick, name, slot, kind, how=how, index=index, life=life)
        for slot, kind in (("redrives", "redrive"), ("purges", "purge")):
            if remaining[SLOT[slot]]:
                for life in self._listed(state):
                    for name in via:
                        yield self._ask(state, tick, name, slot, kind, life=life)

    def _listed(self, state: State) -> list[tuple[int, int]]:
        """Return (generation, n) of the dead letters that some replica lists."""
        ranks = [self.nodes.locals[local].rank for local in state[:-3]]
        return sorted({(generation, n) for generation, _, n, kind in ranks if kind == Kind.DEAD})

    def _ask(
        self,
        state: State,
        tick: int,
        name: NodeId,
        slot: str | None,
        kind: str,
        how: str = "",
        index: int = -1,
        life: tuple[int, int] = (0, 0),
    ) -> Step:
        how = how or kind
        now = now_at(tick)
        observed = self.observations(state)
        after, key = outside.asked(observed, kind, index, name, life, now.mono)
        budget = state[-2] if slot is None else self.spend(state[-2], SLOT[slot])
        started = (*state[:-2], budget, self._observations.number(after))
        request: ClientRequest
        if kind == "put":
            producer_id = observed.operations[index].name
            assert producer_id is not None
            request = requests.publish_named(self.world.topic, producer_id)
        elif kind in ("publish", "send"):
            request = Publish(self.traffic.store.batch)
        elif outside.is_operation(kind):
            request = requests.operation(self.scenario, index, self.world.topic, now)
        else:
            receipt = observed.attempts[index].receipt if index >= 0 else None
            request = requests.request(how, receipt, life, now)
        _, done, problem = self._one(started, self.scenario.index[name], ("ask", key, request), tick)
        return ("ask", name, how, index, life[1]), done, problem

    def _find_parted(self, locals_: State) -> list[tuple[int, int]]:
        """Return pairs of nodes that a start has parted, and that have no fsyncs to wait for before HELLO."""
        busy = [bool(self.nodes.locals[local].pending) for local in locals_]
        return [
            (a, b)
            for a, b in combinations(range(self.count), 2)
            if not (busy[a] or busy[b] or self.world.are_linked(locals_[a], locals_[b]))
        ]

    def _link(self, state: State, a: int, b: int, tick: int) -> Iterator[Step]:
        """Link two nodes again."""
        linked = self.world.link(state[a], state[b], tick)
        if linked is not None:
            after, problem = self._after_all(state, zip((a, b), linked, strict=True), tick)
            yield ("link", self.scenario.nodes[a], self.scenario.nodes[b]), after, problem

    def is_refused(self, state: State, one: NodeId, other: NodeId) -> bool:
        """Return True if these two would not link up, because their configurations of the cluster differ."""
        at = [state[self.scenario.index[name]] for name in (one, other)]
        return self.world.link(at[0], at[1], self.tick(state)) is None

    def _start(self, state: State, at: int, tick: int, slot: str) -> Step:
        """Start a node again if it is gone: from its journal, with the knowledge of the others, or from a backup."""
        name, local, nodes = self.scenario.nodes[at], state[at], self.nodes
        fact = self._observations.number(outside.lost(self.observations(state), name))
        paid = (*state[:-2], self.spend(state[-2], SLOT[slot]), fact)
        outcomes: Iterable[tuple[int, Outcome]]
        if slot == "wipes":
            outcomes = enumerate(self.world.wipe(state[:-3], at, tick))
        elif slot == "resyncs":
            outcomes = [(at, self.world.lose(state[:-3], at, tick))]
        elif slot == "restores":
            backup = nodes.journals.records(nodes.locals[self.first[at]].journal)
            moved = nodes.journals.number((*backup, Moved()), name)
            outcomes = [(at, nodes.begin(moved, name, now_at(tick)))]
        else:
            if slot == "clean_stops":
                local = nodes.do(local, ("clean stop",), tick).local
            outcomes = [(at, nodes.do(local, ("restart",), tick))]
        after, problem = self._after_all(paid, outcomes, tick)
        return (STARTS[slot], name), self._strip(after), problem

    def _strip(self, state: State) -> State:
        """Drop the journals when nothing can crash any more, because they do not matter then."""
        remaining = self._budgets.all[state[-2]]
        if any(remaining[SLOT[slot]] for slot in STARTS):
            return state
        return (*[self.nodes.drop_journal(local) for local in state[:-3]], *state[-3:])

    def _tick(self, state: State, tick: int) -> Step:
        """Advance all clocks by one tick, and fire the timers that were due."""
        nodes = self.nodes
        tick += 1
        now = now_at(tick).mono
        key = (state[-1], tick)
        fact = self._ticked.get(key)
        if fact is None:
            fact = self._ticked[key] = self._observations.number(
                outside.ticked(self.observations(state), now)
            )
        woken = (
            (at, nodes.do(local, ("wake",), tick))
            for at, local in enumerate(state[:-3])
            if nodes.locals[local].due <= now
        )
        return ("tick",), *self._after_all((*state[:-2], self.spend(state[-2], 0), fact), woken, tick)
