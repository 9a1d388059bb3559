"""Histories for the tests of the audit: simulated runs, good, of mutants, and good ones with one fault planted."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator
from typing import Final

from quorumq.history import Row
from sim.checkers import check_history
from sim.rules import HUNTED
from sim.runner import run_schedule
from sim.schedule import draw
from tests.sim.hunting import run_without

HUNTED_BY_NAME: Final = {rule.name: rule for rule in HUNTED}
PROMISES: Final = {
    "no loss": ("G1", "G6"),
    "no thin air": ("G5",),
    "exclusive holds": ("G2",),
    "final after ack": ("G3",),
    "dead letters conserved": ("G7",),
    "groups as asked": ("groups",),
    "live after healing": ("G4",),
    "derived once": ("derived",),
    "settings as written": ("settings",),
}
"""Guarantees by checker of the simulator: those that the audit files the same under.

Not among them: "one wrong clock", which needs the true time that only the simulator knows, and "groups asked for",
which needs to know all that was asked. A retry that is refused as a conflict is a loss to the checker, G6 to the audit;
other findings of the audit for G6 have no checker.
"""

DEAD: Final = "!dead"
OF_NODES: Final = ("hold_won", "hold_lost")
"""Kinds of lines that the simulator writes for `full` alone."""
FLOOD: Final = 300
"""Some mutants break a promise a million times in one run, which shows no more than once does."""


@functools.lru_cache(maxsize=16)
def _run(seed: int) -> list[Row]:
    return run_schedule(draw(seed), full=True, keep=True).rows


def good(seed: int, *, full: bool = False) -> list[Row]:
    """A run with all rules; `full` with the lines of nodes that no checker needs."""
    return [dict(row) for row in _run(seed) if full or row["kind"] not in OF_NODES]


def mutated(name: str, seed: int) -> list[Row]:
    """A run with a rule left out."""
    return run_without(HUNTED_BY_NAME[name], seed, keep=True).rows


def caught(name: str, seeds: range) -> tuple[int, list[Row]]:
    """The first of these seeds in which a checker reports that the rule is left out, without a flood; else the last."""
    for seed in seeds:
        rows = mutated(name, seed)
        if 0 < len(check_history(rows)) < FLOOD:
            break
    return seed, rows


# -------------------------------------------------------------------------- clocks

Reading = Callable[[str, float], float]
"""A machine's clock: takes the true time, returns the reading."""


def machine(who: str) -> str:
    """Each node has a machine of its own, and clients are spread over them."""
    role, _, name = who.partition(":")
    return f"m-{name}" if role == "node" else f"m-{'abc'[sum(map(ord, name)) % 3]}"


def on_machines(run: str, rows: list[Row], reading: Reading) -> list[Row]:
    """A simulated run as if its processes had written it on several machines, each by its own clock alone."""
    settings = next(row["settings"] for row in rows if row["kind"] == "settings")
    firsts: dict[str, float] = {}
    for row in rows:
        firsts.setdefault(row["who"], row["at"])
    common = {"run": run, "within": 0.0}
    combined: list[Row] = []
    for who, at in firsts.items():
        mine = {**(settings if who == "sim" else {}), "boot": machine(who)}
        mine.pop("schedule", None)
        combined.append(
            {
                **common,
                "who": who,
                "at": at,
                "kind": "settings",
                "history": 1,
                "clock": "mono",
                "settings": mine,
            }
        )
    combined += [{**row, **common} for row in rows if row["kind"] != "settings"]
    combined += [{**row, **common} for row in _closing(rows)]
    for row in combined:
        of = machine(row["who"])
        row.update({name: reading(of, row[name]) for name in ("at", "until", "asked") if name in row})
        row["wall_ms"] = 10**12 + int(1000 * row["at"])
    return combined


def _closing(rows: list[Row]) -> Iterator[Row]:
    """At the end an operator lists all dead letters of each partition and group."""
    end, last = (
        rows[-1]["at"] + 0.01,
        {"who": "sim", "kind": "list", "state": "dead", "complete": True, "spans": []},
    )
    locations = {(row["topic"], row["partition"], row["group"].removesuffix(DEAD)): None for row in rows
              if {"topic", "partition", "group"} <= row.keys()}  # fmt: skip
    for topic, partition, group in locations:
        yield {**last, "topic": topic, "partition": partition, "group": group, "at": end + 0.01, "asked": end}


YEAR_S: Final = 365 * 86400.0
OFFSETS: Final = (0.0, 0.6, -0.6, 5.0, -5.0, YEAR_S)


def constant(seed: int) -> Reading:
    """Each clock is wrong by another of `OFFSETS`."""
    drawn = random.Random(seed).sample(OFFSETS, len(OFFSETS))
    return lambda of, at: at + 1e4 + drawn["abcdefg".index(of[-1]) % len(OFFSETS)]


