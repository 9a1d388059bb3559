"""Facts of a whole run, topic, group or place: phases, registers, purges, and lines that could not be read.

All of it is small beside the lines, and stands beside each message: so no question about one message needs to look
for another.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from quorumq.audit.clocks import Times
from quorumq.audit.lines import Stretch, Summary
from quorumq.audit.moment import NOWHERE, Moment, sure_by
from quorumq.audit.remainder import Remainder, by_key
from quorumq.audit.replicas import Slots, first_of_each
from quorumq.audit.table import Writer
from quorumq.history import Row

LOSSES: Final = ("wipe", "restore", "flip", "rot", "damage")
"""Faults that take something of a node's disk."""

DEAD: Final = "!dead"
"""Suffix of the name of a group of dead letters."""


class Run(NamedTuple):
    """Facts of a run: times of its heal and drain, number of replicas, and missing lines.

    Attributes:
        unstopped: True if a real node was killed, or still runs, or none wrote a history. Its last acts may be in no
            file.
        simulated: True if all that was done is in the history. In the end every node was there and knew of everything.
        day_asked: True if delays may be over early, because half as many nodes as replicas, or more, started again. In
            a simulated run only nodes with a time of day that was turned count.
        steady: True if no node started again, or lost anything, so all know how old messages are.
        gaps: count of lines or writers that were not read.
        lossy: True if the absence of a line proves nothing.
    """

    run: str
    healed_at: float | None
    healed_high: float | None
    bound: float | None
    drained_at: float | None
    ended_at: float | None
    ends_at: float
    begins_at: float
    rf: float | None
    hold_min: float | None
    simulated: bool
    unstopped: bool
    steady: bool
    truncated: int
    lines: int
    writers: int
    clocks: int
    day_asked: bool
    gaps: int
    lossy: bool


class Confirmed(NamedTuple):
    """A creation, rewind or deletion of a group that was confirmed; a deletion is as a rewind."""

    generation: int
    at: Moment
    rewind: bool


class Skip(NamedTuple):
    """A request from latest: moments of its send and its end; ``rewind`` if it was to rewind an existing group."""

    sent: Moment
    done: Moment | None
    rewind: bool


class Register(NamedTuple):
    """A generation of a group, as a node has it."""

    generation: int
    from_ms: int
    at: Moment


class Group(NamedTuple):
    """Facts of a group.

    Attributes:
        registers: generation and beginning of each register that a node had or a client learned of.
        known: registers that a node had, with the moment.
        confirmed, skips: see there.
        deletions: the generations of its deletions that were confirmed.
        guest: True if a FETCH may have made it, and then ``registered`` nodes have its register.
        founded: moment of its first confirmation; None if there is none.
        since: moment at which the last of these nodes had it; None if there is none.
        seen: the newest generation that was delivered or acked; None if there is none.
        kept: True if its topic keeps messages that no group needs.
        current, current_from: the newest generation that a node has in the end, or that a client learned of. One that
            a node had and lost in a crash, before a majority had it, never was.
        unregistered: True if a newer generation was delivered than any register names: its beginning is not known.
        buried: the generation of the last deletion, which voids dead letters.
        deleted: True if a deletion of the topic did not fail, so nothing of it has to be there in the end.
        unmade: True if a deletion of the group did not fail, in a topic that drops messages that no group needs.
        made_at: seconds of the run at which a node first had it; None if there is none.
        widest: slots of the largest replica set that a layout of its topic has.
    """

    registers: Sequence[tuple[int, int]] = ()
    known: Sequence[Register] = ()
    confirmed: Sequence[Confirmed] = ()
    skips: Sequence[Skip] = ()
    deletions: frozenset[int] = frozenset()
    guest: bool = False
    founded: Moment | None = None
    since: Moment | None = None
    registered: int = 0
    seen: int | None = None
    kept: bool = False
    current: int = 0
    current_from: int = 0
    unregistered: bool = False
    buried: int = 0
    deleted: bool = False
    unmade: bool = False
    made_at: float | None = None
    widest: int = 0


class Purge(NamedTuple):
    """A purge of a place that did not fail: of dead letters or the backlog, by name or of all.

    Attributes:
        spans: its messages; None if it was of all that there were.
        sent, done: moments of the request and of its confirmation; None if there is none.
        generation: the confirmed generation when it was sent.
    """

    dead: bool
    spans: Sequence[tuple[str, int, int]] | None
    sent: Moment | None
    done: Moment | None
    generation: int

    def names(self, producer_id: str, seq: int) -> bool:
        """Return True if it was of this message, or of all there are."""
        return self.spans is None or any(o == producer_id and a <= seq < b for o, a, b in self.spans)


