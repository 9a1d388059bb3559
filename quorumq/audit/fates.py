"""Each message for each group, and its end: G1, G5, G6, G7, groups and delays as asked."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any, Final

from quorumq.audit.findings import Checks, Judged, Proof, Where
from quorumq.audit.moment import Moment, maybe, seconds, sure, sure_by
from quorumq.audit.replicas import nodes_until
from quorumq.audit.story import Event, Story, crc_text


class Fate:
    """Fate of a message for a group, by all that is said of it."""

    def __init__(self, story: Story) -> None:
        self.story, self.message, self.group, self.run = story, story.message, story.group, story.run
        self.is_first = bool(story.message.published) and story.turn == 0
        self.drained = story.run.drained_at is not None
        self.complete = not story.run.lossy and not story.group.unregistered
        acks = story.of("ack")
        failed = {_call(it) for it in acks if it.outcome == "fail"} if acks else ()
        asked = [it.generation for it in acks if it.outcome == "invoke" and _call(it) not in failed]
        self.ack_asked = max(asked, default=-1)
        self.acks = [it for it in acks if it.outcome is not None and it.outcome.startswith("acked")]
        lives = [(it.generation, it.n) for it in story.of("deliver")]
        self.delivered = max(lives, default=None)
        self.delivered_in = -1 if self.delivered is None else max(it for it, _ in lives)

    # ------------------------------------------------------------------- listings

    @cached_property
    def lists(self) -> list[Event]:
        return self.story.of("list", dead=None)

    @cached_property
    def listed(self) -> list[Event]:
        """Listings of nodes that showed it as a dead letter, but for those before it was acked, redriven or purged:
        they say nothing of later changes."""
        lines = [it for it in self.lists if it.state == "dead" and not it.client]
        if not lines:
            return []
        changes: list[Moment | None] = [
            it.at for kind in ("ack", "redrive") for it in self.story.of(kind, dead=None)
        ]
        changes += [
            at for dead in (False, True) for it in self.story.purged(dead) for at in (it.sent, it.done)
        ]
        return [it for it in lines if not any(sure(it.at, at) for at in changes)]

    @cached_property
    def listing(self) -> tuple[int, int] | None:
        """Generation and redrive number of the last of these."""
        return max(((it.generation, it.n) for it in self.listed), default=None)

    @cached_property
    def shown_dead(self) -> tuple[int, int] | None:
        """Generation and redrive number of the last of all such listings."""
        return max(((it.generation, it.n) for it in self.lists if it.state == "dead"), default=None)

    @cached_property
    def listed_by(self) -> list[str]:
        return sorted({it.who for it in self.listed})

    @cached_property
    def absent(self) -> list[str]:
        """Name the nodes that did not, if they are to list such."""
        return sorted((self.story.location.to_list or frozenset()) - set(self.listed_by))

    def is_listed(self, state: str) -> bool:
        return any(it.state == state for it in self.lists)

    @cached_property
    def gone_in(self) -> int:
        """The newest generation in which it was shown as settled or dead; -1 in none."""
        gone = ("dead", "skipped", "purged", "acked")
        return max((it.generation for it in self.lists if it.state in gone), default=-1)

    # ----------------------------------------------------------------- what is known

    @cached_property
    def has_all_histories(self) -> bool:
        """Say if all clients that got it have a history: else it may have been settled without a line about it."""
        if not self.complete or self.run.simulated:
            return self.complete
        won = {it.owner for it in self.story.of("hold_won", dead=None)}
        stated = {
            it.owner for kind in ("deliver", "leave", "release") for it in self.story.of(kind, dead=None)
        }
        return not won - stated

    @cached_property
    def inventoried(self) -> bool:
        """Say if a complete listing that would show it as a dead letter began after all else that is said of it."""
        if self.run.simulated:
            return True
        said = [it.event for it in (*self.message.shared, *self.story.mine)]
        return any(
            all(sure(it.at, started) for it in said if it.kind not in ("list", "derive"))
            for started in self.story.location.inventories
        )

    @property
    def proved(self) -> bool:
        """Say if the absence of a line proves anything."""
        return self.has_all_histories and self.inventoried

    @property
    def unlisted(self) -> str:
        """Return the words about a place that no node listed; "" if it was listed."""
        if self.inventoried:
            return ""
        it = self.message
        return f", and nobody listed the dead letters of {it.topic}/{it.partition} for {self.story.grp} after that"

    # ------------------------------------------------------------------- as it should

    @cached_property
    def is_skipped(self) -> bool:
        """Say if a request from latest, when the message may have been there already, is to skip it."""
        sent = self.message.sent
        for skip in self.group.skips:
            if skip.rewind:
                over = sure(skip.done, sent)
            else:
                over = any(sure_by(skip.sent, it.at) and sure(it.at, sent) for it in self.group.confirmed)
            if not over:
                return True
        return False

    @cached_property
    def purge_asked(self) -> bool:
        """Say if a purge named it, that did not fail."""
        return any(True for _ in self.story.purged(dead=False))

    @cached_property
    def dead_purge_asked(self) -> bool:
        """Say if a purge of dead letters named it, that did not fail."""
        return any(True for _ in self.story.purged(dead=True))

    @cached_property
    def dead_acked(self) -> bool:
        """Say if a client asked to ack the dead letter."""
        return any(it.outcome == "invoke" for it in self.story.of("ack", dead=True))

    @property
    def never_was(self) -> bool:
        """Say if a FETCH began to make the group, and no majority is known to have had it: a crash may have ended
        it."""
        group, rf = self.group, self.message.rf
        return (
            group.guest
            and group.founded is None
            and group.seen is None
            and rf is not None
            and group.registered <= max(rf, group.widest) // 2
        )

    @property
    def too_early(self) -> bool:
        """Say if the message may have been dropped before the group was there."""
        group = self.group
        began = min(
            (it for it in (group.founded, group.since if group.guest else None) if it is not None),
            default=None,
        )
        return not group.kept and maybe(self.message.sent, began)

    @property
    def asked_in(self) -> int:
        """Generation in which it has to be delivered: a rewind does not bring back messages that the topic dropped."""
        return self.group.current if self.group.kept else 0

    @property
    def asked_from(self) -> int:
        """Begin of that generation, in milliseconds."""
        if self.group.kept:
            return self.group.current_from
        return max((ms for _, ms in self.group.registers), default=0)

    @cached_property
    def owed(self) -> bool:
        """Say if the group has to get the message, or to have it as a dead letter."""
        group, made = self.group, self.message.made_ms
        return (
            self.story.grp != "" and self.message.stored is not None and not group.deleted and not group.unmade
            and (made is None or made >= self.asked_from) and self.gone_in < self.asked_in
            and not self.never_was and not self.too_early
            and ((not self.is_skipped and not self.purge_asked) or self.inventoried)
        )  # fmt: skip

    @property
    def undelivered(self) -> bool:
        """Say if it was not delivered in that generation."""
        return self.delivered_in < self.asked_in

    @property
    def unacked(self) -> bool:
        """Say if no client acked it in that generation."""
        return self.ack_asked < self.asked_in

    @property
    def in_life(self) -> str:
        return f" in generation {self.asked_in}" if self.asked_in > 0 else ""

    # ----------------------------------------------------------------------- its TTL

    @cached_property
    def last_asked(self) -> Moment | None:
        """Moment when the last FETCH was sent that got it, or None."""
        items = [
            it.asked
            for it in self.story.of("deliver")
            if it.n == 0 and it.generation == 0 and it.asked is not None
        ]
        return max(items, default=None)

    @cached_property
    def had_ttl(self) -> bool:
        """Say if its TTL is asked about. Of a group that was made later a replica may have no payload any more, and
        have no say."""
        copies, rf, made_at = self.message.copies, self.message.rf, self.group.made_at
        if self.message.dies is None or not self.run.steady or rf is None or made_at is None or not copies:
            return False
        having = {who for _, who in copies}
        return (
            self.last_asked is not None and made_at < min(at.t for at, _ in copies)
            and len(having) >= rf and having >= nodes_until(self.message.moved, self.last_asked)
        )  # fmt: skip

    def ends(self) -> Iterator[Moment]:
        """Yield the moment when its TTL was over, at each replica."""
        return (at.later(self.message.dies or 0.0) for at, _ in self.message.copies)

    # ------------------------------------------------------------------ dead letters

    @cached_property
    def last_died(self) -> tuple[int, int, float] | None:
        """Generation, redrive number and time of the last of these, by the first line about it."""
        result = max(((it.generation, it.n, -it.at.t) for it in self.story.deaths), default=None)
        return None if result is None else (result[0], result[1], -result[2])

    @cached_property
    def redrives(self) -> list[Event]:
        """The redrives that were asked for, and those confirmed."""
        return [it for it in self.story.of("redrive", dead=None) if it.outcome in ("invoke", "ok")]

    @cached_property
    def last_redriven(self) -> Event | None:
        done = (it for it in self.redrives if it.outcome == "ok")
        return max(done, key=lambda it: (it.generation, it.n, it.who, it.op), default=None)

    @property
    def redrive_asked(self) -> int:
        """The highest number that was asked for; -1 if there is none."""
        return max((it.n for it in self.redrives if it.outcome == "invoke"), default=-1)

    @cached_property
    def dead_letter_gone(self) -> bool:
        """Say if a dead letter is not there any more, and nothing that was asked for explains it."""
        if self.last_died is None or self.group.deleted:
            return False
        generation, n, _ = self.last_died
        seen = self.listing or self.shown_dead
        return not (
            (generation < self.group.current and self.story.covered) or generation < self.group.buried
            or (seen is not None and seen >= (generation, n))
            or self.ack_asked >= generation or self.redrive_asked >= n or self.dead_purge_asked or self.dead_acked
        )  # fmt: skip

    @cached_property
    def redrive_lost(self) -> bool:
        """Say if no client got the redriven message, and nothing that was asked for explains it."""
        last, group = self.last_redriven, self.group
        if last is None or group.deleted or self.listing is not None or self.ack_asked >= 0:
            return False
        if self.purge_asked or self.is_skipped:
            return False
        if self.delivered is not None and (self.delivered[1] > last.n or self.delivered[0] > last.generation):
            return False
        sent = min(
            (
                it.at
                for it in self.redrives
                if it.outcome == "invoke" and (it.who, it.op) == (last.who, last.op)
            ),
            default=None,
        )
        return group.current <= 0 or any(
            it.generation == group.current and sure(it.at, sent) for it in group.confirmed
        )

    @property
    def purged_since(self) -> bool:
        """Say if a purge was sent after the death that is listed."""
        if self.listing is None:
            return False
        died = [it.at for it in self.story.deaths if (it.generation, it.n) == self.listing]
        purges = [it for it in self.story.purged(dead=True) if it.done is not None and it.sent is not None]
        return any(sure(at, it.sent) for at in died for it in purges)

    @property
    def was_void(self) -> bool:
        """Say if a newer generation has the message."""
        made = self.message.made_ms or 0
        return self.listing is not None and any(
            of > self.listing[0] and made >= ms for of, ms in self.group.registers
        )


def _call(event: Event) -> tuple[int, str, int]:
    return event.generation, event.who, event.op


def _time(at: Moment | None) -> str:
    return seconds(None if at is None else at.t)


# --------------------------------------------------------------------------- checks


CHECKS: Final = Checks[Fate]()


@CHECKS.of("G1", "confirmed, and never delivered")
def undelivered(it: Fate) -> Proof | None:
    if not it.drained or not it.undelivered or not it.owed:
        return None
    lost = f"was never delivered{it.in_life} and is no dead letter{it.unlisted}"
    return Proof(f"confirmed at {_time(it.message.stored)}, {lost}", it.proved)


@CHECKS.of("G1", "delivered, and never acked")
def unacked(it: Fate) -> Proof | None:
    if not it.drained or it.undelivered or not it.unacked or not it.owed:
        return None
    return Proof(
        f"was delivered{it.in_life}, nobody acked it, and it is no dead letter{it.unlisted}", it.proved
    )


@CHECKS.of("G1", "confirmed with too few copies")
def too_few_copies(it: Fate) -> Proof | None:
    message = it.message
    if not it.is_first or message.stored is None or message.rf is None:
        return None
    if not message.counting or any(one.has_majority(message.durable_on) for one in message.counting):
        return None
    on = ", ".join(message.durable_on) or "none"
    sizes = " or ".join(str(size) for size in sorted({one.size for one in message.counting}))
    text = f"was confirmed at {_time(message.stored)}, and durable on {on} of {sizes} replicas"
    return Proof(text, it.complete and not it.run.unstopped, message.stored.t)


@CHECKS.of("delays", "delivered after its TTL")
def outlived(it: Fate) -> Proof | None:
    if not it.had_ttl or not all(maybe(end, it.last_asked) for end in it.ends()):
        return None
    certain = not it.run.lossy and all(sure(end, it.last_asked) for end in it.ends())
    text = f"delivered to a FETCH sent at {_time(it.last_asked)}, after its TTL was over at all its replicas"
    return Proof(text, certain, None if it.last_asked is None else it.last_asked.t)


@CHECKS.of("G5", "published again with other bytes")
def retried_otherwise(it: Fate) -> Proof | None:
    message = it.message
    if (
        not it.is_first
        or message.first_crc == message.last_crc
        or message.producer_id.startswith("~derived.")
    ):
        return None
    text = f"published as {crc_text(message.first_crc)} and as {crc_text(message.last_crc)}"
    return Proof(text, at=message.last_try and message.last_try.t)


@CHECKS.of("G5", "sent again under another name")
def sent_again_otherwise(it: Fate) -> Proof | None:
    if not it.is_first or not it.message.misnamed:
        return None
    event = it.message.misnamed[0]
    text = f"was sent again by {event.who} at {seconds(event.at.t)}, and the first try named other messages"
    return Proof(text, not it.run.lossy, event.at.t)


@CHECKS.of("G6", "refused as a conflict with its own bytes")
def refused_retry(it: Fate) -> Proof | None:
    message = it.message
    if not it.is_first or not message.conflict or message.first_crc != message.last_crc:
        return None
    return Proof(
        "refused as a conflict, and every retry has the same bytes",
        at=message.last_try and message.last_try.t,
    )


@CHECKS.of("G7", "listed twice by one replica")
def listed_twice(it: Fate) -> Proof | None:
    return Proof("listed twice by one replica") if len(it.listed) > len(it.listed_by) else None


@CHECKS.of("G7", "listed by some replicas only")
def not_listed_by_all(it: Fate) -> Proof | None:
    if not it.drained or not it.listed or not it.absent:
        return None
    return Proof(f"is listed by {', '.join(it.listed_by)} and not by {', '.join(it.absent)}", it.complete)


@CHECKS.of("G7", "listed differently")
def listed_differently(it: Fate) -> Proof | None:
    if not it.drained or len({(one.generation, one.n) for one in it.listed}) < 2:
        return None
    rows = [{"who": one.who, "generation": one.generation, "n": one.n} for one in it.listed]
    return Proof(f"listed differently: {json.dumps(rows, separators=(',', ':'))}")


@CHECKS.of("G7", "listed in a deletion of its group")
def listed_of_a_deletion(it: Fate) -> Proof | None:
    if not it.drained or it.listing is None or it.listing[0] >= it.group.buried:
        return None
    return Proof(f"listed dead in generation {it.listing[0]}, and its group was deleted")


@CHECKS.of("G7", "listed after it was acked")
def listed_after_ack(it: Fate) -> Proof | None:
    if not it.drained:
        return None
    pairs = [(ack.at, one.at) for one in it.listed for ack in it.acks if ack.generation >= one.generation]
    return _after(pairs, "listed dead, and an ACK of it was confirmed")


@CHECKS.of("G7", "listed after it was redriven")
def listed_after_redrive(it: Fate) -> Proof | None:
    if not it.drained or it.listing is None:
        return None
    pairs = [
        (redrive.at, one.at) for one in it.listed for redrive in it.redrives
        if redrive.outcome == "ok" and redrive.generation == one.generation and one.n <= redrive.n
    ]  # fmt: skip
    return _after(pairs, f"listed dead at n = {it.listing[1]}, whose redrive was confirmed")


def _after(pairs: Iterable[tuple[Moment, Moment]], text: str) -> Proof | None:
    items = [pair for pair in pairs if maybe(*pair)]
    return Proof(text, any(sure(*pair) for pair in items)) if items else None


@CHECKS.of("G7", "listed after it was purged")
def listed_after_purge(it: Fate) -> Proof | None:
    if not it.drained or it.listing is None:
        return None
    last = max((one.n for one in it.story.deaths if one.generation == it.listing[0]), default=None)
    if it.listing[1] != last or not it.purged_since or it.was_void:
        return None
    return Proof(f"listed dead at n = {it.listing[1]}, and was purged")


@CHECKS.of("G7", "a dead letter that is gone")
def dead_letter_gone(it: Fate) -> Proof | None:
    if not it.drained or it.last_died is None or not it.dead_letter_gone:
        return None
    _, n, at = it.last_died
    return Proof(f"a dead letter at n = {n} since {seconds(at)}, is gone{it.unlisted}", it.proved)


@CHECKS.of("G7", "redriven, and never delivered")
def redrive_lost(it: Fate) -> Proof | None:
    if not it.drained or it.last_redriven is None or not it.redrive_lost:
        return None
    return Proof(f"redriven at n = {it.last_redriven.n}, and nobody ever got it{it.unlisted}", it.proved)


@CHECKS.of("groups", "skipped, and nobody purged it")
def skipped(it: Fate) -> Proof | None:
    if not it.lists or not it.is_listed("skipped") or it.purge_asked or it.is_skipped or not it.story.covered:
        return None
    return Proof("is skipped, and nobody purged it", it.complete)


@CHECKS.of("groups", "purged, and nobody purged or acked it")
def purged(it: Fate) -> Proof | None:
    if not it.lists or not it.is_listed("purged") or it.dead_purge_asked or it.dead_acked:
        return None
    return Proof("is purged, and nobody purged or acked the dead letter", it.complete)


def check(story: Story, where: Where, out: Judged) -> None:
    """Ask all of these of a message for a group, and count."""
    it = Fate(story)
    run, message = story.run, story.message
    at = run.drained_at if run.drained_at is not None else run.ends_at
    out.ask(CHECKS, it, where, at, story.lines)
    pending = not it.drained and (it.undelivered or it.unacked) and it.owed
    confirmed = story.grp != "" and message.stored is not None and story.covered
    counted = it.is_first and message.stored is not None and message.rf is not None
    out.count(run.run, "G1", confirmed or counted, pending)
    out.count(run.run, "G4", False, pending)
    out.count(run.run, "G6", it.is_first and message.tries > 1)
    out.count(run.run, "delays", it.had_ttl)
    dead_letter = it.last_died is not None or it.last_redriven is not None or it.listing is not None
    if dead_letter:
        open_ = not it.drained and (it.dead_letter_gone or it.redrive_lost)
        out.count(run.run, "G7", True, open_)
        _divergence(it, out)


def _divergence(it: Fate, out: Judged) -> None:
    """Keep a dead letter that some of the nodes that listed theirs do not list."""
    nodes = [who for who in it.listed_by if who.startswith("node:")]
    absent = sorted(it.story.location.listing - set(nodes))
    if nodes and absent:
        message = it.message
        row: dict[str, Any] = {
            "run": message.run, "topic": message.topic, "partition": message.partition, "group": it.story.grp,
            "producer_id": message.producer_id, "seq": message.seq, "listed_by": ", ".join(nodes),
            "missing_at": ", ".join(absent),
        }  # fmt: skip
        out.divergence.append(row)
