"""Dead letters are conserved (promise G7): once confirmed one exists, once, until redriven, purged or acked.

The promise: a dead letter confirmed at redrive number n is not delivered at n or below again in that generation;
nothing is delivered at n + 1 without a request for that redrive, and a
confirmed redrive is not undone. In the end, if the run was drained, each replica lists the same dead letters,
each once, and none that was redriven, purged or acked with OK. Each confirmed one is among them, unless
a client asked to purge or to ack it, or it was delivered again: a redriven message never vanishes, with any outcome
of the request, and with any rewind before or after it.

A client's REJECT confirms a dead letter. One that nodes bury is confirmed once a majority says that it is durable
there, or two nodes if no line says how many replicas there are. A listing has the dead letters of its time: it says
nothing of the end for a message that was redriven, acked or purged later.

A rewind whose generation covers a dead letter opens the message again; one that does not cover it leaves it standing,
and a redriven one open. A deletion of the group voids it.
"""

from __future__ import annotations

from quorumq.core.values.names import begins_ms_of
from quorumq.history import Row
from sim.checkers.base import (
    DEAD,
    DrainedChecker,
    GroupKey,
    Key,
    Life,
    Named,
    Purges,
    SettingsChecker,
    Skips,
    dead_of,
    group_messages,
    messages,
    name,
    naming,
    purged_by,
)