class Location(NamedTuple):
    """Facts of a partition and group.

    Attributes:
        purges: the purges, in any order.
        to_list: nodes that are to list its dead letters in the end; None if no node listed any.
        listing: nodes that listed any.
        inventories: moments at which complete listings of its dead letters began.
    """

    purges: Sequence[Purge] = ()
    to_list: frozenset[str] | None = None
    listing: frozenset[str] = frozenset()
    inventories: Sequence[Moment] = ()


class Context(NamedTuple):
    """All that is known beside the lines about messages.

    Attributes:
        groups: existing groups by run and topic, sorted. A group that was asked for, without another line about it,
            may never have existed.
        producer_ids: writers of each session that a producer wrote of, by run and producer id.
        read: run and topic of messages that were delivered or listed.
        into: run and topic of outputs that were derived.
        faults: fault, begin, end and nodes, by run.
        doubled: run and writer of files that were given twice.
        moved: the replica sets of each partition that was moved, by run, topic and partition.
        reach: moment of each writer's last line, by run, of runs that may go on: later lines may be in no file yet.
    """

    runs: Mapping[str, Run]
    of_groups: Mapping[tuple[str, str, str], Group]
    of_locations: Mapping[tuple[str, str, int, str], Location]
    groups: Mapping[tuple[str, str], tuple[str, ...]]
    producer_ids: Mapping[tuple[str, str], tuple[str, ...]]
    read: frozenset[tuple[str, str]]
    into: frozenset[tuple[str, str]]
    faults: Mapping[str, Sequence[tuple[str, float, float, tuple[str, ...]]]]
    doubled: frozenset[tuple[str, str]]
    times: Times
    moved: Mapping[tuple[str, str, int], Sequence[Slots]] = {}
    reach: Mapping[str, Mapping[str, Moment]] = {}


def merged(summaries: Iterable[Summary]) -> Summary:
    """Return the summaries of several stretches of lines as one, a writer's stretches beside each other."""
    total = Summary([], [], set(), set(), set(), set(), set(), [], {})
    for it in summaries:
        total.lines.extend(it.lines)
        total.stretches.extend(it.stretches)
        total.unread.extend(it.unread)
        for mine, more in zip(total[2:7], it[2:7], strict=True):
            mine |= more  # type: ignore[operator]
        for file, runs in it.files.items():
            total.files.setdefault(file, set()).update(runs)
    unread = [
        it._replace(run=next(iter(runs)))
        if it.run is None and len(runs := total.files.get(it.file, set())) == 1
        else it
        for it in total.unread
    ]
    return total._replace(unread=unread)


# ------------------------------------------------------------------------------ runs


def _setting(rows: Iterable[Row], name: str) -> float | None:
    """Return a setting of the run as a number; None if it is absent, no number, or one that no run can have."""
    stated = []
    for row in rows:
        try:
            stated.append(float(row["settings"].get(name)))
        except (TypeError, ValueError):
            continue
    return max((it for it in stated if 1e-3 <= it <= 1e6), default=None)


