"""Maps and sets of messages, kept per run and not per message.

Why a file of its own: holds, tombstones, presence, attempts and delays are all maps from
(producer id, seq) to a value, and nearly always one value covers a long run. Kept as runs, 10,000
messages cost what one message costs (docs/protocol.md, section 1, "message id, span"), and a
finished producer id is a single interval.

The promise: a SpanMap behaves like a dict from (producer id, seq) to a value, and a SpanSet like a set
of (producer id, seq). In any order of operations, equal content has the same intervals, so
state() and content() are canonical: the explorer recognises a state by the one, replicas compare
themselves by the other. An operation costs O(log n + k) for n intervals of its producer id and k that
the span touches.

How it is kept. A *run* is (start, stop, value); runs of one producer id are disjoint, not empty, and
two that touch have different values. Up to SMALL_MAX of them (nearly every producer id: 1 to 3) are a
plain tuple of runs: a bisection and one concatenation change it, and because a tuple cannot
change, a clone shares it for nothing. More than that are a SortedDict from start to run, which
one map may change in place while it is the only one that has it (`_owned`).

Nothing here is safe for concurrent use; the core has one task. Listings across producer ids are in
sorted order of producer id, never in order of arrival, or two runs of one seed would differ.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, pairwise
from operator import itemgetter
from typing import Any, ClassVar, Generic, Self, TypeVar

from sortedcontainers import SortedDict

from quorumq.core.values.types import ProducerId, Span

V = TypeVar("V")
Item = TypeVar("Item")

_new: Any = tuple.__new__
"""`_new(Span, (producer_id, start, stop))` is a Span in half the time: thousands are made here for each that is
read."""

Run = tuple[int, int, Any]
"""(start, stop, value): every seq of ``start <= seq < stop`` has the value."""


class _Runs(Generic[Item]):
    """Storage of runs, listed as items, and every question without a value: the base of SpanMap and SpanSet.

    Attributes:
        runs: runs by producer id: the cheapest way to ask if there is anything. Only written here, as the next two.
        spans, messages: number of all runs, and of the messages that they cover.
    """

    __slots__ = ("_owned", "messages", "runs", "spans")

    SMALL_MAX: ClassVar[int] = 512
    """Runs that a producer id keeps in a tuple; with more it changes to a SortedDict.

    Measured: up to about 800 runs, copying the tuple is cheaper than a write to a SortedDict.
    """

    SMALL_AGAIN: ClassVar[int] = 128
    """Runs at which a SortedDict changes back. Far below SMALL_MAX, so that nothing flips to and fro."""

    MANY: ClassVar[Any] = SortedDict
    """Class that keeps more of them: a SortedDict, or one that does as such, and is asked by `MANY_OVERLAP`."""

    MANY_OVERLAP: ClassVar[Any]

    APPENDS: ClassVar[bool] = False
    """True if `MANY` has `append`, which tries to put a run behind all others."""

    def __init__(self) -> None:
        # Per producer id either a tuple of runs or a SortedDict start -> run; never an empty one. Any,
        # because sortedcontainers has no types, and (start,) is compared with runs below.
        self.runs: dict[ProducerId, Any] = {}
        # producer ids whose SortedDict is ours alone; only asked, never iterated
        self._owned: set[ProducerId] = set()
        self.spans = 0
        self.messages = 0

    # -- storage: the two methods that know both representations ---------------------------------

    def _overlap(self, producer_id: ProducerId, start: int, stop: int) -> Sequence[Run]:
        """Return the runs that share a message with ``producer_id[start, stop)``, in order, not clipped."""
        runs = self.runs.get(producer_id)
        if runs is None or start >= stop:
            return ()
        if type(runs) is not tuple:
            return self.MANY_OVERLAP(runs, start, stop)  # type: ignore[no-any-return]
        if len(runs) == 1:
            run = runs[0]
            return runs if run[0] < stop and start < run[1] else ()
        # (start + 1,) sorts before every run that begins there or later and after all others: the
        # comparison ends at the first item, or at the length, and never reaches a value.
        first = bisect_left(runs, (start + 1,))
        if first and runs[first - 1][1] > start:
            first -= 1
        return runs[first : bisect_left(runs, (stop,), first)]

    def cut(self, span: Span, most: int) -> list[tuple[Span, int]]:
        """Return ``span`` in chunks with a part in ``most`` runs at most each, and the count of runs of each."""
        producer_id, start, stop = span
        runs = self._overlap(producer_id, start, stop)
        if len(runs) <= most:
            return [(span, len(runs))]
        cuts = [start, *(run[0] for run in runs[most::most]), stop]
        return [
            (Span(producer_id, cuts[at], cuts[at + 1]), min(most, len(runs) - at * most))
            for at in range(len(cuts) - 1)
        ]

    def _write(self, producer_id: ProducerId, start: int, stop: int, chunks: Sequence[Run]) -> None:
        """Make ``producer_id[start, stop)`` hold exactly ``chunks`` (sorted, disjoint, within; may be mergeable).

        Takes in the runs that touch the span on either side, so that equal neighbours merge. If
        nothing changes, nothing is written and runs that are shared with a clone stay shared.
        """
        runs = self.runs.get(producer_id)
        first = last = 0
        old: Sequence[Run]
        if runs is None:
            old = ()
        elif type(runs) is tuple:
            first = bisect_left(runs, (start,))
            if first and runs[first - 1][1] >= start:
                first -= 1
            last = bisect_left(runs, (stop + 1,), first)
            old = runs[first:last]
        else:
            old = tuple(self.MANY_OVERLAP(runs, start - 1, stop + 1))

        new: list[Run] = []
        if old:
            run = old[0]
            if run[0] < start:
                new.append(run if run[1] <= start else (run[0], start, run[2]))
            run = old[-1]
            if run[1] > stop:
                chunks = [*chunks, run if run[0] >= stop else (stop, run[1], run[2])]
        for chunk in chunks:
            if new:
                before = new[-1]
                if before[1] == chunk[0] and (before[2] is chunk[2] or before[2] == chunk[2]):
                    new[-1] = (before[0], chunk[1], before[2])
                    continue
            new.append(chunk)
        now = tuple(new)
        if now == old:
            return

        self.spans += len(now) - len(old)
        for run in now:
            self.messages += run[1] - run[0]
        for run in old:
            self.messages -= run[1] - run[0]

        if runs is None or type(runs) is tuple:
            if runs is not None and (first or last < len(runs)):
                now = runs[:first] + now + runs[last:]
            if not now:
                del self.runs[producer_id]
            elif len(now) <= self.SMALL_MAX:
                self.runs[producer_id] = now
            else:
                self.runs[producer_id] = self.MANY([(run[0], run) for run in now])
                self._owned.add(producer_id)
            return
        rest = len(runs) + len(now) - len(old)
        if len(old) > rest:  # most of it goes: building what stays is cheaper than deleting key by key
            keys = runs.keys()
            first = runs.bisect_left(old[0][0])
            kept = [*keys[:first], *keys[first + len(old) :]]
            self.runs[producer_id] = runs = self.MANY([(key, runs[key]) for key in kept])
            self._owned.add(producer_id)
            old = ()
        elif producer_id not in self._owned:
            self.runs[producer_id] = runs = self.MANY(runs.items())
            self._owned.add(producer_id)
        starts = {run[0] for run in now}
        for run in old:
            if run[0] not in starts:
                del runs[run[0]]
        for run in now:
            runs[run[0]] = run
        if len(runs) <= self.SMALL_AGAIN:
            self._owned.discard(producer_id)
            if runs:
                self.runs[producer_id] = tuple(runs.values())
            else:
                del self.runs[producer_id]

    def _all(self, producer_id: ProducerId) -> tuple[Run, ...]:
        runs = self.runs.get(producer_id, ())
        return runs if type(runs) is tuple else tuple(runs.values())

    def put(self, span: Span, value: Any) -> None:
        """Have every message of ``span``, which is not empty, map to ``value``, in a set True; None takes it out.

        Quick if the producer id has one run at most, which is replaced whole, or if the span is after all runs.
        """
        producer_id, start, stop = span
        runs = self.runs.get(producer_id)
        if runs is None:
            if value is not None:
                self.runs[producer_id] = ((start, stop, value),)
                self.spans += 1
                self.messages += stop - start
            return
        if type(runs) is tuple:
            begin, end, before = runs[-1]
            if len(runs) == 1 and start <= begin and end <= stop:
                if value is None:
                    del self.runs[producer_id]
                    self.spans -= 1
                    self.messages -= end - begin
                elif begin != start or end != stop or before != value:
                    self.runs[producer_id] = ((start, stop, value),)
                    self.messages += (stop - start) - (end - begin)
                return
            if end <= start and value is not None and len(runs) < self.SMALL_MAX:
                if end == start and (before is value or before == value):
                    self.runs[producer_id] = (*runs[:-1], (begin, stop, before))
                else:
                    self.runs[producer_id] = (*runs, (start, stop, value))
                    self.spans += 1
                self.messages += stop - start
                return
        elif (
            self.APPENDS
            and value is not None
            and producer_id in self._owned
            and runs.append((start, stop, value))
        ):
            self.spans += 1
            self.messages += stop - start
            return
        _Runs._write(self, producer_id, start, stop, () if value is None else ((start, stop, value),))

    # -- items, which are spans, or spans with their values --------------------------------------

    def spans_of(self, producer_id: ProducerId) -> list[Item]:
        raise NotImplementedError

    def within(self, span: Span) -> list[Item]:
        """Return the covered parts of ``span``, clipped to it, in order."""
        raise NotImplementedError

    def items(self) -> list[Item]:
        """Return everything, in order of (producer id, start)."""
        return list(chain.from_iterable(map(self.spans_of, sorted(self.runs))))

    def remove(self, span: Span) -> list[Item]:
        """Take ``span`` out; return what was `within` it."""
        removed = self.within(span)
        if removed:
            self.put(span, None)
        return removed

    # -- questions without a value ---------------------------------------------------------------

    def gaps(self, span: Span) -> list[Span]:
        """Return the parts of ``span`` that are not covered, in order."""
        producer_id, at, stop = span
        overlap = self._overlap(producer_id, at, stop) if producer_id in self.runs else ()
        if not overlap:
            return [span] if at < stop else []
        gaps: list[Span] = []
        for run in overlap:
            if run[0] > at:
                gaps.append(Span(producer_id, at, run[0]))
            at = run[1]
        if at < stop:
            gaps.append(Span(producer_id, at, stop))
        return gaps

    def covers(self, span: Span) -> bool:
        """Return True if every message of ``span`` is covered, or if it is empty."""
        return not self.gaps(span)

    def onward(self, producer_id: ProducerId, start: int) -> Iterator[tuple[Span, Any]]:
        """Yield the covered parts of a producer id from ``start`` on, in order; each is looked up when it is asked for.

        The value of a SpanSet is True.
        """
        runs = self.runs.get(producer_id, ())
        if type(runs) is tuple:
            rest = iter(runs[bisect_left(runs, start, key=itemgetter(1)) :])
        else:
            first = next(runs.irange(None, start, reverse=True), None)
            rest = map(runs.__getitem__, runs.irange(first))
        for begin, stop, value in rest:
            if stop > start:
                yield Span(producer_id, max(begin, start), stop), value

    def __bool__(self) -> bool:
        return bool(self.runs)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self.messages == other.messages and self.state() == other.state()

    __hash__ = None  # type: ignore[assignment]  # it changes; state() is what can be a key

    def clone(self) -> Self:
        """Return a copy that changes on its own from now on.

        O(producer ids), and about a microsecond for one: runs are shared until either side changes that
        producer id, and only a producer id with more than SMALL_MAX intervals is then copied, once per side.
        """
        twin = object.__new__(type(self))
        twin.runs = self.runs.copy()
        twin._owned = set()
        twin.spans = self.spans
        twin.messages = self.messages
        if self._owned:
            self._owned = set()
        return twin

    def state(self) -> tuple[Any, ...]:
        """Return ((producer id, runs), …), sorted by producer id: equal content gives equal tuples.

        A run is (start, stop, value), in a SpanSet with the value True. Hashable if the values are.
        """
        return tuple([(producer_id, self._all(producer_id)) for producer_id in sorted(self.runs)])

    def content(self, producer_id: ProducerId, encode: Callable[[Any], bytes | None] | None = None) -> bytes:
        """Return bytes that are equal if two replicas agree on a producer id (docs/protocol.md, ANTI-ENTROPY).

        A function of what each of the producer id's messages maps to: ``encode(value)``, or with no ``encode`` just
        whether it is covered (then it equals the content of a SpanSet of the same messages). Messages whose
        value encodes as None are left out. b"" if nothing of the producer id is left.
        """
        # Runs whose values encode alike are taken together: what is compared is the mapping from
        # message to encoding, so that replicas that differ in what is not encoded still agree.
        parts: list[bytes] = []
        start, at, code = 0, 0, b""
        for run in self._all(producer_id):
            theirs = b"" if encode is None else encode(run[2])
            if theirs is None:
                continue
            if run[0] == at and theirs == code and start < at:
                at = run[1]
                continue
            if start < at:
                parts.append(b"%d,%d,%d:%b" % (start, at, len(code), code))
            start, at, code = run[0], run[1], theirs
        if start == at:
            return b""
        parts.append(b"%d,%d,%d:%b" % (start, at, len(code), code))
        return b"".join(parts)

    def check(self) -> None:
        """Assert all that holds between any two operations. O(everything): for tests and the simulator."""
        spans = messages = 0
        for producer_id, runs in self.runs.items():
            assert len(runs) > 0, f"{producer_id} is listed with nothing covered"
            if type(runs) is tuple:
                assert len(runs) <= self.SMALL_MAX
                assert producer_id not in self._owned
            else:
                assert len(runs) > self.SMALL_AGAIN
                assert all(start == run[0] for start, run in runs.items())
            stop, value = -1, None
            for run in self._all(producer_id):
                assert 0 <= run[0] < run[1], f"{producer_id}: empty or negative run {run}"
                assert stop <= run[0], (
                    f"{producer_id}: {run} overlaps, or is before, the one that ends at {stop}"
                )
                assert run[2] is not None, f"{producer_id}: None is no value, in {run}"
                assert stop != run[0] or value != run[2], (
                    f"{producer_id}: {run} is not merged with its neighbour"
                )
                stop, value = run[1], run[2]
                spans += 1
                messages += run[1] - run[0]
        assert self.spans == spans, f"counted {self.spans} spans, there are {spans}"
        assert self.messages == messages, f"counted {self.messages} messages, there are {messages}"
        assert self._owned <= self.runs.keys()


class SpanMap(_Runs[tuple[Span, V]], Generic[V]):
    """A map from (producer id, seq) to a value, kept as runs of equal values.

    Values are compared with ``==``, should not be changed once they are in, and are never None, which
    means "nothing here". Spans with ``start == stop`` are empty: they change and find nothing.
    """

    __slots__ = ()

    def get(self, producer_id: ProducerId, seq: int) -> V | None:
        runs = self.runs.get(producer_id)
        if runs is None:
            return None
        if type(runs) is tuple:
            run = runs[bisect_left(runs, (seq + 1,)) - 1]
            return run[2] if run[0] <= seq < run[1] else None
        overlap = self.MANY_OVERLAP(runs, seq, seq + 1)
        return overlap[0][2] if overlap else None

    def spans_of(self, producer_id: ProducerId) -> list[tuple[Span, V]]:
        return [(Span(producer_id, start, stop), value) for start, stop, value in self._all(producer_id)]

    def within(self, span: Span) -> list[tuple[Span, V]]:
        producer_id, start, stop = span
        overlap = self._overlap(producer_id, start, stop) if producer_id in self.runs else ()
        if not overlap:
            return []
        if len(overlap) == 1:
            run = overlap[0]
            if run[0] <= start and run[1] >= stop:
                return [(span, run[2])]
        return [
            (
                Span(producer_id, run[0] if run[0] > start else start, run[1] if run[1] < stop else stop),
                run[2],
            )
            for run in overlap
        ]

    def split(self, span: Span) -> list[tuple[Span, V | None]]:
        """Return the whole of ``span``, in order, in parts of one value each; None stands for a gap."""
        producer_id, at, stop = span
        overlap = self._overlap(producer_id, at, stop) if producer_id in self.runs else ()
        if not overlap:
            return [(span, None)] if at < stop else []
        if len(overlap) == 1:
            run = overlap[0]
            if run[0] <= at and run[1] >= stop:
                return [(span, run[2])]
        parts: list[tuple[Span, V | None]] = []
        for start, end, value in overlap:
            if start > at:
                parts.append((_new(Span, (producer_id, at, start)), None))
                at = start
            if end > stop:
                end = stop
            parts.append((_new(Span, (producer_id, at, end)), value))
            at = end
        if at < stop:
            parts.append((_new(Span, (producer_id, at, stop)), None))
        return parts

    def set(self, span: Span, value: V) -> None:
        """Give every message of ``span`` the value, in place of any other; equal neighbours merge.

        ValueError, and nothing changes, if the value is None, or the span begins below 0 or ends before it begins.
        """
        if value is None:
            raise ValueError(f"None is no value for {span}; remove the span instead")
        _, start, stop = span
        if not 0 <= start < stop:
            _refuse_unless_empty(span)
            return
        self.put(span, value)

    def update(self, span: Span, fn: Callable[[V | None], V | None]) -> None:
        """Replace the value of each part of ``split(span)`` by ``fn(value)``; None removes the part.

        ``fn`` sees None for a gap, must not touch this map, and is called before anything changes:
        if it raises, nothing has happened.

        Raises:
            ValueError: the span begins below 0 or ends before it begins.
        """
        producer_id, start, stop = span
        if not 0 <= start < stop:
            _refuse_unless_empty(span)
            return
        chunks = []
        for part, value in self.split(span):
            result = fn(value)
            if result is not None:
                chunks.append((part.start, part.stop, result))
        self._write(producer_id, start, stop, chunks)

    def __repr__(self) -> str:
        return f"SpanMap({{{', '.join(f'{span}: {value!r}' for span, value in self.items())}}})"


class SpanSet(_Runs[Span]):
    """A set of (producer id, seq), kept as intervals. Spans with ``start == stop`` change and find nothing."""

    __slots__ = ()

    @classmethod
    def from_spans(cls, spans: Iterable[Span]) -> Self:
        """Return the set of the spans' messages; they may overlap and have any order. ValueError as in `add`."""
        made = cls()
        for span in spans:
            made.add(span)
        return made

    def contains(self, producer_id: ProducerId, seq: int) -> bool:
        return bool(self._overlap(producer_id, seq, seq + 1))

    def spans_of(self, producer_id: ProducerId) -> list[Span]:
        return [Span(producer_id, run[0], run[1]) for run in self._all(producer_id)]

    def within(self, span: Span) -> list[Span]:
        producer_id, start, stop = span
        overlap = self._overlap(producer_id, start, stop) if producer_id in self.runs else ()
        if not overlap:
            return []
        if len(overlap) == 1:
            run = overlap[0]
            if run[0] <= start and run[1] >= stop:
                return [span]
        return [
            Span(producer_id, run[0] if run[0] > start else start, run[1] if run[1] < stop else stop)
            for run in overlap
        ]

    def add(self, span: Span) -> list[Span]:
        """Put ``span`` into the set, or ValueError as `SpanMap.set`; return the parts that were not in it, in order."""
        _, start, stop = span
        if not 0 <= start < stop:
            _refuse_unless_empty(span)
            return []
        added = self.gaps(span)
        if added:
            self.put(span, True)
        return added

    def __repr__(self) -> str:
        return f"SpanSet({{{', '.join(map(str, self.items()))}}})"