class DeadLettersConserved(DrainedChecker, SettingsChecker):
    promise = "dead letters conserved"

    def __init__(self) -> None:
        super().__init__()
        self.published_ms: dict[Key, int] = {}
        self.registers: dict[tuple[str, str], tuple[int, int]] = {}  # (group, node) -> generation, from_ms
        # (Group, node or client that says so) -> the generation of its last deletion.
        self.buried: dict[tuple[str, str], int] = {}
        # Group -> generation -> from_ms, all there ever were.
        self.generations: dict[str, dict[int, int]] = {}
        # Generation -> highest n dead, and when.
        self.confirmed: dict[GroupKey, dict[int, tuple[int, float]]] = {}
        self.buried_by: dict[tuple[GroupKey, Life], dict[str, None]] = {}  # nodes on which it is durable
        self.asked: dict[GroupKey, int] = {}  # the highest n that a redrive was asked for
        # Generation -> highest n confirmed, sent.
        self.redriven: dict[GroupKey, dict[int, tuple[int, float]]] = {}
        self.sent: dict[tuple[str, int], float] = {}
        self.ack_asked: dict[GroupKey, int] = {}  # the newest generation in which an ACK was asked for
        self.acked: dict[GroupKey, int] = {}  # … was confirmed
        self.purges = Purges()
        # When the last confirmed purge of dead letters was sent.
        self.purged: dict[Named, float] = {}
        self.skips = Skips()
        self.dead_acked: dict[GroupKey, None] = {}  # an ACK of the dead letter was asked for
        self.delivered: dict[GroupKey, Life] = {}  # the highest
        self.listed: dict[str, dict[GroupKey, tuple[Life, float]]] = {}  # time of the listing, by its node
        self.changed: dict[Named, float] = {}  # when a line last spoke of its redrive, its ACK or its purge

    def on_publish(self, row: Row) -> None:
        if row["outcome"] == "invoke":
            for key in messages(row):
                self.published_ms[key] = begins_ms_of(key[1], row.get("published_ms", 0))

    def on_fetch(self, row: Row) -> None:
        self.skips.see(row)

    on_set_group = on_fetch

    def on_register(self, row: Row) -> None:
        self.skips.see(row)
        self.registers[(row["group"], row["who"])] = (row["generation"], row["from_ms"])
        self.buried[(row["group"], row["who"])] = row.get("buried", 0)
        self.generations.setdefault(row["group"], {})[row["generation"]] = row["from_ms"]

    def on_delete_group(self, row: Row) -> None:
        if row["outcome"] == "ok":
            self.buried[(row["group"], row["who"])] = row.get("generation", 0)

    def on_dead_letter(self, row: Row) -> None:
        if row["outcome"] != "ok":
            return
        for key in group_messages(row):
            if row["who"].startswith("node:"):
                nodes = self.buried_by.setdefault((key, (row["generation"], row["n"])), {})
                nodes[row["who"]] = None
                if len(nodes) <= (self.highest_rf // 2 or 1):
                    continue
            lives = self.confirmed.setdefault(key, {})
            if lives.get(row["generation"], (-1, 0.0))[0] < row["n"]:
                lives[row["generation"]] = (row["n"], row["at"])

    def on_redrive(self, row: Row) -> None:
        self.changed.update((key, row["at"]) for key in group_messages(row))
        if row["outcome"] == "invoke":
            self.sent[(row["who"], row["op"])] = row["at"]
            for key in group_messages(row):
                self.asked[key] = max(self.asked.get(key, -1), row["n"])
        elif row["outcome"] == "ok":
            sent = self.sent[(row["who"], row["op"])]
            for key in group_messages(row):
                lives = self.redriven.setdefault(key, {})
                if lives.get(row["generation"], (-1, 0.0))[0] < row["n"]:
                    lives[row["generation"]] = (row["n"], sent)

    def on_purge(self, row: Row) -> None:
        self.changed.update((key, row["at"]) for key in purged_by(row))
        sent = self.purges.see(row)
        if row["outcome"] == "ok" and row["group"].endswith(DEAD):
            for named in purged_by(row):
                self.purged[named] = max(self.purged.get(named, 0.0), sent)

    def on_ack(self, row: Row) -> None:
        outcome = row["outcome"]
        self.changed.update((key, row["at"]) for key in group_messages(row))
        if row["group"].endswith(DEAD):
            if outcome == "invoke":
                self.dead_acked.update((source_of(key), None) for key in group_messages(row))
            return
        book = self.ack_asked if outcome == "invoke" else self.acked
        if outcome == "invoke" or outcome.startswith("acked"):
            for key in group_messages(row):
                book[key] = max(book.get(key, 0), row["generation"])

    def on_deliver(self, row: Row) -> None:
        generation, n = row["generation"], row["n"]
        for key in group_messages(row):
            if row["group"].endswith(DEAD):  # it lived at that n, with any receiver, and died again
                source = source_of(key)
                self.delivered[source] = max((generation, n), self.delivered.get(source, (0, 0)))
                continue
            self.delivered[key] = max((generation, n), self.delivered.get(key, (0, 0)))
            dead, when = self.confirmed.get(key, {}).get(generation, (-1, 0.0))
            if n <= dead:
                self.broken(f"{name(key)} was delivered at n = {n}, dead at n = {dead} since {when:.4f} s")
            if n > self.asked.get(key, -1) + 1:
                self.broken(f"{name(key)} was delivered at n = {n}, and nobody redrove it so often")

    def on_list(self, row: Row) -> None:
        if row["state"] != "dead":
            return
        mine = self.listed.setdefault(row["who"], {})
        for key in group_messages(row):
            if key in mine and self.still_listed({key: mine[key]}):
                self.broken(f"{row['who']} lists {name(key)} twice")
            mine[key] = ((row.get("generation", 0), row["n"]), row["at"])

    def still_listed(self, mine: dict[GroupKey, tuple[Life, float]]) -> dict[GroupKey, Life]:
        """Return the listed dead letters, without messages that a later request names."""

        def since(key: GroupKey) -> float:
            return max(self.changed.get(named, 0.0) for named in (*naming(key), *naming(dead_of(key))))

        return {key: life for key, (life, at) in mine.items() if at >= since(key)}

    def _may_be_skipped(self, key: GroupKey, since: float) -> bool:
        """Return True if a purge of the backlog, or a request from latest, may have skipped it while it was open."""
        return self.purges.may_be(key) or self.skips.until(key[0]) >= since

    # ------------------------------------------------------------------ the end

    def current(self, group: str) -> Life:
        """Return the group's generation at the end, and its beginning."""
        return max((it for (named, _), it in self.registers.items() if named == group), default=(0, 0))

    def deleted_at(self, group: str) -> int:
        """Return the generation of its last deletion. An unconfirmed one that was lost in a crash never was."""
        return max((it for (named, _), it in self.buried.items() if named == group), default=0)

    def was_void(self, key: GroupKey, generation: int) -> bool:
        """Return True if a newer generation than this one has ever covered the message."""
        newer = [start for other, start in self.generations.get(key[0], {}).items() if other > generation]
        return any(self.published_ms.get(key[1:], 0) >= start for start in newer)

    def drained(self) -> None:
        union: dict[GroupKey, Life] = {}
        listed = {who: self.still_listed(mine) for who, mine in self.listed.items()}
        for mine in listed.values():
            union.update(mine)
        for key, (generation, n) in union.items():
            holders = {who: mine[key] for who, mine in listed.items() if key in mine}
            if len({*holders.values()}) > 1:
                self.broken(f"{name(key)} is listed differently: {holders}")
            if generation < self.deleted_at(key[0]):
                self.broken(
                    f"{name(key)} is listed dead in generation {generation}, and its group was deleted"
                )
            if self.acked.get(key, -1) >= generation:
                self.broken(f"{name(key)} is listed dead, and an ACK of it was confirmed")
            if n <= self.redriven.get(key, {}).get(generation, (-1, 0.0))[0]:
                self.broken(f"{name(key)} is listed dead at n = {n}, whose redrive was confirmed")
            dead, when = self.confirmed.get(key, {}).get(generation, (-1, 0.0))
            purged = when < max(self.purged.get(named, 0.0) for named in naming(dead_of(key)))
            if n == dead and purged and not self.was_void(key, generation):
                self.broken(f"{name(key)} is listed dead at n = {n}, and was purged")
        gone: dict[GroupKey, None] = {}
        for key, redrives in self.redriven.items():
            generation, (n, sent) = max(redrives.items())
            over = key in union or generation < self.deleted_at(key[0])
            if not over and not self._lives_on(key, generation, n, sent):
                gone[key] = None
                self.broken(f"{name(key)} was redriven at n = {n}, and nobody ever got it")
        for key, lives in self.confirmed.items():
            if key not in gone:
                self._is_there(key, max(lives.items()), union.get(key))

    def _is_there(self, key: GroupKey, last: tuple[int, tuple[int, float]], listed: Life | None) -> None:
        """Check that a confirmed dead letter is listed, unless there is a reason why not."""
        generation, (n, when) = last
        if generation < self.deleted_at(key[0]):
            return
        current, from_ms = self.current(key[0])
        if generation < current and self.published_ms.get(key[1:], from_ms) >= from_ms:
            return  # it is open again
        if listed is not None and listed >= (generation, n):
            return
        if not self._lives_on(key, generation, n, when):
            self.broken(f"{name(key)}, a dead letter at n = {n} since {when:.4f} s, is gone")

    def _lives_on(self, key: GroupKey, generation: int, n: int, since: float) -> bool:
        """Return True if a dead letter at n, or the message it was redriven to, was delivered again or settled."""
        if self.delivered.get(key, (0, 0)) > (generation, n) or self.ack_asked.get(key, -1) >= generation:
            return True
        if self.purges.may_be(dead_of(key)) or key in self.dead_acked:
            return True
        was_open = self.asked.get(key, -1) >= n or self.was_void(key, generation)
        return was_open and self._may_be_skipped(key, since)


def source_of(key: GroupKey) -> GroupKey:
    """Return a message of a group of dead letters, for the group that they are of."""
    return (key[0].removesuffix(DEAD), *key[1:])