def of_run(
    run: str,
    rows: Sequence[Row],
    stretches: Sequence[Stretch],
    times: Times,
    rest: Sequence[Remainder],
    drained: bool,
) -> Run:
    """Return the facts of a run from its lines about it as a whole."""
    kinds = by_key(rows, lambda it: it["kind"])
    phases = {
        name: [it for it in kinds.get("phase", ()) if it["phase"] == name]
        for name in ("healed", "drained", "end")
    }
    at = {name: min((it["moment"].t for it in items), default=None) for name, items in phases.items()}
    seconds = [it["seconds"] for it in phases["healed"] if it.get("seconds") is not None]
    settings = kinds.get("settings", ())
    clocks = {times.of[(run, it.writer.who)].clock for it in stretches}
    simulated = any(it.get("clock") == "simulated" for it in settings)
    again = [it for it in kinds.get("start", ()) if it["incarnation"] > 1]
    turned = {
        node
        for it in kinds.get("fault", ())
        if it["fault"] in ("wall-jump", "wrong-clock")
        for node in it.get("nodes", ())
    }
    wrong = {it["who"].removeprefix("node:") for it in again}
    lost = any(it["fault"] in LOSSES for it in kinds.get("fault", ()))
    starts = 0 if simulated else len(kinds.get("start", ()))
    stops = 0 if simulated else len(kinds.get("stop", ()))
    no_node = not any(it.writer.who.startswith("node:") for it in stretches)
    ends = [
        it.t
        for it in times.each([(it.writer, reading) for it in stretches for reading in (it.first, it.last)])
    ]
    rf = _setting(settings, "rf")
    drained_at = at["drained"]
    if drained and at["healed"] is None and drained_at is None:
        drained_at = max(ends)
    mine = [it for it in rest if it.run in ("", run)]
    return Run(
        run, at["healed"], min((it["moment"].high for it in phases["healed"]), default=None),
        max(seconds, default=None), drained_at, at["end"], max(ends), min(ends), rf,
        _setting(settings, "hold_min"), simulated,
        starts > stops or no_node, not again and not lost, len(kinds.get("truncated", ())),
        sum(it.lines for it in stretches), len({it.writer.who for it in stretches}), len(clocks - {NOWHERE}),
        2 * len(wrong & turned if simulated else wrong) >= (rf or 3),
        sum(it.count for it in mine if it.gap), any(it.lossy for it in mine),
    )  # fmt: skip


def faults_of(rows: Sequence[Row]) -> list[tuple[str, float, float, tuple[str, ...]]]:
    """Return the faults of a run, each with its begin and its end: undone, or healed, or at once."""
    healed = sorted(it["moment"].t for it in rows if it.get("phase") == "healed")
    result = []
    for row in rows:
        if row["kind"] in ("fault", "crash"):
            begin = row["moment"].t
            end = begin + (row.get("seconds") or 0.0)
            end = min([end, *(it for it in healed if it >= begin)][:2])
            result.append((str(row.get("fault", row["kind"])), begin, end, tuple(row.get("nodes", ()))))
    return sorted(result, key=lambda it: it[1:3])


# ---------------------------------------------------------------------------- groups


def did_not_fail(rows: Iterable[Row]) -> list[list[Row]]:
    """Return the lines of each request that did not fail."""
    calls = by_key(
        rows, lambda it: (it["who"], it.get("op"), it.get("partition"), it.get("group"), it.get("topic"))
    )
    return [items for items in calls.values() if not any(it.get("outcome") == "fail" for it in items)]


def _is_ok(row: Row) -> bool:
    return row.get("outcome") == "ok" and (row.get("messages") is None or row["messages"] > 0)


def _first(rows: Iterable[Row]) -> Moment | None:
    return min((it["moment"] for it in rows), default=None)


def skips_of(rows: Sequence[Row]) -> list[Skip]:
    """Return the requests from latest of a group that did not fail.

    Each skips the messages that it finds until it is done. One of unknown outcome that makes the group is over once any
    request has found the group made. One that rewinds, which is a PURGE, may go on for ever. Only registers show a
    group that a client without a history made.
    """
    result = []
    for call in did_not_fail(it for it in rows if it["kind"] in ("set_group", "fetch")):
        sent = _first(it for it in call if it.get("outcome") == "invoke" and it.get("start") == "latest")
        if sent is not None:
            done = _first(it for it in call if it.get("outcome") == "ok")
            result.append(Skip(sent, done, any(it.get("rewind") for it in call)))
    stated = [it for it in rows if it["kind"] == "register" and it.get("latest") is not None]
    for items in by_key(stated, lambda it: it["generation"]).values():
        result.append(Skip(min(it["moment"] for it in items), None, False))
    return result


