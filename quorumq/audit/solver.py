"""Readings of several clocks at one moment, solved from the order of events.

If an event on one clock surely was before an event on another, that bounds how far the one may be ahead of the other.
All such bounds of a run, with the greatest error of a clock's rate, are difference constraints. The shortest paths to
and from one clock give the narrowest interval that they allow. A cycle of negative length says that no clocks of such
rates wrote this. Nothing here knows the meaning of a line; `quorumq.audit.clocks` makes bounds.

A clock is placed window by window of its own reading, so that it may drift. First each may run as wrong as the
protocol allows. The intervals then give the rate of each, and are made again with the rest of that doubt.
"""

from __future__ import annotations

import gc
import heapq
import math
from array import array
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import combinations, pairwise
from typing import Final, NamedTuple

from quorumq.core.values.limits import CLOCK_RATE_MAX

RATE_MAX: Final = (1 + CLOCK_RATE_MAX) / (1 - CLOCK_RATE_MAX) - 1
"""Greatest difference between the rates of two clocks."""

WANDER: Final = 1e-4
"""Greatest change of the rate of a clock, if nothing shows that it changed more."""

ROUNDS: Final = 3
"""Rounds in which rates are taken from the intervals, and intervals made with them."""

BREAK_S: Final = 10.0
"""Breaks of a clock nearer than these seconds are one, and beside one it is not placed for that long at most."""

TRIED_MAX: Final = 20
"""Most clocks of a run with which each pair is tried in the search for broken clocks."""


