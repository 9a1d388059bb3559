"""Content of a diagram, as plain values."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

Ids = tuple[tuple[str, int, int], ...]
"""Messages: producer id, first, and the one after the last."""

MESSAGE = re.compile(r"(\S+)\[(\d+)\]")
"""Name of a message, as checkers write it and as people give it on the command line."""


@dataclass(slots=True)
class Item:
    """One thing that happened.

    Args:
        kind: ``packet`` (from ``lane`` to ``to``), ``bar`` (lasts from ``at`` to ``end``), ``down`` (a bar: no process
            runs), ``fault`` (as a bar, of ``lane`` or of all), ``mark`` or ``broken`` (a broken promise).
        at: time in seconds.
        end: time when a packet arrives, None if never; time when a bar ends.
        lane: line that it is on, as ``node:a`` or ``client:c0``; "": all.
        text: a few characters, for the picture.
        says: a sentence.
        to: for a packet: its other end.
        ids: messages that it concerns.
        tone: colour, such as ``hold``, ``store``, ``ack``, ``publish``, ``quiet`` (housekeeping) or ``lost``.
    """

    kind: str
    at: float
    end: float | None
    lane: str
    text: str
    says: str
    to: str = ""
    ids: Ids = ()
    tone: str = ""

    def concerns(self, producer_id: str, number: int) -> bool:
        """Return True if it is about that message."""
        return any(of == producer_id and start <= number < stop for of, start, stop in self.ids)


@dataclass(slots=True)
class Story:
    """A run.

    Args:
        about: lines below the title.
        left_out: content that the diagram leaves out, as a sentence; "" if nothing.
        focus: the message that the page shows first, as `MESSAGE`; "": all.
    """

    title: str
    about: list[str] = field(default_factory=list)
    items: list[Item] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    left_out: str = ""
    focus: str = ""

    def lanes(self) -> list[tuple[str, str]]:
        """Return the lanes from top to bottom with their kinds: publishers and operators, nodes, consumers."""
        names = dict.fromkeys(name for item in self.items for name in (item.lane, item.to) if name)
        nodes = sorted((name for name in names if name.startswith("node:")), key=natural)
        clients = sorted((name for name in names if name.startswith("client:")), key=natural)
        asks = {item.lane for item in self.items if item.tone in ("publish", "operator")}
        gets = {item.lane for item in self.items if item.tone == "deliver"}
        above = [name for name in clients if name in asks and name not in gets]
        return [
            *((name, "client") for name in above),
            *((name, "node") for name in nodes),
            *((name, "client") for name in clients if name not in above),
        ]

    def rename(self, names: dict[str, str]) -> None:
        """Write short names for long ones in the texts."""
        if not names:
            return
        pattern = re.compile("|".join(map(re.escape, sorted(names, key=len, reverse=True))))

        def renamed(text: str) -> str:
            return pattern.sub(lambda match: names[match[0]], text)

        self.broken = [renamed(text) for text in self.broken]
        for item in self.items:
            item.says = renamed(item.says)

    def find(self, message: str) -> tuple[str, int]:
        """Return the message of that name; its producer id may lack its nonce, if that still says which it is.

        Raises:
            ValueError: there is none, or it is not a name.
        """
        named = MESSAGE.fullmatch(message.strip())
        if named is None:
            raise ValueError(
                f"{message!r} is no message: write it as PRODUCER ID[NUMBER], for example b.1.5eed.1[0]"
            )
        producer_ids = {producer_id: None for item in self.items for producer_id, _, _ in item.ids}
        fitting = [name for name in producer_ids if named[1] in (name, without_nonce(name))]
        if len(fitting) != 1:
            names = ", ".join(f"{name}[0]" for name in list(producer_ids)[:8]) or "none at all"
            raise ValueError(f"{message!r}: {len(fitting)} producer ids have this name; there are: {names}")
        return fitting[0], int(named[2])

    def shown(self, most: int) -> None:
        """Leave out all but ``most`` items: those without messages first, then those far from the violation."""
        if len(self.items) <= most:
            return
        focus = self.find(self.focus) if self.focus else None
        broken = [item.at for item in self.items if item.kind == "broken"]
        near = broken[0] if broken else max(item.at for item in self.items)

        def rank(item: Item) -> tuple[bool, bool, bool, float]:
            asked = focus is not None and item.concerns(*focus)
            vital = item.kind in ("fault", "down", "broken")
            return not (asked or vital), not vital, item.tone == "quiet", abs(near - item.at)

        kept = sorted(self.items, key=rank)[:most]
        out = f"{len(self.items) - len(kept):,} of {len(self.items):,} things that happened are left out"
        here = f"what was nearest to {near:g} s"
        self.left_out = (
            f"{out}: {self.focus} and {here} are here."
            if self.focus
            else f"{out}: {here} is here. --follow names a message to keep, --items says how many."
        )
        self.items = kept

    def to_value(self) -> dict[str, Any]:
        """Return the value that the page reads: its items name their lanes by number."""
        lanes = self.lanes()
        index = {name: number for number, (name, _) in enumerate(lanes)}
        items = [
            asdict(item)
            | {"lane": index.get(item.lane, -1), "to": index.get(item.to, -1), "at": round(item.at, 6)}
            | {"end": None if item.end is None else round(item.end, 6)}
            for item in sorted(self.items, key=lambda item: item.at)
        ]
        return asdict(self) | {"lanes": [[short(name), title] for name, title in lanes], "items": items}


def short(name: str) -> str:
    """Return a lane's name as people say it."""
    return name.split(":", 1)[-1]


def natural(name: str) -> list[tuple[int, str]]:
    """Return a key that sorts n2 before n10."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", name)]


def without_nonce(producer_id: str) -> str:
    """Return a producer id without its nonce: ``a.1.5eed.3`` is ``a.1.3`` to people."""
    parts = producer_id.split(".")
    return ".".join((*parts[:2], *parts[3:])) if len(parts) == 4 else producer_id


def said_ids(ids: Iterable[tuple[str, int, int]]) -> str:
    """Return the messages' names as people read them."""
    texts = [
        f"{without_nonce(producer_id)}[{start if stop == start + 1 else f'{start}…{stop - 1}'}]"
        for producer_id, start, stop in ids
    ]
    return ", ".join(texts[:6]) + (f" and {len(texts) - 6} more" if len(texts) > 6 else "")
