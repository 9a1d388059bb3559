"""A story out of the lines of a history, of the simulator or of real processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from quorumq.history import Row
from sim.diagram.story import MESSAGE, Ids, Item, said_ids, short
from sim.shrink.shrinker import time_of

CALLS = {
    "publish": "PUBLISH", "ack": "ACK", "reject": "REJECT", "dead_letter": "DEAD-LETTER", "extend": "EXTEND",
    "redrive": "REDRIVE", "purge": "PURGE", "set_group": "SET-GROUP", "delete_group": "DELETE-GROUP",
    "set_topic": "SET-TOPIC", "delete_topic": "DELETE-TOPIC", "leave": "LEAVE",
}  # fmt: skip
"""Requests, and their names in pictures."""

TONES = {"publish": "publish", "ack": "ack", "reject": "reject", "dead_letter": "reject", "extend": "hold"}

QUIET = ("register", "topic", "list", "settings", "derive")

DOWN = ("crash", "stop")


def items_of(rows: Sequence[Row], broken: Sequence[str], *, calls: bool) -> list[Item]:
    """Return the items of the lines, in order of time, and of ``broken``, the violations that the checkers found.

    With ``calls``, requests are drawn as lines to the node that is asked; not if packets are known.
    """
    teller = Teller(rows, calls=calls)
    for row in rows:
        teller.see(row)
    teller.close()
    items = teller.items
    for text in broken:
        ids: Ids = tuple((producer_id, int(at), int(at) + 1) for producer_id, at in MESSAGE.findall(text))
        lane = teller.lane_of_break(text, ids)
        items.append(
            Item(
                "broken", time_of(text) - teller.base, None, lane, "BROKEN", text, ids=ids[:1], tone="broken"
            )
        )
    return items


class Teller:
    """Turns lines into items; ``base`` is when the story begins, by the lines' clock."""

    def __init__(self, rows: Sequence[Row], *, calls: bool) -> None:
        self.calls = calls
        self.items: list[Item] = []
        simulated = any(row["kind"] == "settings" and row.get("clock") == "simulated" for row in rows)
        self.base = 0.0 if simulated or not rows else rows[0]["at"]
        self.last = (rows[-1]["at"] if rows else 0.0) - self.base
        self.via: dict[tuple[str, int], str] = {}
        self.bars: dict[tuple[str, str], list[Item]] = {}
        self.down: dict[str, Item] = {}
        self.nodes = {row["who"] for row in rows if row["who"].startswith("node:")}

    def see(self, row: Row) -> None:
        """Take a line in."""
        kind: str = row["kind"]
        who: str = row["who"]
        at = row["at"] - self.base
        ids: Ids = tuple(tuple(span) for span in row.get("spans", ()))
        if kind in ("fault", "phase"):
            self.fault(row, at)
        elif kind in DOWN:
            for name in [f"node:{name}" for name in row["nodes"]] if row.get("nodes") else [who]:
                self.goes_down(name, kind, row, at)
        elif kind == "start":
            if (item := self.down.pop(who, None)) is not None:
                item.end = at
            says = f"{short(who)} starts for the {ordinal(row['incarnation'])} time"
            if row.get("outcome"):
                says += {"fresh": ", on an empty directory", "restored": ", with its holds"}.get(
                    row["outcome"], ", in quarantine"
                )
            self.mark(at, who, "start", says, (), "node")
        elif kind == "deliver":
            self.deliver(row, at, ids)
        elif kind in CALLS and who.startswith("client:"):
            self.call(row, at, ids)
        elif kind not in QUIET:
            self.mark(at, who, WORDS.get(kind, kind), says_of(row, ids), ids, NODE_TONES.get(kind, "node"))

    def mark(self, at: float, lane: str, text: str, says: str, ids: Ids, tone: str) -> None:
        """Add a point on a lane."""
        self.items.append(Item("mark", at, None, lane, text, says, ids=ids, tone=tone))

    def fault(self, row: Row, at: float) -> None:
        """Add a fault of the cluster, or the beginning of a part of the run."""
        if row["kind"] == "phase":
            phase: str = row["phase"]
            for item in self.items if phase == "healed" else ():
                if item.kind == "fault" and item.end is not None:
                    item.end = max(item.at, min(item.end, at))
            words = {
                "faults": "The run begins.",
                "healed": "Everything is healed.",
                "drained": "All is settled.",
            }
            self.mark(at, "", phase, words.get(phase, phase), (), "phase")
            return
        kind = row["fault"]
        nodes, links = row.get("nodes", ()), row.get("links", ())
        if kind == "partition-over":
            return
        seconds = row.get("seconds") or 0.0
        said = ", ".join(nodes) or said_links(links)
        says = f"Fault: {kind} of {said}" + (f" for {seconds:g} s" if seconds else "")
        if row.get("detail"):
            says += f" ({row['detail']})"
        for name in nodes or [""]:
            lane = self.lane(name) if name else ""
            self.items.append(Item("fault", at, at + seconds, lane, kind, says, tone="fault"))

    def lane(self, name: str) -> str:
        """Return the lane of a node or a client."""
        return f"node:{name}" if f"node:{name}" in self.nodes else f"client:{name}"

    def goes_down(self, lane: str, kind: str, row: Row, at: float) -> None:
        """Note that a node's process ends."""
        how = row.get("detail") or row.get("reason") or ""
        says = f"{short(lane)} {'stops cleanly' if kind == 'stop' else 'crashes'}" + (
            f" ({how})" if how else ""
        )
        item = Item("down", at, self.last, lane, "down", f"{short(lane)} is down", tone="down")
        self.down[lane] = item
        self.items.append(item)
        self.mark(at, lane, kind, says, (), "crash")

    def deliver(self, row: Row, at: float, ids: Ids) -> None:
        """Note that a client has messages in hand, until it settles them or its time is over."""
        who = row["who"]
        until = row["until"] - self.base
        says = (
            f"{short(who)} gets {said_ids(ids)} for group {row['group']}, attempt {row['attempt']}, "
            f"until {until:.3f} s, as {row['owner']}"
        )
        item = Item(
            "bar", at, until, who, f"{said_ids(ids)} #{row['attempt']}", says, ids=ids, tone="deliver"
        )
        self.items.append(item)
        self.bars.setdefault((who, row["owner"]), []).append(item)

    def call(self, row: Row, at: float, ids: Ids) -> None:
        """Note a client's request, or its outcome."""
        kind, who, outcome = row["kind"], row["who"], row.get("outcome", "")
        name, tone = CALLS[kind], TONES.get(kind, "operator")
        key = (who, row["op"])
        asked = outcome in ("invoke", "")
        via = row.get("via") or self.via.get(key, "")
        if asked:
            self.via[key] = via
        target = f" {said_ids(ids)}" if ids else f" {row['group']}" if "group" in row else f" {row['topic']}"
        if asked:
            says = f"{short(who)}: {name}{target}" + (f" through {via}" if via else "")
        else:
            says = f"{short(who)} hears {outcome} to its {name}{target}"
            if row.get("detail"):
                says += f" ({row['detail']})"
        text = name if asked else outcome
        if kind in ("ack", "reject", "dead_letter", "leave") and asked:
            for bar in self.bars.get((who, row.get("owner", "")), ()):
                if bar.end is not None and at < bar.end and set(bar.ids) <= set(ids):
                    bar.end = at
        if kind == "extend" and outcome == "ok" and "until" in row:
            for bar in self.bars.get((who, row["owner"]), ()):
                bar.end = max(bar.end or 0.0, row["until"] - self.base)
        if self.calls and via and f"node:{via}" in self.nodes:
            ends = (who, f"node:{via}") if asked else (f"node:{via}", who)
            self.items.append(Item("packet", at, at, ends[0], text, says, to=ends[1], ids=ids, tone=tone))
        elif self.calls or not asked or not via:  # else the packet is there
            self.mark(at, who, text, says, ids, tone)

    def close(self) -> None:
        """End the bars that last longer at the last line."""
        for item in self.items:
            if item.kind in ("bar", "fault", "down") and item.end is not None:
                item.end = min(item.end, max(self.last, item.at) + 0.5)

    def lane_of_break(self, text: str, ids: Ids) -> str:
        """Return the lane of a violation: the client that got the message last before."""
        at = time_of(text) - self.base
        for item in sorted(self.items, key=lambda item: -item.at):
            if item.kind == "bar" and item.at <= at + 1e-3 and ids and item.concerns(*ids[0][:2]):
                return item.lane
        return ""