def across(span: Span, tables: Sequence[_Runs[Any]]) -> list[tuple[Span, list[Any]]]:
    """Return ``span`` in parts over which each of ``tables`` has one value, with the values, None for a gap.

    The value of a SpanSet is True.
    """
    producer_id, start, stop = span
    columns: list[Sequence[Run]] = []
    values: list[Any] = []
    whole = True
    for table in tables:
        overlap: Sequence[Run] = table.runs.get(producer_id, ())
        if overlap:
            if len(overlap) != 1 or type(overlap) is not tuple:
                overlap = table._overlap(producer_id, start, stop)
            elif overlap[0][0] >= stop or overlap[0][1] <= start:
                overlap = ()
        columns.append(overlap)
        if overlap:
            first = overlap[0]
            values.append(first[2])
            if first[0] > start or first[1] < stop:
                whole = False
        else:
            values.append(None)
    if whole:  # by far the most
        return [(span, values)]
    edges = {start, stop}
    for runs in columns:
        for run in runs:
            if run[0] > start:
                edges.add(run[0])
            if run[1] < stop:
                edges.add(run[1])
    parts: list[tuple[Span, list[Any]]] = []
    heads = [0] * len(columns)
    for at, end in pairwise(sorted(edges)):
        values = []
        for column, runs in enumerate(columns):
            head = heads[column]
            if head < len(runs) and runs[head][1] <= at:
                head = heads[column] = head + 1
            values.append(runs[head][2] if head < len(runs) and runs[head][0] <= at else None)
        parts.append((_new(Span, (producer_id, at, end)), values))
    return parts


def _overlap_sorted(runs: Any, start: int, stop: int) -> list[Run]:
    """Return the runs of a SortedDict that share a message with ``[start, stop)``, in order, not clipped."""
    overlap: list[Run] = []
    # irange and not bisect and peekitem: positions need an index that many writes throw away.
    for key in runs.irange(None, start, reverse=True):
        run = runs[key]
        if run[1] > start:
            overlap.append(run)
            if run[1] >= stop:
                return overlap
        break
    if stop - start > 1:
        overlap.extend([runs[key] for key in runs.irange(start, stop, (False, False))])
    return overlap


_Runs.MANY_OVERLAP = staticmethod(_overlap_sorted)


def _refuse_unless_empty(span: Span) -> None:
    """Raise ValueError for a span that cannot be stored, unless it is merely empty."""
    if span.start < 0 or span.start > span.stop:
        raise ValueError(f"{span} is not a span of messages: need 0 <= start <= stop")
