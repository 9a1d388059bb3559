"""No loss (promise G1): a message published with OK is delivered and settled, or is a dead letter, once all is drained.

This is Jepsen's total-queue, with settling in place of taking out: an attempt with an unknown outcome may
take effect or not, a confirmed one must. It is judged once the run was drained to the end, for each group's generation
at the end: messages in it must have been delivered and acked in it, with any outcome in an older one, or was purged.
If the first line says ``kept: false``, or the topic is created without retention, payload goes once no group
needs it: then each group must have settled it in any generation, unless some generation left it out, and one that was
created later only messages published after that was confirmed. A purge, and the ACK of a dead letter by its readers,
settle it there too: a rewind voids their records, so they are not listed at the end. What was to be purged while it was
to be redriven, with an unknown outcome, may be gone: a replica that had merged PURGED may have reclaimed it before it
heard of the redrive.

Losing nothing in one run proves little if no disk is lost, so the cause is judged as well: when a publish
is confirmed, a majority of the replicas must have written that its messages are durable there, unless every group
has been acking, purging or skipping them already, as another try's. (Judged if the first line says `rf`.) If
layouts changed the set, that is a majority of one of those that may have counted the publish.
"""

from __future__ import annotations

from quorumq.history import Row
from sim.checkers.base import (
    DEAD,
    DrainedChecker,
    GroupKey,
    Key,
    PublishChecker,
    Purges,
    Skips,
    TopicChecker,
    dead_of,
    group_messages,
    messages,
    name,
)
from sim.checkers.replica_sets import ReplicaSets


