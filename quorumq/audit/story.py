"""All lines about one message, for one group: the input of the checks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from quorumq.audit.clocks import instants_of
from quorumq.audit.context import DEAD, Context, Group, Location, Purge, Run
from quorumq.audit.moment import Moment, maybe_by, seconds, sure_by
from quorumq.audit.replicas import ReplicaSet, Slots, counting
from quorumq.audit.table import Call, Numbers, Table, by_block, spread
from quorumq.core.values.names import begins_ms_of

NO_GROUP: Final = Group()
NO_LOCATION: Final = Location()

STORY_MAX: Final = 40
"""Most lines of a story that is shown."""


class Event(msgspec.Struct, gc=False):
    """A line about messages, as each of them sees it.

    Attributes:
        grp: the name of the group, without `!dead`; None if it concerns all. ``dead`` says if it had that.
        client: True if a client wrote it.
    """

    kind: str
    outcome: str | None
    grp: str | None
    dead: bool
    state: str | None
    generation: int
    n: int
    interrupted: bool
    conflict: bool
    client: bool
    who: str
    within: float
    owner: str | None
    token: str | None
    attempt: int
    op: int
    retries: int
    made: int
    at: Moment
    due: Moment | None
    dies: float | None
    into: tuple[str, int, str, int, int] | None
    until: Moment | None
    asked: Moment | None


class Said(NamedTuple):
    """An event of one message, with the checksum of its bytes; -1 if none is said."""

    event: Event
    crc: int


def crc_text(crc: int) -> str:
    return f"{crc:08x}"


class Events:
    """The messages of a part: each with its events, in the order of the lines.

    Attributes:
        at, asked: t, low and high for each row: the time of the line, and the time at which its FETCH was sent.
        clock: number of the clock of each row.
        of: row of each event; ``crc``: its checksum, -1 if there is none.
        starts: index of each message's first event, in the order of ``space`` and ``seq``.
    """

    def __init__(self, table: Table, context: Context) -> None:
        self.table, self.context = table, context
        self.rows = rows = _once(table, context)
        clock_rows = context.times.clock_rows(table.writers)[rows["writer"]]
        self.at, self.until, self.asked = context.times.instants(
            clock_rows, rows["at"], rows["until"], rows["asked"]
        )
        self.clock, self.within = clock_rows[:, 1], clock_rows[:, 6]
        sizes = rows["stop"] - rows["start"]
        of = np.repeat(np.arange(len(rows)), sizes)
        seq = spread(rows["start"], sizes)
        crc = np.where(rows["crc"][of] >= 0, rows["crc"][of] + seq - rows["start"][of], -1)
        order = np.lexsort((seq, rows["space"][of]))
        self.of, seq = of[order], seq[order]
        values = np.append(table.crcs.astype(np.int64), -1)
        self.crc: Numbers = values[crc[order]]  # -1 is the last one
        space = rows["space"][self.of]
        new = (np.diff(space, prepend=-1) != 0) | (np.diff(seq, prepend=-1) != 0)
        self.starts = np.flatnonzero(new)
        self.ends = np.append(self.starts[1:], len(self.of))
        self.space, self.seq = space[self.starts], seq[self.starts]

    def messages(self, which: NDArray[np.bool_]) -> Iterator[tuple[int, int, list[Said]]]:
        """Return these messages: the number of the space, that of each, and the lines about it."""
        starts, ends = self.starts[which], self.ends[which]
        picked = spread(starts, ends - starts)
        rows, of = np.unique(self.of[picked], return_inverse=True)
        events = self._events(rows)
        said = list(map(Said, [events[it] for it in of.tolist()], self.crc[picked].tolist()))
        begin = 0
        for space, seq, size in zip(
            self.space[which].tolist(), self.seq[which].tolist(), (ends - starts).tolist(), strict=True
        ):
            yield space, seq, said[begin : begin + size]
            begin += size

    def _events(self, which: Numbers) -> list[Event]:
        rows, table, clock = self.rows[which], self.table, self.clock[which]
        t, low, high = (it[which] for it in self.at)
        at = instants_of(t, low, high, clock)
        of_calls = list(map(_of_call, table.calls))
        columns = zip(*(of_calls[it] for it in rows["call"].tolist()), strict=True)
        mores = [table.mores[it] for it in rows["more"].tolist()]
        whos = [table.writers[it].who for it in rows["writer"].tolist()]
        owners, tokens = [*table.owners, None], [*table.tokens, None]
        return list(map(
            Event, *columns,
            [who.startswith("client:") for who in whos], whos, self.within[which].tolist(),
            [owners[it] for it in rows["owner"].tolist()], [tokens[it] for it in rows["token"].tolist()],
            rows["attempt"].tolist(), rows["op"].tolist(), rows["retries"].tolist(),
            rows["made"].tolist(), at,
            [None if it.due is None else moment.later(it.due) for it, moment in zip(mores, at, strict=True)],
            [it.dies for it in mores], [it.into for it in mores],
            _known([it[which] for it in self.until], clock), _known([it[which] for it in self.asked], clock),
        ))  # fmt: skip


def _once(table: Table, context: Context) -> NDArray[Any]:
    """Return the rows, each once of a file that was given twice, and none that reaches into another part."""
    rows = by_block(table.rows)
    twice = np.array([(it.run, it.who) in context.doubled for it in table.writers], bool)
    if not twice.any() or not len(rows):
        return rows
    mine = twice[rows["writer"]]
    keys = rows[mine].copy()
    keys["crc"], keys["lead"] = 0, True
    columns = np.stack([keys[name].astype(float) for name in keys.dtype.names or ()], axis=1)
    _, first = np.unique(np.nan_to_num(columns, nan=-1.0), axis=0, return_index=True)
    return np.concatenate((rows[~mine], rows[mine][np.sort(first)]))


def _of_call(call: Call) -> tuple[Any, ...]:
    """Return the first fields of `Event`."""
    grp = None if call.group is None else call.group.removesuffix(DEAD)
    return (
        call.kind, call.outcome, grp, grp != call.group, call.state, call.generation or 0, call.n or 0,
        bool(call.interrupted), call.conflict,
    )  # fmt: skip


def _known(times: Sequence[NDArray[Any]], clock: NDArray[Any]) -> list[Moment | None]:
    t, low, high = times
    result: list[Moment | None] = [None] * len(t)
    items = np.flatnonzero(~np.isnan(t))
    for at, moment in zip(
        items.tolist(), instants_of(t[items], low[items], high[items], clock[items]), strict=True
    ):
        result[at] = moment
    return result


def rf_of(topic: str, run: Run) -> float | None:
    """Return the number of replicas of a topic: of its label, or of all topics of the run."""
    _, slash, number = topic.rpartition("/rf")
    return int(number) if slash and number.isdigit() else run.rf


class Message:
    """A message as all groups see it alike: its publishes, and the nodes that have a copy."""

    def __init__(
        self,
        name: tuple[str, str, int, str],
        seq: int,
        said: Sequence[Said],
        run: Run,
        producers: Sequence[str],
        moved: Sequence[Slots] = (),
        reach: Mapping[str, Moment] = {},
    ) -> None:
        self.run, self.topic, self.partition, self.producer_id = name
        self.moved, self.reach = moved, reach
        self.seq, self.said, self.of_run, self.producers = seq, said, run, producers
        self.shared = [it for it in said if it.event.grp is None]
        publishes = [it for it in self.shared if it.event.kind == "publish"]
        asked = [it for it in publishes if it.event.outcome == "invoke"]
        confirmed = [it.event.at for it in publishes if it.event.outcome == "ok"]
        crcs = [it.crc for it in asked if it.crc >= 0]
        self.published = [it.event.at for it in publishes]
        self.tries = len(asked)
        self.stored = min(confirmed, default=None)
        self.sent = min((it.event.at for it in asked), default=None)
        self.last_try = max((it.event.at for it in asked), default=None)
        self.first_crc = min(crcs, default=-1)
        self.last_crc = max(crcs, default=-1)
        made_ms = min((it.event.made for it in asked if it.event.made >= 0), default=None)
        self.made_ms = None if made_ms is None else begins_ms_of(self.producer_id, made_ms)
        self.dies = max((it.event.dies for it in asked if it.event.dies is not None), default=None)
        self.due_at = min((it.event.due for it in asked if it.event.due is not None), default=None)
        firsts = {(it.event.who, it.event.op) for it in asked}
        self.misnamed = [
            it.event
            for it in asked
            if it.event.retries >= 0 and (it.event.who, it.event.retries) not in firsts
        ]
        self.conflict = any(it.event.conflict and it.event.outcome == "fail" for it in publishes)
        self.copies = [(it.event.at, it.event.who) for it in self.shared if it.event.kind == "store"]

    def has_all(self, until: Moment, *writers: str) -> bool:
        """Return True if the files have all lines until then: of these writers, or of those with such a role."""
        lasts = (
            last for who, last in self.reach.items() if who in writers or who.partition(":")[0] in writers
        )
        return all(sure_by(until, last) for last in lasts)

    @property
    def id(self) -> str:
        return f"{self.topic}/{self.partition}/{self.producer_id}/{self.seq}"

    @cached_property
    def rf(self) -> float | None:
        """Return the number of replicas that it was made with."""
        return rf_of(self.topic, self.of_run)

    @cached_property
    def counting(self) -> list[ReplicaSet]:
        """Return the replica sets that may have counted its publish; [] if its number of replicas is not known."""
        return [] if self.rf is None else counting(self.moved, self.rf, self.sent, self.stored)

    @cached_property
    def durable_on(self) -> list[str]:
        """The nodes that may have had it when it was confirmed: clocks must show that a copy was not there."""
        return sorted({who for at, who in self.copies if maybe_by(at, self.stored)})


class Story:
    """A message as one group sees it."""

    def __init__(
        self, message: Message, grp: str, turn: int, mine: Sequence[Said], group: Group, location: Location
    ) -> None:
        self.message, self.grp, self.turn, self.mine = message, grp, turn, mine
        self.group, self.location, self.run = group, location, message.of_run
        self.kinds: dict[str, list[Event]] = {}
        for event, _ in mine:
            self.kinds.setdefault(event.kind, []).append(event)
        self.covered = message.made_ms is None or message.made_ms >= group.current_from

    def of(self, kind: str, *, dead: bool | None = False) -> list[Event]:
        """Return the events of a kind: of the group itself, of its dead letters, or of both if ``dead`` is None."""
        items = self.kinds.get(kind, [])
        return items if dead is None else [it for it in items if it.dead == dead]

    @cached_property
    def deaths(self) -> list[Event]:
        """The lines that confirm a dead letter: a client's, or that of the node with which a majority has buried it."""
        lines = [it for it in self.of("dead_letter") if it.outcome == "ok"]
        nodes: dict[tuple[int, int], set[str]] = {}
        buried: set[tuple[int, int]] = set()
        message, rf = self.message, self.message.rf or 3
        result = [it for it in lines if it.client]
        for it in sorted((it for it in lines if not it.client), key=lambda it: it.at):
            life = (it.generation, it.n)
            having = nodes.setdefault(life, set())
            having.add(it.who)
            if life not in buried and len(having) > 1 and all(
                one.has_majority(having) for one in counting(message.moved, rf, it.at, it.at)
            ):  # fmt: skip
                buried.add(life)
                result.append(it)
        return result

    def purged(self, dead: bool) -> Iterator[Purge]:
        """Yield the purges that named it, or all there were."""
        return (
            it
            for it in self.location.purges
            if it.dead == dead and it.names(self.message.producer_id, self.message.seq)
        )

    def lines(self) -> list[str]:
        """Return the story in words, in the order of one clock, with the error of each time that is not exact."""
        every = [*self.message.shared, *self.mine]
        items = sorted(every, key=lambda it: it.event.at.t)
        stated = [_line(it) for it in items[:STORY_MAX]]
        return stated if len(items) <= STORY_MAX else [*stated, f"and {len(items) - STORY_MAX} lines more"]


def _line(said: Said) -> str:
    event = said.event
    doubt = (event.at.high - event.at.low) / 2
    parts = [f"{event.at.t:.4f} s"]
    if doubt > 1e-9:
        parts.append(f"± {doubt:.4f} s" if event.at.located else "by a clock that is not placed")
    parts += [event.who, event.kind.replace("_", " ")]
    parts += [it for it in (event.outcome, event.state) if it]
    if event.n:
        parts.append(f"n = {event.n}")
    if event.generation:
        parts.append(f"generation {event.generation}")
    if event.owner:
        parts.append(f"as {event.owner}")
    if event.until is not None:
        parts.append(f"until {seconds(event.until.t)}")
    return " ".join(parts)