@contextmanager
def without_collection() -> Iterator[None]:
    """Keep the collector of cycles out: it would look several times at each of very many objects without any."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


class Bound(NamedTuple):
    """An event on one clock was before an event on another.

    Args:
        early_window: number of its window.
        late_window: number of its window.
        seconds: the reading of the later less that of the earlier one, the least that was seen.
    """

    early: str
    early_window: int
    late: str
    late_window: int
    seconds: float

    @property
    def ends(self) -> tuple[tuple[str, int], tuple[str, int]]:
        return (self.early, self.early_window), (self.late, self.late_window)


class Window(NamedTuple):
    """Seconds to be added to a reading in the middle of a window to have the reading of the reference."""

    clock: str
    window: int
    low: float
    high: float


class Broken(NamedTuple):
    """A clock that no clock of an allowed rate could be, between two of its own readings."""

    clock: str
    begin: float
    end: float


class Located(NamedTuple):
    """The clocks of a run.

    Attributes:
        reference: the clock whose readings are the time of the run; "" if none can be trusted.
        windows: windows that could be placed.
        rates: rate of the reference above that of each clock, and the greatest error of that.
        broken: clocks that jumped or ran wrong.
    """

    reference: str
    windows: list[Window]
    rates: dict[str, tuple[float, float]]
    broken: list[Broken]


def locate(
    bounds: Sequence[Bound], windows: Mapping[str, Iterable[int]], width: float, reference: str = ""
) -> Located:
    """Place the clocks of one run.

    Args:
        width: width of a window, in seconds of its clock.
        reference: the clock that the others are placed by, in its window 0; "" if the one is to be found that
            places the most.
    """
    with without_collection():
        return _located(bounds, windows, width, reference)


def _located(
    bounds: Sequence[Bound], windows: Mapping[str, Iterable[int]], width: float, reference: str
) -> Located:
    after: dict[str, set[str]] = defaultdict(set)
    before: dict[str, set[str]] = defaultdict(set)
    weight: Counter[str] = Counter()
    for bound in bounds:
        after[bound.early].add(bound.late)
        before[bound.late].add(bound.early)
        weight.update((bound.early, bound.late))
    both = {clock: _reached(clock, after) & _reached(clock, before) for clock in windows}
    seen = {clock: after[clock] | before[clock] for clock in windows}
    order = sorted(windows, key=lambda it: (it != reference, -len(both[it]), -len(seen[it]), -weight[it], it))
    graph = _Graph(reference, bounds, width)
    guilty = culprits(graph, bounds, [it for it in order if it != reference])
    if guilty is not None and not reference and set(order) - guilty:
        # Beside one clock the others may be wrong by less than beside no clock.
        reference = next(it for it in order if it not in guilty)
        graph = _Graph(reference, bounds, width)
        more = culprits(graph, bounds, [it for it in order if it != reference])
        guilty = None if more is None else guilty | more
    if guilty is None or not set(order) - guilty:
        graph = _Graph("", bounds, width)
        graph.mend(set(weight) if guilty is None else guilty)
        return Located("", [], {}, graph.broken)
    if not graph.mend(guilty):
        return Located("", [], {}, graph.broken)
    return _refined(graph, windows)


def _reached(clock: str, steps: Mapping[str, set[str]]) -> set[str]:
    """Return this clock, and all that any number of steps lead to."""
    reached, new = {clock}, [clock]
    while new:
        more = steps.get(new.pop(), set()) - reached
        reached |= more
        new += more
    return reached


def culprits(graph: _Graph, bounds: Sequence[Bound], clocks: Sequence[str]) -> set[str] | None:
    """Return the clocks that may have broken: each without which the others agree, or each pair.

    Args:
        graph: the graph of all these bounds.

    Returns:
        None if more broke than two.
    """

    def agree(without: Iterable[str]) -> bool:
        rest = [it for it in bounds if it.early not in without and it.late not in without]
        return _Graph(graph.reference, rest, graph.width).negative_cycle() is None

    if graph.negative_cycle() is None:
        return set()
    for size in (1, 2):
        guilty = {it for chosen in combinations(clocks, size) if agree(chosen) for it in chosen}
        if guilty:
            return guilty
        if len(clocks) > TRIED_MAX:
            break
    return None


def _refined(graph: _Graph, windows: Mapping[str, Iterable[int]]) -> Located:
    graph.solve()
    for _ in range(ROUNDS):
        finer = _Graph(graph.reference, (), graph.width, graph.measured(), graph)
        if not finer.solve():
            break
        graph = finer
    return Located(graph.reference, list(graph.filled(windows)), graph.rates, graph.broken)


class _Graph:
    """Windows of clocks as nodes, 0 for all of the reference's; an edge (u, v, w) says offset(v) <= offset(u) + w.

    A window has some ten edges, which take most of the memory of an audit. So they are kept once, and nothing beside
    their length.
    """

    chains: dict[str, list[int]]
    names: list[tuple[str, int]]
    nodes: dict[tuple[str, int], int]
    edges: list[dict[int, float]]
    _bounds: tuple[Sequence[int], Sequence[int], Sequence[float]]

    def __init__(
        self,
        reference: str,
        bounds: Sequence[Bound],
        width: float,
        rates: Mapping[str, tuple[float, float]] | None = None,
        mended: _Graph | None = None,
    ) -> None:
        self.reference = reference
        self.width = width
        self.rates = dict(rates or {})
        self.rates[reference] = (0.0, 0.0)
        self.cut: set[tuple[str, int, int]] = set() if mended is None else mended.cut
        self.dropped: set[tuple[str, int]] = set() if mended is None else mended.dropped
        if mended is None:
            self._name(bounds)
        else:
            self.chains, self.names, self.nodes = mended.chains, mended.names, mended.nodes
            self._bounds = mended._bounds
        self._build()

    def rate(self, clock: str) -> tuple[float, float]:
        """Return the rate of the reference above that of this clock, and its greatest error."""
        return self.rates.get(clock, (0.0, RATE_MAX))

    @property
    def broken(self) -> list[Broken]:
        """Return the clocks that broke, and the readings between which: breaks that overlap, or nearly so, are one."""
        breaks: list[Broken] = []
        for clock, a, b in sorted(self.cut | {(clock, k, k) for clock, k in self.dropped}):
            begin, end = a * self.width, (b + 1) * self.width
            if breaks and breaks[-1].clock == clock and begin <= breaks[-1].end + BREAK_S:
                breaks[-1] = Broken(clock, breaks[-1].begin, max(end, breaks[-1].end))
            else:
                breaks.append(Broken(clock, begin, end))
        return breaks

    def _name(self, bounds: Sequence[Bound]) -> None:
        """Give numbers to the windows that bounds name, and keep each bound's late and early node, and its seconds."""
        chains: dict[str, set[int]] = defaultdict(set)
        for bound in bounds:
            for clock, window in bound.ends:
                if clock != self.reference:
                    chains[clock].add(window)
        self.chains = {clock: sorted(chain) for clock, chain in sorted(chains.items())}
        windows = [(clock, window) for clock, chain in self.chains.items() for window in chain]
        self.names = [(self.reference, 0), *windows]
        self.nodes = {name: node for node, name in enumerate(self.names)}
        lates, earlies, seconds = self._bounds = array("i"), array("i"), array("d")
        for bound in bounds:
            if bound.early != bound.late:
                early, late = bound.ends
                lates.append(self.nodes.get(late, 0))
                earlies.append(self.nodes.get(early, 0))
                seconds.append(bound.seconds)

    def _build(self) -> None:
        self.edges = edges = list[dict[int, float]]({} for _ in self.names)
        dropped = {self.nodes[it] for it in self.dropped}
        slack = {
            clock: sum(map(abs, self.rate(clock))) * self.width / 2
            for clock in (self.reference, *self.chains)
        }
        slacks = [slack[clock] for clock, _ in self.names]
        for late, early, seconds in zip(*self._bounds, strict=True):
            weight = seconds + (slacks[early] + slacks[late])
            if weight < edges[late].get(early, math.inf) and late not in dropped and early not in dropped:
                edges[late][early] = weight
        for clock, chain in self.chains.items():
            rate, wander = self.rate(clock)
            for a, b in pairwise(chain):
                apart = (b - a) * self.width
                if (clock, a, b) not in self.cut:
                    u, v = self.nodes[(clock, a)], self.nodes[(clock, b)]
                    edges[u][v], edges[v][u] = (rate + wander) * apart, (wander - rate) * apart

    def _link(self, u: int, v: int) -> tuple[str, int, int] | None:
        """Return the clock and the windows of an edge between two windows of one clock; None if it is a bound."""
        (clock, a), (other, b) = self.names[u], self.names[v]
        return (clock, min(a, b), max(a, b)) if clock == other else None

    def mend(self, guilty: Iterable[str]) -> bool:
        """Give up the contradictions to the rest: links between windows of a clock that broke, or windows.

        Returns:
            True if the rest agrees now; else the clocks that broke are others than these.
        """
        while (cycle := self.negative_cycle()) is not None:
            links = {
                link for u, v in zip(cycle, cycle[1:] + cycle[:1], strict=True) if (link := self._link(u, v))
            }
            mine = {link for link in links if link[0] in guilty} - self.cut
            lost = {self.names[node] for node in cycle if self.names[node][0] in guilty} - self.dropped
            if not mine and not lost:
                return False
            self.cut |= mine
            if not mine:
                self.dropped |= lost
            self._build()
        return True

    def negative_cycle(self) -> list[int] | None:
        """Return the nodes of a cycle of negative length, in order; None if there is none: `potential` allows all."""
        count = len(self.names)
        dist = [0.0] * count
        before: list[int] = [-1] * count
        queue, waiting = deque(range(count)), [True] * count
        relaxed = 0
        while queue:
            u = queue.popleft()
            waiting[u] = False
            for v, weight in self.edges[u].items():
                if dist[u] + weight < dist[v] - 1e-9:
                    dist[v], before[v] = dist[u] + weight, u
                    relaxed += 1
                    if not waiting[v]:
                        waiting[v] = True
                        queue.append(v)
                    if relaxed % count == 0 and (cycle := _cycle(before)) is not None:
                        return cycle
        self.potential = dist
        return None

    def solve(self) -> bool:
        """Find the intervals, and drop the edges; return False if the rates allow none."""
        if self.negative_cycle() is not None:
            return False
        self.high = _shortest(self.edges, self.potential)
        back: list[dict[int, float]] = [{} for _ in self.names]
        while self.edges:
            for v, weight in self.edges.pop().items():
                back[v][len(self.edges)] = weight
        self.low = [-it for it in _shortest(back, [-it for it in self.potential])]
        return True

    def measured(self) -> dict[str, tuple[float, float]]:
        """Return the rate that the intervals leave to each clock, and its greatest error."""
        result = {}
        for clock, chain in self.chains.items():
            located = [(k * self.width, *it) for k in chain if (it := self._located(clock, k)) is not None]
            slowest, fastest = -RATE_MAX, RATE_MAX
            if len(located) > 1 and not any(name == clock for name, *_ in self.cut):
                for early, late in (
                    *((located[0], it) for it in located[1:]),
                    *((it, located[-1]) for it in located[:-1]),
                ):
                    slowest = max(slowest, (late[1] - early[2]) / (late[0] - early[0]))
                    fastest = min(fastest, (late[2] - early[1]) / (late[0] - early[0]))
            if slowest > fastest:
                slowest, fastest = -RATE_MAX, RATE_MAX
            doubt = min((fastest - slowest) / 2 + WANDER, RATE_MAX)
            result[clock] = ((fastest + slowest) / 2, doubt)
        return result

    def _located(self, clock: str, window: int) -> tuple[float, float] | None:
        node = self.nodes[(clock, window)]
        low, high = self.low[node], self.high[node]
        return (low, high) if low > -math.inf and high < math.inf else None

    def filled(self, windows: Mapping[str, Iterable[int]]) -> Iterator[Window]:
        """Yield each of these windows that can be placed: by its own bounds, or by those of its neighbours."""
        bad: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for clock, begin, end in self.broken:
            margin = min(end - begin, BREAK_S)  # set back, it shows times again that have no bounds there
            bad[clock].append(((begin - margin) / self.width, (end + margin) / self.width - 1))
        for clock, numbers in windows.items():
            if clock == self.reference:
                yield from (Window(clock, k, 0.0, 0.0) for k in numbers)
                continue
            known = [k for k in self.chains.get(clock, []) if self._located(clock, k)]
            if not known:
                continue
            rate, wander = self.rate(clock)
            at = 0
            for k in sorted(numbers):
                if any(a <= k <= b for a, b in bad[clock]):
                    continue
                while at + 1 < len(known) and known[at + 1] <= k:
                    at += 1
                low, high = -math.inf, math.inf
                for near in known[at : at + 2]:
                    if any(min(near, k) <= a and b <= max(near, k) for a, b in bad[clock]):
                        continue  # it broke between the two
                    bounds = self._located(clock, near)
                    assert bounds is not None
                    apart = (k - near) * self.width
                    low = max(low, bounds[0] + rate * apart - wander * abs(apart))
                    high = min(high, bounds[1] + rate * apart + wander * abs(apart))
                if low > -math.inf:
                    yield Window(clock, k, low, high)


def _cycle(before: Sequence[int]) -> list[int] | None:
    """Return a cycle among these predecessors, in the order of its edges."""
    state = [0] * len(before)
    for start in range(len(before)):
        node, path = start, []
        while node >= 0 and not state[node]:
            state[node] = 1
            path.append(node)
            node = before[node]
        if node >= 0 and state[node] == 1:
            return path[path.index(node) :][::-1]
        for seen in path:
            state[seen] = 2
    return None


def _shortest(edges: Sequence[Mapping[int, float]], potential: Sequence[float]) -> list[float]:
    """Return the length of the shortest path from node 0 to each; a potential makes all edges at least 0 long."""
    dist = [math.inf] * len(edges)
    dist[0] = 0.0
    heap = [(0.0, 0)]
    while heap:
        length, u = heapq.heappop(heap)
        if length > dist[u]:
            continue
        for v, weight in edges[u].items():
            to = length + max(0.0, weight + potential[u] - potential[v])
            if to < dist[v] - 1e-12:
                dist[v] = to
                heapq.heappush(heap, (to, v))
    return [it + potential[v] - potential[0] for v, it in enumerate(dist)]