class NoLoss(TopicChecker, DrainedChecker, PublishChecker):
    promise = "no loss"

    def __init__(self) -> None:
        super().__init__()
        self.created: dict[str, float] = {}  # groups that were created while the run went on, and when
        self.skips = Skips()
        self.unmade: dict[str, None] = {}  # groups with a request for a deletion
        self.guests: dict[str, None] = {}  # groups that a FETCH may make
        self.groups: dict[str, None] = {}
        # Groups that began with a generation: since when, by node.
        self.known: dict[str, dict[str, float]] = {}
        # (group, node) -> generation, from_ms, buried
        self.registers: dict[tuple[str, str], tuple[int, int, int]] = {}
        self.latest: dict[str, int] = {}  # the latest beginning that a group has ever had
        self.delivered: dict[GroupKey, int] = {}  # the newest generation in which it was
        # In which generation an ACK was sent that did not fail for certain: its outcome may be unknown.
        self.acks: dict[GroupKey, dict[tuple[str, int], int]] = {}
        self.settled: dict[GroupKey, int] = {}  # listed as dead, skipped or purged in this generation
        self.dead_acked: dict[GroupKey, None] = {}  # an ACK of it as a dead letter was sent
        self.purges = Purges()
        # A redrive at this n was asked for, and none at it is confirmed.
        self.unsure: dict[GroupKey, int] = {}
        self.stored: dict[Key, dict[str, None]] = {}
        self.replica_sets = ReplicaSets()
        self.asked: dict[tuple[str, int], float] = {}  # when each publish was sent

    def on_publish(self, row: Row) -> None:
        super().on_publish(row)
        if row["outcome"] == "invoke":
            self.asked[row["who"], row["op"]] = row["at"]
        elif row["outcome"] == "ok":
            self._checker_stored(row)
        elif row.get("detail") == "conflict":
            self.broken(f"{row['spans']} was refused as a conflict, and every retry has the same bytes")

    def on_layout(self, row: Row) -> None:
        super().on_layout(row)
        self.replica_sets.see(row)

    def on_store(self, row: Row) -> None:
        if self.rf:
            for key in messages(row):
                self.stored.setdefault(key, {})[row["who"]] = None

    def on_set_group(self, row: Row) -> None:
        self.skips.see(row)
        if row["outcome"] == "ok" and not row["rewind"]:
            self.created.setdefault(row["group"], row["at"])

    def on_fetch(self, row: Row) -> None:
        self.skips.see(row)
        self.guests[row["group"]] = None
        if row["outcome"] == "ok" and row.get("messages"):
            self.created.setdefault(row["group"], row["at"])

    def on_delete_group(self, row: Row) -> None:
        self.unmade[row["group"]] = None

    def on_register(self, row: Row) -> None:
        self.skips.see(row)
        late = row["generation"] or row["group"] in self.guests
        if late and row["group"] not in self.groups:
            self.known[row["group"]] = {}
        if row["group"] in self.known:
            self.known[row["group"]].setdefault(row["who"], row["at"])
        self.groups[row["group"]] = None
        self.registers[(row["group"], row["who"])] = (
            row["generation"],
            row["from_ms"],
            row.get("buried", 0),
        )
        self.latest[row["group"]] = max(row["from_ms"], self.latest.get(row["group"], 0))

    def on_purge(self, row: Row) -> None:
        self.purges.see(row)

    def on_deliver(self, row: Row) -> None:
        self._note(row, self.delivered)

    def on_list(self, row: Row) -> None:
        self._note(row, self.settled)

    def on_ack(self, row: Row) -> None:
        if row["group"].endswith(DEAD):
            group = row["group"].removesuffix(DEAD)
            self.dead_acked.update(dict.fromkeys(group_messages({**row, "group": group})))
            return
        self.groups[row["group"]] = None
        which = (row["who"], row["op"])
        for key in group_messages(row):
            if row["outcome"] == "invoke":
                self.acks.setdefault(key, {})[which] = row["generation"]
            elif row["outcome"] == "fail":
                self.acks.get(key, {}).pop(which, None)

    def _note(self, row: Row, book: dict[GroupKey, int]) -> None:
        """Write down in which generation this was said of messages."""
        if not row["group"].endswith(DEAD):
            self.groups[row["group"]] = None
            for key in group_messages(row):
                book[key] = max(row.get("generation", 0), book.get(key, 0))

    def on_redrive(self, row: Row) -> None:
        if row["group"].endswith(DEAD):
            return
        self.groups[row["group"]] = None
        for key in group_messages(row):
            if row["outcome"] == "invoke":
                self.unsure[key] = max(row["n"], self.unsure.get(key, 0))
            elif row["outcome"] == "ok" and self.unsure.get(key) == row["n"]:
                del self.unsure[key]

    def _maybe_purged(self, group: str, key: Key) -> bool:
        """Return True if a purge of the message was under way once its publish had been sent."""
        mine = (group, *key)
        return max(self.purges.until(mine), self.purges.until(dead_of(mine))) >= self.sent.get(key, 0.0)

    def _never_was(self, group: str) -> bool:
        """Return True if a FETCH began to make it, and no majority surely had it: a crash may have ended it."""
        learned = self.known.get(group)
        if learned is None or len(learned) > self.highest_rf // 2 or group in self.created:
            return False
        return all(named != group for named, *_ in self.delivered)

    def _maybe_settled(self, group: str, key: Key) -> bool:
        """Return True if the group may be done with the message before any publish of it is confirmed."""
        skipped = self.sent.get(key, 0.0) <= self.skips.until(group)
        return (
            bool(self.acks.get((group, *key)))
            or skipped
            or group in self.unmade
            or self._maybe_purged(group, key)
        )

    def _checker_stored(self, row: Row) -> None:
        if not self.rf:
            return
        sent = self.asked.get((row["who"], row["op"]), 0.0)
        sets = self.replica_sets.counting(row["topic"], row["partition"], self.rf, sent)
        for key in messages(row):
            if self.groups and all(self._maybe_settled(group, key) for group in self.groups):
                continue  # settled under an earlier try, it need not be stored by this one
            nodes = self.stored.get(key, {})
            if not any(one.has_majority(nodes) for one in sets):
                where, sizes = ", ".join(nodes) or "no node", " or ".join(str(one.size) for one in sets)
                self.broken(f"{name(key)} is confirmed, and durable on {where} of {sizes} replicas")
                return

    def drained(self) -> None:
        for group in self.groups:
            of_nodes = [register for (named, _), register in self.registers.items() if named == group]
            generation, from_ms, buried = max(of_nodes, default=(0, 0, 0))
            began = 0.0
            if 0 < generation == buried:
                continue  # a deleted group has no reader
            if not self.kept and group in self.unmade:
                continue  # payload that only this group kept was dropped while it was deleted
            if self._never_was(group):
                continue
            if not self.kept:
                from_ms = self.latest.get(group, 0)
                generation = 0
                learned = self.known.get(group, {}).values()  # maybe no node learned that it was created
                began = self.created.get(group, max(learned, default=0.0))
            for key, at in self.confirmed.items():
                if self.sent.get(key, at) < began or self.sent.get(key, at) <= self.skips.until(group):
                    continue
                mine = (group, *key)
                covered = self.published_ms.get(key, from_ms) >= from_ms
                if not covered or self.settled.get(mine, -1) >= generation:
                    continue
                purged = self._maybe_purged(group, key)
                if purged and mine in self.unsure:
                    continue
                if not self.kept and (purged or mine in self.dead_acked):
                    continue
                where = f" in generation {generation}" if generation else ""
                if self.delivered.get(mine, -1) < generation:
                    self.broken(
                        f"{name(mine)}, confirmed at {at:.4f} s, was never delivered{where} and is no dead letter"
                    )
                elif max(self.acks.get(mine, {}).values(), default=-1) < generation:
                    self.broken(
                        f"{name(mine)} was delivered{where}, nobody acked it, and it is not a dead letter"
                    )
