"""Settings of topics are as they were written (docs/registers.md, SETTINGS).

In the end all nodes have one register of a topic. A client wrote each setting in it, and no confirmed write of it
began after that one had ended. A write of unknown outcome never ends. Partitions only become more.

A setting that a CREATE leaves to the node is written if the topic is new. No client learns that, so it may have been
written. The history of a real run does not have all requests, and a node may have been away. So a setting that does
not fit decides nothing there.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from quorumq.audit.context import Run, did_not_fail
from quorumq.audit.findings import Checks, Judged, Proof, Where
from quorumq.audit.moment import Moment, maybe, seconds, sure
from quorumq.history import Row

SETTINGS: Final = "settings"

Pairs = tuple[tuple[str, str], ...]


class Write(NamedTuple):
    """A request that may have written a setting: when it was sent, and confirmed or never."""

    name: str
    value: str
    sent: Moment
    done: Moment | None


class Topic(NamedTuple):
    """A topic in the end: the registers of its nodes, each in the order of the names."""

    run: Run
    seen: Sequence[Pairs]


class Setting(NamedTuple):
    """A setting that a node has in the end, and all writes of that name."""

    run: Run
    name: str
    value: str
    writes: Sequence[Write]

    @property
    def ended(self) -> Moment | None:
        """Return the moment at which the last write of this value was over; None if one never was."""
        mine = [it.done for it in self.writes if it.value == self.value]
        done = [it for it in mine if it is not None]
        return max(done) if done and len(done) == len(mine) else None

    @property
    def last(self) -> Write | None:
        done = (it for it in self.writes if it.done is not None)
        return max(done, key=lambda it: (it.sent, it.value), default=None)


def _number(value: Any) -> str:
    """Return the number of a value: 3 and 3.0 are one number."""
    text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
    try:
        return str(float(text)).removesuffix(".0")
    except ValueError:
        return text


def pairs_of(settings: Mapping[str, Any] | None) -> Pairs:
    return tuple(
        sorted((name, _number(value)) for name, value in (settings or {}).items() if value is not None)
    )


def writes_of(rows: Sequence[Row]) -> list[Write]:
    """Return each setting of each request that may have changed a topic."""
    result = []
    for call in did_not_fail(it for it in rows if it["kind"] == "set_topic"):
        asked = [it for it in call if it.get("outcome") == "invoke"]
        if not asked:
            continue
        sent = min(it["moment"] for it in asked)
        done = max((it["moment"] for it in call if it.get("outcome") == "ok"), default=None)
        for name, at in (("settings", done), ("defaults", None)):
            pairs = max((pairs_of(it.get(name)) for it in asked), default=())
            result += [Write(*pair, sent, at) for pair in pairs]
    return result


# --------------------------------------------------------------------------- checks


OF_TOPICS: Final = Checks[Topic]()


@OF_TOPICS.of(SETTINGS, "nodes differ")
def different(it: Topic) -> Proof | None:
    if it.run.drained_at is None or len(it.seen) < 2:
        return None
    seen = json.dumps([dict(pairs) for pairs in it.seen], separators=(",", ":"))
    return Proof(f"nodes have different settings: {seen}", it.run.simulated)


OF_SETTINGS: Final = Checks[Setting]()


@OF_SETTINGS.of(SETTINGS, "a value that nobody wrote")
def unwritten(it: Setting) -> Proof | None:
    if it.run.drained_at is None or any(one.value == it.value for one in it.writes):
        return None
    return Proof(f"{it.name} is {it.value}, and nobody wrote that", it.run.simulated and not it.run.lossy)


@OF_SETTINGS.of(SETTINGS, "a value that was written over")
def overwritten(it: Setting) -> Proof | None:
    ended, last = it.ended, it.last
    if it.run.drained_at is None or it.name == "partitions" or ended is None or last is None:
        return None
    if it.value == last.value or not maybe(ended, last.sent):
        return None
    text = f"{it.name} is {it.value}, confirmed at {seconds(ended.t)}, and was written again at {seconds(last.sent.t)}"
    return Proof(text, it.run.simulated and sure(ended, last.sent))


@OF_SETTINGS.of(SETTINGS, "fewer partitions than were confirmed")
def fewer(it: Setting) -> Proof | None:
    if it.run.drained_at is None or it.name != "partitions":
        return None
    try:
        value, least = int(it.value), max(int(one.value) for one in it.writes if one.done is not None)
    except ValueError:
        return None
    if value >= least:
        return None
    return Proof(f"{it.name} is {it.value}, and {least} were confirmed", it.run.simulated)


def check(rows: Sequence[Row], runs: Mapping[str, Run], out: Judged) -> None:
    """Ask these of each topic that has both a change and a node's register, and of each of its settings."""
    of_topics: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        if row["kind"] in ("set_topic", "topic", "delete_topic"):
            of_topics[(row["run"], row["topic"])].append(row)
    for (name, topic), items in of_topics.items():
        run, writes = runs[name], writes_of(items)
        gone = did_not_fail(it for it in items if it["kind"] == "delete_topic")
        last: dict[str, Row] = {}
        for row in items:
            if row["kind"] == "topic" and row["moment"].t >= last.get(row["who"], row)["moment"].t:
                last[row["who"]] = row
        if not writes or not last or (gone and not run.simulated):
            continue
        seen = sorted({pairs_of(it["settings"]) for it in last.values()})
        where = Where(name, topic)
        values = sorted({pair for pairs in seen for pair in pairs})
        ended = run.drained_at is not None
        out.count(name, SETTINGS, ended * (1 + len(values)), (not ended) * (1 + len(values)))
        out.ask(OF_TOPICS, Topic(run, seen), where, run.drained_at)
        for key, value in values:
            setting = Setting(run, key, value, [it for it in writes if it.name == key])
            out.ask(OF_SETTINGS, setting, where, run.drained_at)