def drifting(seed: int) -> Reading:
    """So they are, and their rates differ by the most that the protocol allows."""
    wrong, rng = constant(seed), random.Random(seed)
    rates = {f"m-{name}": rng.choice((0.0, 1e-4, -1e-4, 0.01, -0.01)) for name in "abcdefg"}
    return lambda of, at: wrong(of, at) + rates[of] * at


def jumping(seed: int) -> Reading:
    """So they are, and one of them is set while the run goes on."""
    wrong, rng = constant(seed), random.Random(seed)
    when, by = rng.uniform(0.5, 3.0), rng.choice((-2.0, 0.6, 30.0))
    return lambda of, at: wrong(of, at) + (by if of == "m-b" and at > when else 0.0)


# ------------------------------------------------------------------- planted faults


def _of(rows: list[Row], kind: str, **fields: object) -> Iterator[int]:
    for index, row in enumerate(rows):
        if row["kind"] == kind and all(row.get(name) == value for name, value in fields.items()):
            yield index


def _delivery(rows: list[Row]) -> int | None:
    """A delivery whose message, the only one of its line, was acked at once."""
    for index in _of(rows, "deliver"):
        row = rows[index]
        if not row["group"].endswith(DEAD) and _size(row) == 1:
            for other in _of(rows, "ack", outcome="acked", owner=row["owner"]):
                if rows[other]["spans"] == row["spans"]:
                    return index
    return None


def _size(row: Row) -> int:
    return sum(stop - start for _, start, stop in row["spans"])


def _touches(row: Row, spans: list[list[object]]) -> bool:
    return row.get("spans") == spans


def _later(row: Row, seconds: float, **changes: object) -> Row:
    return {**row, "at": row["at"] + seconds, "wall_ms": row["wall_ms"] + int(1000 * seconds), **changes}


def _sorted(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: row["at"])


OTHER: Final = "z.9.9#ffffffffffffff@z"
HIGH: Final = "99999999999999999999@z"


def lost(rows: list[Row]) -> list[Row] | None:
    """A message is never delivered, though it was confirmed."""
    at = _delivery(rows)
    if at is None:
        return None
    spans, group = rows[at]["spans"], rows[at]["group"]
    kept = [row for row in rows if not (_touches(row, spans) and row.get("group") == group)]
    return kept if not any(_covers(row, spans[0], group) for row in kept) else None


def _covers(row: Row, span: list[object], group: str) -> bool:
    """Return True if a line about this group says of this message, among others, that a client may have got it."""
    if row.get("group") != group or row["kind"] not in ("deliver", "hold_won", "list"):
        return False
    return any(
        producer_id == span[0] and start <= span[1] < stop for producer_id, start, stop in row["spans"]
    )  # type: ignore[operator]


def flipped(rows: list[Row]) -> list[Row] | None:
    """A byte differs."""
    for at in _of(rows, "deliver"):
        if rows[at].get("crcs"):
            crcs = rows[at]["crcs"]
            return [
                *rows[:at],
                {**rows[at], "crcs": f"{int(crcs[:8], 16) ^ 1:08x}{crcs[8:]}"},
                *rows[at + 1 :],
            ]
    return None


def from_nowhere(rows: list[Row]) -> list[Row] | None:
    """A number is delivered that its producer never published."""
    at = _delivery(rows)
    if at is None:
        return None
    producer_id, start, stop = rows[at]["spans"][0]
    extra = _later(rows[at], 0.0001, spans=[[producer_id, start + 1_000_000, stop + 1_000_000]])
    return _sorted([*rows, extra])


def after_ack(rows: list[Row]) -> list[Row] | None:
    """A message is delivered again long after its ACK."""
    at = _delivery(rows)
    if at is None:
        return None
    row = rows[at]
    acked = next(rows[i] for i in _of(rows, "ack", outcome="acked", owner=row["owner"]))
    late = acked["at"] + 20
    again = _later(
        row, late - row["at"], owner=OTHER, token=HIGH, until=late + 1, asked=late - 0.1, attempt=2
    )
    end = max(r["at"] for r in rows)
    return _sorted([*rows, again]) if late > 0 and end else None


def token_fell(rows: list[Row]) -> list[Row] | None:
    """A delivery of a message has a lower token than the one before."""
    at = _delivery(rows)
    if at is None:
        return None
    before = _later(rows[at], -0.0001, owner=OTHER, token=HIGH, until=rows[at]["at"] - 0.00005)
    return _sorted([*rows, before])


def overlapping(rows: list[Row]) -> list[Row] | None:
    """Two deliveries of a message are inside their holds."""
    at = _delivery(rows)
    if at is None:
        return None
    return _sorted([*rows, _later(rows[at], 0.00001, owner=OTHER, token=HIGH)])


def death_discarded(rows: list[Row]) -> list[Row] | None:
    """A confirmed dead letter is listed nowhere."""
    for i in _of(rows, "dead_letter", outcome="ok"):
        spans = rows[i]["spans"]
        if rows[i]["who"].startswith("client:") and not any(_about(row, spans[0]) for row in rows[i + 1 :]):
            return [row for row in rows if not (row["kind"] == "list" and _about(row, spans[0], "list"))]
    return None


