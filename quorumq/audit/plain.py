"""Messages that cannot have a finding, all at once: most of a history's.

A message is plain if it was published once, without a delay or TTL, was confirmed, had enough copies then, and if each
group got it once, in its first and only generation, and acked it once, in that order beyond what clocks leave open.
Nor was its partition moved.
Such a message breaks nothing, so it needs no check of its own: here it is only counted, as `judge` would. A message
that is not plain in any way is left to the checks. A test compares the two ways.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from quorumq.audit.context import DEAD
from quorumq.audit.findings import Judged, bucket
from quorumq.audit.moment import FAR_S
from quorumq.audit.story import Events, rf_of
from quorumq.audit.table import Call, Flags, Numbers

_OTHER, _SENT, _STORED, _COPY, _DELIVERED, _ACK, _ACKED, _WON = range(8)

_ROLES: Final = {
    ("publish", "invoke"): _SENT, ("publish", "ok"): _STORED, ("store", None): _COPY, ("deliver", None): _DELIVERED,
    ("ack", "invoke"): _ACK, ("ack", "acked"): _ACKED, ("hold_won", None): _WON,
}  # fmt: skip


class _Fields(NamedTuple):
    """Facts of each space and group: of their run, and if the group may have plain messages.

    Attributes:
        begins: beginning of the first generation, in ms; the least number if there is none.
        current_from: beginning of the current generation, in ms.
        bound: latest time of a delivery in time, in seconds of the run; infinite if that is not asked.
        healed: seconds of the run from which liveness is asked about; infinite if it is not.
    """

    plain: Flags
    first: Flags
    begins: Numbers
    current_from: Numbers
    registers: Flags
    bound: NDArray[Any]
    healed: NDArray[Any]


def plain(events: Events, out: Judged) -> Flags:
    """Return which messages are plain, and count them."""
    table, context, of = events.table, events.context, events.of
    count = len(events.starts)
    if not count:
        return np.zeros(0, bool)
    roles = np.array([_role(it) for it in table.calls], np.int8)[events.rows["call"]]
    roles = np.where((events.rows["more"] == 0) & (events.rows["retries"] < 0), roles, _OTHER)[of]
    message = np.repeat(np.arange(count), events.ends - events.starts)
    counts = np.stack([np.bincount(message[roles == role], minlength=count) for role in range(8)])
    there = np.array([len(context.groups.get((it.run, it.topic), ())) for it in table.spaces])[events.space]
    result: Flags = (counts[_OTHER] == 0) & (counts[_SENT] == 1) & (counts[_STORED] == 1) & (there > 0)
    for role in (_DELIVERED, _ACK, _ACKED):
        result &= counts[role] == there
    result &= counts[_WON] <= there
    result &= ~np.array([it.producer_id.startswith("~derived.") for it in table.spaces])[events.space]
    if not result.any():
        return result
    picked = _Picked(events, roles, message, result)
    good = picked.once & picked.good(_fields_of(events, picked))
    result[picked.message[~good]] = False
    result &= _has_copies(events, roles, message, result)
    if result.any():
        picked = _Picked(events, roles, message, result)
        picked.counted(_fields_of(events, picked), out)
    return result


def _role(call: Call) -> int:
    if call.generation or call.n or call.conflict or (call.group or "").endswith(DEAD):
        return _OTHER
    return _ROLES.get((call.kind, call.outcome), _OTHER)


class _Picked:
    """The deliveries of messages, one for each group, and the other events of each, as numbers of events.

    Attributes:
        once: True if a message has each of these once, of one owner.
    """

    def __init__(self, events: Events, roles: NDArray[Any], message: Numbers, which: Flags) -> None:
        self._events = events
        groups: dict[str, int] = {}
        codes = [groups.setdefault(it.group or "", len(groups)) for it in events.table.calls]
        self.groups = list(groups)
        group = np.array(codes)[events.rows["call"]][events.of]
        key = message * len(groups) + group
        mine = which[message]

        def of_role(role: int) -> Numbers:
            items = np.flatnonzero(mine & (roles == role))
            return items[np.argsort(key[items], kind="stable")]

        self.delivered, self.ack, self.acked, won = (of_role(it) for it in (_DELIVERED, _ACK, _ACKED, _WON))
        self.message = message[self.delivered]
        self.group = group[self.delivered]
        at = np.cumsum(which) - 1
        self.sent, self.stored = (of_role(it)[at[self.message]] for it in (_SENT, _STORED))
        mine_key = key[self.delivered]
        owner = events.rows["owner"][events.of]
        self.once = np.diff(mine_key, prepend=-1) != 0
        self.once[:-1] &= self.once[1:]
        for other in (self.ack, self.acked):
            self.once &= (key[other] == mine_key) & (owner[other] == owner[self.delivered])
        spot = np.searchsorted(mine_key, key[won])
        spot = np.minimum(spot, max(0, len(mine_key) - 1))
        wrong = (mine_key[spot] != key[won]) | (owner[won] != owner[self.delivered][spot])
        wrong[1:] |= np.diff(key[won]) == 0
        self.once[spot[wrong]] = False

    def moment(self, which: Numbers, times: Sequence[NDArray[Any]] | None = None) -> tuple[NDArray[Any], ...]:
        """Return time, low and high, and clock of these events."""
        rows = self._events.of[which]
        return (*(it[rows] for it in times or self._events.at), self._events.clock[rows])

    def good(self, fields: _Fields) -> Flags:
        """Return a flag for each delivery: True if it cannot have a finding."""
        sent, stored, here, acked = (
            self.moment(it) for it in (self.sent, self.stored, self.delivered, self.acked)
        )
        asked = self.moment(self.delivered, self._events.asked)
        crcs, published = self._events.crc[self.delivered], self._events.crc[self.sent]
        made = self._events.rows["made"][self._events.of[self.sent]]
        result: Flags = (
            fields.plain & ~np.isnan(asked[0]) & ~_maybe(acked, here) & ~_maybe(acked, asked)
            & (sent[1] <= here[2]) & (sent[0] <= stored[0]) & (sent[2] <= stored[2]) & (sent[3] == stored[3])
            & ((crcs < 0) | (published < 0) | (crcs == published))
            & ((made < 0) | (made >= fields.begins)) & (here[0] <= fields.bound)
        )  # fmt: skip
        return result

    def counted(self, fields: _Fields, out: Judged) -> None:
        """Count them, as `judge` would."""
        events, table = self._events, self._events.table
        names: dict[tuple[str, str, str], int] = {}
        pairs, inverse = np.unique(
            np.stack((events.space[self.message], self.group)), axis=1, return_inverse=True
        )
        keys = [
            names.setdefault(
                (table.spaces[space].run, table.spaces[space].topic, self.groups[group]), len(names)
            )
            for space, group in pairs.T.tolist()
        ]
        key = np.array(keys, np.int64)[inverse.ravel()]
        made = events.rows["made"][events.of[self.sent]]
        covered = (made < 0) | (made >= fields.current_from)
        crcs = (events.crc[self.delivered] >= 0) & (events.crc[self.sent] >= 0)
        here, sent = self.moment(self.delivered), self.moment(self.sent)
        rf = np.array([rf_of(it.topic, events.context.runs[it.run]) is not None for it in table.spaces])[
            events.space[self.message]
        ]
        checked = {
            "G1": covered | (fields.first & rf), "G2": np.ones(len(key), bool), "G3": np.full(len(key), 2),
            "G4": here[0] > fields.healed, "G5": crcs, "groups": fields.registers,
        }  # fmt: skip
        for guarantee, items in checked.items():
            for (run, _, _), total in zip(names, np.bincount(key, items, len(names)).tolist(), strict=True):
                out.count(run, guarantee, int(total))
        exact = (sent[3] == here[3]) & (sent[3] >= 0)
        waited = np.where(exact, here[0] - sent[0], ((here[1] + here[2]) - (sent[1] + sent[2])) / 2)
        located = (sent[1] > -FAR_S) & (sent[2] < FAR_S) & (here[1] > -FAR_S) & (here[2] < FAR_S)
        attempt = events.rows["attempt"][events.of[self.delivered]]
        for name, number in names.items():
            mine = key == number
            _latency(
                name,
                waited[mine & (exact | located)],
                int((mine & ~exact & ~located).sum()),
                attempt[mine],
                out,
            )


def _latency(
    key: tuple[str, str, str], waited: NDArray[Any], untimed: int, attempts: Numbers, out: Judged
) -> None:
    total = len(attempts)
    for label, count in (("deliveries", total), ("messages", total), ("untimed", untimed)):
        if count:
            out.sums.counts[(label, *key)] += count
    out.sums.attempts.setdefault(key, Counter()).update(_counter(attempts))
    if len(waited):
        buckets = np.where(waited > 1e-9, np.floor(np.log(np.maximum(waited, 1e-9)) * 100), bucket(0.0))
        out.sums.waits.setdefault(key, Counter()).update(_counter(buckets.astype(np.int64)))
        longest = float(waited.max())
        out.sums.longest[key] = max(longest, out.sums.longest.get(key, longest))


def _counter(values: Numbers) -> dict[int, int]:
    return dict(zip(*(it.tolist() for it in np.unique(values, return_counts=True)), strict=True))


def _maybe(early: Sequence[NDArray[Any]], late: Sequence[NDArray[Any]]) -> Flags:
    """Return for each pair if it may have been in this order: as `quorumq.audit.moment.maybe`."""
    same = (early[3] == late[3]) & (early[3] >= 0)
    return np.where(same, early[0] < late[0], early[1] < late[2])


def _has_copies(events: Events, roles: NDArray[Any], message: Numbers, which: Flags) -> Flags:
    """Return the messages that had enough copies when they were confirmed, if it is known how many are enough."""
    stored = np.zeros(len(which), np.int64)
    confirmed = np.flatnonzero(roles == _STORED)
    stored[message[confirmed]] = events.of[confirmed]
    copies = np.flatnonzero((roles == _COPY) & which[message])
    rows, by = events.of[copies], stored[message[copies]]
    t, low, high = events.at
    same = (events.clock[rows] == events.clock[by]) & (events.clock[rows] >= 0)
    there = np.where(same, t[rows] <= t[by], low[rows] <= high[by])
    nodes: dict[str, int] = {}
    who = np.array([nodes.setdefault(it.who, len(nodes)) for it in events.table.writers])
    keys = np.unique((message[copies] * len(nodes) + who[events.rows["writer"][rows]])[there])
    result = np.bincount(keys // max(1, len(nodes)), minlength=len(which))
    needed = [
        0 if (rf := rf_of(it.topic, events.context.runs[it.run])) is None else rf // 2 + 1
        for it in events.table.spaces
    ]
    return result >= np.array(needed)[events.space]  # type: ignore[no-any-return]


def _fields_of(events: Events, picked: _Picked) -> _Fields:
    """Return the facts of the space and group of each delivery."""
    pairs, inverse = np.unique(
        np.stack((events.space[picked.message], picked.group)), axis=1, return_inverse=True
    )
    rows = [_fact(events, space, picked.groups[group]) for space, group in pairs.T.tolist()]
    return _Fields(*(np.array(it)[inverse.ravel()] for it in zip(*rows, strict=True)))


def _fact(events: Events, space: int, grp: str) -> tuple[Any, ...]:
    run_, topic, partition, _ = events.table.spaces[space]
    context, run = events.context, events.context.runs[run_]
    group = context.of_groups[(run_, topic, grp)]
    location = context.of_locations.get((run_, topic, partition, grp))
    simple = (
        not any(it.rewind for it in group.confirmed) and not group.deletions and not group.current
        and not (location is not None and location.purges) and (run_, topic, partition) not in context.moved
    )  # fmt: skip
    asked = run.healed_at is not None and run.healed_high is not None and run.healed_high < FAR_S
    bound = (
        run.healed_at + run.bound if asked and run.healed_at is not None and run.bound is not None else np.inf
    )
    begins = max((ms for generation, ms in group.registers if generation == 0), default=-(1 << 62))
    first = context.groups[(run_, topic)][0] == grp
    healed = run.healed_at if asked else np.inf
    return simple, first, begins, group.current_from, bool(group.registers), bound, healed