WORDS = {"hold_won": "won", "hold_lost": "gave up", "expire": "expired", "dead_letter": "dead letter"}
NODE_TONES = {"store": "store", "hold_won": "hold", "hold_lost": "hold", "release": "hold", "expire": "hold"}

SENTENCES: dict[str, Callable[[Row, str, str], str]] = {
    "store": lambda row, who, target: f"{who} has {target} on disk",
    "hold_won": lambda row, who, target: (
        f"{who} won {target} for group {row['group']}, attempt {row.get('attempt', '?')}, as {row['owner']}"
    ),
    "hold_lost": lambda row, who, target: f"{who} gives up {target}, as {row['owner']}",
    "release": lambda row, who, target: f"{who} gives {target} back: its answer was never begun",
    "expire": lambda row, who, target: f"a hold of {target} ran out at {who}",
    "dead_letter": lambda row, who, target: (
        f"{who} makes {target} a dead letter: {row.get('reason', 'asked to')}"
    ),
}


def says_of(row: Row, ids: Ids) -> str:
    """Return a line as a sentence."""
    who, kind = short(row["who"]), row["kind"]
    if kind in SENTENCES:
        return SENTENCES[kind](row, who, said_ids(ids))
    detail = row.get("detail", "")
    return f"{who}: {kind}" + (f" {said_ids(ids)}" if ids else "") + (f" ({detail})" if detail else "")


def said_links(links: Sequence[Any]) -> str:
    """Return directed pairs as people read them."""
    pairs = dict.fromkeys(map(tuple, links))
    said = []
    for one, two in pairs:
        if (two, one) not in pairs:
            said.append(f"{one}→{two}")
        elif one < two:
            said.append(f"{one}↔{two}")
    return ", ".join(said[:8]) + (f" and {len(said) - 8} more" if len(said) > 8 else "")


def ordinal(number: int) -> str:
    """Return the number as an ordinal, such as 1st."""
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{'th' if 10 < number % 100 < 14 else ending}"