def of_group(rows: Sequence[Row], seen: int | None, *, kept: bool, deleted: bool) -> Group:
    """Return the facts of a group from the lines that name it."""
    register = [it for it in rows if it["kind"] == "register"]
    fetched = [it for it in rows if it["kind"] == "fetch" and _is_ok(it)]
    created = [it for it in rows if it["kind"] == "set_group" and _is_ok(it)]
    unmade = [it for it in rows if it["kind"] == "delete_group" and _is_ok(it)]
    confirmed = [
        Confirmed(it.get("generation", -1), it["moment"], bool(it.get("rewind"))) for it in created + fetched
    ]
    confirmed += [
        Confirmed(it["generation"], it["moment"], True) for it in unmade if it.get("generation") is not None
    ]
    stated = [it for it in created if it.get("generation") is not None and it.get("from_ms") is not None]
    registers = {(it["generation"], it["from_ms"]) for it in register + stated}
    last: list[Row] = []
    since = []
    for mine in by_key(register, lambda it: it["who"]).values():
        last.append(max(mine, key=lambda it: (it["moment"].t, it["generation"])))
        since.append(min(it["moment"] for it in mine))
    newest = max([(it["generation"], it["from_ms"]) for it in last + stated], default=(0, 0))
    deletions = frozenset(it["generation"] for it in unmade if it.get("generation") is not None)
    gone = bool(did_not_fail(it for it in rows if it["kind"] == "delete_group"))
    return Group(
        sorted(registers),
        [Register(it["generation"], it["from_ms"], it["moment"]) for it in register],
        confirmed, skips_of(rows), deletions, any(it["kind"] == "fetch" for it in rows),
        _first([*fetched, *(it for it in created if not it.get("rewind"))]), max(since, default=None), len(last), seen,
        kept, newest[0], newest[1], seen is not None and seen > max((it for it, _ in registers), default=0),
        max([it["buried"] for it in last if it.get("buried") is not None] + list(deletions), default=0),
        deleted, gone and not kept, min((it["moment"].t for it in register), default=None),
    )  # fmt: skip


def keeping(rows: Sequence[Row]) -> Callable[[str], bool]:
    """Return a test of topics: True if the run says that the topic keeps messages that no group needs."""
    stated = any(it["kind"] == "settings" and it["settings"].get("kept") is True for it in rows)
    dropping = {it["topic"] for it in rows if it["kind"] == "set_topic" and _drops(it)}
    return lambda topic: stated and topic not in dropping


def _drops(row: Row) -> bool:
    for name in ("settings", "defaults"):
        try:
            if float(row.get(name, {}).get("retention_s")) == 0:
                return True
        except (TypeError, ValueError):
            continue
    return False


def purges_of(rows: Iterable[Row], confirmed: Sequence[Confirmed]) -> list[Purge]:
    """Return the purges of a place that did not fail."""
    result = []
    calls = did_not_fail(it for it in rows if it["kind"] == "purge")
    for call in calls:
        sent = _first(it for it in call if it.get("outcome") == "invoke")
        done = _first(it for it in call if it.get("outcome") == "ok")
        spans = max((it["spans"] for it in call if it.get("spans") is not None), default=None)
        newest = max((it.generation for it in confirmed if it.rewind and sure_by(it.at, sent)), default=0)
        result.append(Purge(call[0]["group"].endswith(DEAD), spans, sent, done, newest))
    return result


# --------------------------------------------------------------------------- together


def contexts(
    summary: Summary, times: Times, rows: Sequence[Row], doubled: Iterable[tuple[str, str]], rest: Sequence[Remainder],
    *, drained: bool,
) -> Context:  # fmt: skip
    """Return the context from the results of `merged` and `once`.

    Args:
        rows: the lines of ``summary``, each once.
        doubled: run and writer of files that were given twice.
        rest: the result of `remainder`.
        drained: True if a run that does not say so is over, with nothing left to deliver.
    """
    for row, moment in zip(rows, times.each([written(it) for it in rows]), strict=True):
        row["moment"] = moment
        row["grp"] = None if row.get("group") is None else row["group"].removesuffix(DEAD)
    by_run, of_writers = (
        by_key(rows, lambda it: it["run"]),
        by_key(summary.stretches, lambda it: it.writer.run),
    )
    runs = {
        run: of_run(run, by_run.get(run, ()), items, times, rest, drained)
        for run, items in sorted(of_writers.items())
    }
    of_groups, groups = _groups(summary, rows, by_run)
    layouts = by_key(
        (it for it in rows if it["kind"] == "layout"), lambda it: (it["run"], it["topic"], it["partition"])
    )
    moved = {
        key: first_of_each(Slots(it["layout"], it["nodes"], it["who"], it["moment"]) for it in items)
        for key, items in layouts.items()
    }
    return Context(
        runs, of_groups, _locations(summary, rows, of_groups, runs, times, moved), groups,
        {
            key: tuple(who for *_, who in items)
            for key, items in by_key(sorted(summary.producer_ids), lambda it: it[:2]).items()
        },
        frozenset((run, topic) for run, topic, call in summary.calls if call.kind in ("deliver", "list")),
        frozenset(summary.into),
        {run: result for run, items in sorted(by_run.items()) if (result := faults_of(items))},
        frozenset(doubled), times, moved,
        {run: reach(items, times) for run, items in of_writers.items()
         if runs[run].drained_at is None and not runs[run].simulated},
    )  # fmt: skip