def _about(row: Row, span: list[object], *kinds: str) -> bool:
    """Return True if a line of these kinds, or one that explains a dead letter's end, is about this message."""
    producer_id, start, _ = span
    there = any(it[0] == producer_id and it[1] <= start < it[2] for it in row.get("spans", ()))
    return row["kind"] == "purge" or (there and row["kind"] in (kinds or ("ack", "redrive", "dead_letter")))


def death_doubled(rows: list[Row]) -> list[Row] | None:
    """A replica lists a dead letter twice."""
    for i in _of(rows, "list", state="dead"):
        return [*rows, dict(rows[i])]
    return None


def unreachable(rows: list[Row]) -> list[Row] | None:
    """A message is delivered at a redrive number that no redrive has."""
    at = _delivery(rows)
    return None if at is None else [*rows[:at], {**rows[at], "n": rows[at]["n"] + 7}, *rows[at + 1 :]]


def skipped(rows: list[Row]) -> list[Row] | None:
    """A message is settled unread, and the group was never purged."""
    at = _delivery(rows)
    if at is None or any(_of(rows, "purge")):
        return None
    row, end = rows[at], rows[-1]
    listed = {
        name: row[name]
        for name in ("run", "within", "topic", "partition", "group", "spans", "generation", "n")
    }
    return [
        *rows,
        {
            **listed,
            "kind": "list",
            "who": "node:a",
            "state": "skipped",
            "at": end["at"],
            "wall_ms": end["wall_ms"],
        },
    ]


def stuck(rows: list[Row]) -> list[Row] | None:
    """The cluster does not settle everything after it was healed."""
    return [{**row, "phase": "end"} if row.get("phase") == "drained" else row for row in rows]


def on_one_disk(rows: list[Row]) -> list[Row] | None:
    """A publish is confirmed with a copy on one node only."""
    if rows[0]["settings"]["rf"] < 3:
        return None
    for i in _of(rows, "publish", outcome="ok"):
        spans = rows[i]["spans"]
        stores = [row for row in rows if row["kind"] == "store" and _touches(row, spans)]
        if stores:
            return [row for row in rows if row not in stores[1:]]
    return None


def conflicting(rows: list[Row]) -> list[Row] | None:
    """A retry with the same bytes is refused as a conflict."""
    for i in _of(rows, "publish", outcome="ok"):
        refused = {**rows[i], "outcome": "fail", "detail": "conflict", "op": 10_000}
        return [*rows[: i + 1], {**refused, "outcome": "fail"}, *rows[i + 1 :]]
    return None


def rederived(rows: list[Row]) -> list[Row] | None:
    """An output is derived once more, and has other bytes."""
    for at in _of(rows, "derive"):
        crcs = rows[at]["crcs"]
        other = ("0" if crcs[0] != "0" else "1") + crcs[1:]
        return [*rows[: at + 1], {**rows[at], "crcs": other}, *rows[at + 1 :]]
    return None


def output_discarded(rows: list[Row]) -> list[Row] | None:
    """An input is acked, and its output is named otherwise than the one that is there."""
    for at in _of(rows, "derive"):
        row = rows[at]
        acked = (rows[i] for i in _of(rows, "ack", group=row["group"], outcome="acked"))
        if any(_touches(other, row["spans"]) for other in acked):
            ((_, start, stop),) = row["into"]["spans"]
            into = {**row["into"], "spans": [["~derived.1.abc.1", start, stop]]}
            mine = [i for i in _of(rows, "derive") if rows[i]["spans"] == row["spans"]]
            return [{**it, "into": into} if i in mine else it for i, it in enumerate(rows)]
    return None


def unwritten(rows: list[Row]) -> list[Row] | None:
    """All nodes have a setting that no client wrote."""
    if not any(_of(rows, "set_topic")) or not any(_of(rows, "topic")):
        return None
    topic = next(rows[i]["topic"] for i in _of(rows, "set_topic"))
    return [
        {**row, "settings": {**row["settings"], "partitions": 77}}
        if row["kind"] == "topic" and row["topic"] == topic
        else row
        for row in rows
    ]


FAULTS: Final[dict[str, tuple[Callable[[list[Row]], list[Row] | None], str]]] = {
    "lost": (lost, "G1"),
    "on-one-disk": (on_one_disk, "G1"),
    "overlapping": (overlapping, "G2"),
    "after-ack": (after_ack, "G3"),
    "token-fell": (token_fell, "G3"),
    "stuck": (stuck, "G4"),
    "flipped": (flipped, "G5"),
    "from-nowhere": (from_nowhere, "G5"),
    "conflicting": (conflicting, "G6"),
    "death-discarded": (death_discarded, "G7"),
    "death-doubled": (death_doubled, "G7"),
    "unreachable": (unreachable, "G7"),
    "skipped": (skipped, "groups"),
    "rederived": (rederived, "derived"),
    "output-forgotten": (output_discarded, "derived"),
    "unwritten": (unwritten, "settings"),
}
"""Per fault: its plant, and the guarantee that it breaks."""