def reach(stretches: Sequence[Stretch], times: Times) -> dict[str, Moment]:
    """Return the moment of each writer's last line."""
    result: dict[str, Moment] = {}
    for it, last in zip(stretches, times.each([(it.writer, it.last) for it in stretches]), strict=True):
        before = result.get(it.writer.who, last)
        result[it.writer.who] = max(before, last, key=lambda moment: moment.t)
    return result


def written(row: Row) -> tuple[Writer, float]:
    """Return the writer of a line, and its time by the writer's own clock, in seconds."""
    return Writer(row["run"], row["who"], row["within"]), row["at"]


def _groups(
    summary: Summary, rows: Sequence[Row], by_run: Mapping[str, Sequence[Row]]
) -> tuple[dict[tuple[str, str, str], Group], dict[tuple[str, str], tuple[str, ...]]]:
    there: dict[tuple[str, str], set[str]] = defaultdict(set)
    seen: dict[tuple[str, str, str], int] = {}
    named: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    for run, topic, call in summary.calls:
        if call.group is not None:
            key = (run, topic, call.group.removesuffix(DEAD))
            named[key] = []
            if call.kind != "derive":
                there[key[:2]].add(key[2])
            if call.kind in ("deliver", "ack"):
                seen[key] = max(seen.get(key, -1), call.generation or 0)
    for row in rows:
        if row["grp"] is not None and row.get("topic") is not None:
            named[(row["run"], row["topic"], row["grp"])].append(row)
            if row["kind"] in ("register", "list") or (
                row["kind"] == "set_group" and row.get("outcome") == "ok"
            ):
                there[(row["run"], row["topic"])].add(row["grp"])
    keeps = {run: keeping(items) for run, items in by_run.items()}
    deleted = {
        (call[0]["run"], call[0]["topic"])
        for run in by_run.values()
        for call in did_not_fail(it for it in run if it["kind"] == "delete_topic")
    }
    widest: dict[tuple[str, str], int] = defaultdict(int)
    for row in rows:
        if row["kind"] == "layout":
            widest[(row["run"], row["topic"])] = max(widest[(row["run"], row["topic"])], len(row["nodes"]))
    of_groups = {
        key: of_group(
            items, seen.get(key), kept=key[0] in keeps and keeps[key[0]](key[1]), deleted=key[:2] in deleted
        )._replace(widest=widest.get(key[:2], 0))
        for key, items in named.items()
    }
    return of_groups, {key: tuple(sorted(items)) for key, items in there.items()}


def _locations(
    summary: Summary, rows: Sequence[Row], of_groups: Mapping[tuple[str, str, str], Group], runs: Mapping[str, Run],
    times: Times, moved: Mapping[tuple[str, str, int], Sequence[Slots]],
) -> dict[tuple[str, str, int, str], Location]:  # fmt: skip
    listing: dict[tuple[str, str, int, str], set[str]] = defaultdict(set)
    having: dict[tuple[str, str, int], set[str]] = defaultdict(set)
    for run, topic, partition, group, who in summary.lists:
        listing[(run, topic, partition, group.removesuffix(DEAD))].add(who)
    for run, topic, partition, who in summary.stores:
        if runs[run].simulated:
            having[(run, topic, partition)].add(who)
    result: dict[tuple[str, str, int, str], Location] = {}
    for key, listers in listing.items():
        to_list = listers | having.get(key[:3], set())
        if key[:3] in moved:  # a node without a slot in the end has nothing to list
            to_list &= {f"node:{node}" for node in max(moved[key[:3]]).nodes}
        result[key] = Location((), frozenset(to_list), frozenset(listers & to_list))
    named = [it for it in rows if it["grp"] is not None and it.get("partition") is not None]
    for key, items in by_key(named, lambda it: (it["run"], it["topic"], it["partition"], it["grp"])).items():
        mine = of_groups[(key[0], key[1], key[3])]
        whole = [
            it for it in items
            if it["kind"] == "list" and not it.get("spans") and it.get("complete") and it.get("asked") is not None
            and it["state"] in ("dead", "all") and not it["group"].endswith(DEAD)
        ]  # fmt: skip
        started = times.each([written(it) for it in whole], [it["asked"] for it in whole])
        purges = purges_of(items, mine.confirmed)
        if started or purges:
            result[key] = result.get(key, Location())._replace(purges=purges, inventories=started)
    return result
