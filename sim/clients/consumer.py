"""A consumer, of messages or of dead letters."""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from crc32c import crc32c

from quorumq.core import messages as m
from quorumq.core.values.deadnames import DEAD_SUFFIX
from quorumq.core.values.errors import Code
from quorumq.core.values.limits import DEADLINE_SHARE, TOPIC_BACKOFF_S
from quorumq.core.values.types import Batch, Death, Receipt, Span, Stamp
from quorumq.history import token_text
from sim.clients.calls import Call
from sim.clients.client import Answer, nothing_done, refused_as_deleted, told_by
from sim.clients.outputs import Deriving, Taken
from sim.clients.surroundings import LATE_GROUP, STRAY_GROUP, Surroundings
from sim.topics import OUTPUTS, TOPIC

LONG = 0.2
"""Share of the deliveries that are worked on for most of their hold, if a node is silent."""


class Consumer(Deriving):
    """Fetches, works, and settles its messages in every way there is.

    A reader of dead letters does the same with those, until everything is healed: they may stay.
    """

    def __init__(
        self, around: Surroundings, name: str, group: str, start: str = "earliest", topic: str = "jobs"
    ) -> None:
        super().__init__(around, name, group)
        self.topic = topic
        self.start = start
        self.of_dead = group.endswith(DEAD_SUFFIX)
        self.derives = (
            bool(self.options.derive)
            and topic == "jobs"
            and group not in (LATE_GROUP, STRAY_GROUP)
            and not self.of_dead
        )
        self.names: tuple[str, ...] = (topic,)  # topics that it asks for: patterns, too
        self.apart = False  # True if a FETCH asks for one of them at a time
        self.part: tuple[int, ...] = ()  # the partitions that it asks for until all is healed; (): all
        self.first_node = ""  # that it asks first
        self.home = self.node() if self.options.silent else ""  # that it asks always
        self.refused: dict[
            str, None
        ] = {}  # nodes that have refused since the last answer, if waits are bounded
        self.sees = False  # True once it has got a message of its group, which then is there
        self.claimed: dict[Receipt, None] = {}
        self.old: list[Receipt] = []
        self.in_hand = 0  # deliveries that are worked on
        self.had_lot = False  # True if the last messages were suspects
        self.fetching = False  # True while a FETCH is open, for a consumer without two at once

    def begin(self, _: object = None, __: object = None) -> None:
        self.fetch()

    def on_another(self, deletions: int) -> None:
        self.sees = False
        super().on_another(deletions)

    def fetch(self) -> None:
        """Send one FETCH; the next follows when its messages are dealt with."""
        rng, options = self.rng, self.options
        if self.of_dead and self.world.healed:
            return
        shortest, longest = options.hold_times
        hold = shortest if rng.random() < 0.5 else rng.uniform(shortest, longest)
        wait = rng.choice((0.0, 0.2, 1.0 if not options.wait_max else 2.0))
        at_once = self.world.healed or options.wait_max
        least = 1 if at_once or rng.random() < 0.8 else rng.randint(1, options.fetch_messages)
        most = options.fetch_healed if self.world.healed else options.fetch_messages
        asked = self.world.time
        sent_at = self.clock.mono(asked)
        request = m.Fetch(
            (rng.choice(self.names),) if self.apart else self.names,
            self.group,
            most,
            1 << 20 if self.world.healed else self.options.fetch_bytes,
            least,
            wait,
            hold,
            sent_at,
            self.name,
            partitions=() if self.world.healed else self.part,
            start=self.start,
            idle=not self.in_hand,
            had_lot=self.had_lot,
        )
        if options.by_id and not self.world.healed and self.old and rng.random() < options.by_id:
            request = self.by_id(request)
        node, self.first_node = self.first_node or self.home or self.node(*self.refused), ""
        calls = self.begins(request, node)

        def then(answer: Answer, batches: Any) -> None:
            self.fetching = False
            for call in calls:
                self.came_of_fetch(call, answer)
            if isinstance(answer, m.FetchReply):
                self.refused.clear()
                if answer.slices:
                    self.had_lot = any(sent.suspect for part in answer.slices for sent in part.deliveries)
                if request.spans and answer.slices:
                    self.world.saw("a message was fetched by its id")
                self.on_fetched(answer, batches, asked, node)
            else:
                if self.options.wait_max:
                    self.refused[node] = None
                if refused_as_deleted(answer):
                    self.world.saw("a FETCH was refused: its topic was deleted")
                elif isinstance(answer, m.Failed) and "was deleted" in answer.detail:
                    self.world.saw("a FETCH was refused: its group was deleted")
                elif isinstance(answer, m.Failed) and "no group" in answer.detail:
                    self.world.saw("a FETCH was refused: nobody created its group")
                gone = isinstance(answer, m.Failed) and answer.code == Code.NOT_FOUND
                if gone and self.world.healed and len(self.names) > 1:  # one may still be read
                    self.apart = True
                self.later(0.03 + self.rng.random() * 0.15, self.fetch)

        self.fetching = True
        op = self.ask(node, request, min(wait, hold / 10) + 2.0, then)
        if not self.world.healed and rng.random() < options.release:
            self.later(rng.random() * 0.1, self.hang_up, op)

    def begins(self, request: m.Fetch, node: str) -> list[Call]:
        """Write the lines of a FETCH that may make the group, for each partition that it names."""
        if self.sees or self.of_dead or self.topic != TOPIC:
            return []
        locations = [{"partition": number} for number in request.partitions] or [{}]
        calls = [
            self.by_name("fetch", node, {"group": self.group, **location}, start=request.start)
            for location in locations
        ]
        if self.options.derive and any(fnmatchcase(OUTPUTS, pattern) for pattern in self.names):
            for call in calls:
                self.invoke(call, OUTPUTS)
        return calls

    def came_of_fetch(self, call: Call, answer: Answer) -> None:
        """Note the outcome of a FETCH: the group reads the topics whose messages it brought."""
        self.answered(call, answer)
        if not isinstance(answer, m.FetchReply):
            self.came_of(call, "fail" if nothing_done(answer) else "unknown")
            return
        got: dict[str, int] = {}
        for part in answer.slices:
            if part.partition.number == call.fields.get("partition", part.partition.number):
                label = self.topics.names[part.partition.topic]
                got[label] = got.get(label, 0) + part.stop - part.first
        self.sees = self.sees or any(label in call.ops for label in got)
        if not got and self.names == (TOPIC,) and (reached := self.reached(call)):
            got[reached] = 0
        for label in call.ops:
            if label in got:
                self.came_of(call, "ok", label, messages=got[label])
            else:
                self.came_of(call, "unknown", label)

    def by_id(self, request: m.Fetch) -> m.Fetch:
        """Return the same FETCH for messages that were delivered before, or for one that may never be there."""
        receipt = self.rng.choice(self.old)
        producer_id, start, stop = receipt.span
        span = Span(producer_id, start, min(stop, start + 64) + self.rng.choice((0, 0, 1)))
        return request._replace(max_wait=0.0, partitions=(receipt.partition.number,), spans=(span,))

    def hang_up(self, op: int) -> None:
        """Close the connection on which a FETCH is open, and begin again."""
        if op in self.pending:
            self.give_up(op)
            self.fetching = False
            self.later(0.05, self.fetch)

    def on_fetched(self, answer: m.FetchReply, batches: tuple[Batch, ...], asked: float, node: str) -> None:
        """Hand to the application the messages that may still be handed over."""
        rng, world, options = self.rng, self.world, self.options
        if not answer.slices:
            self.later(0.05 + rng.random() * 0.25, self.fetch)
            return
        until = self.clock.true_time(self.counts_from(answer) + DEADLINE_SHARE * answer.hold_time)
        taken: list[Taken] = []
        unused: list[Receipt] = []
        for part, batch in zip(answer.slices, batches, strict=True):
            at = part.first
            for delivery in part.deliveries:
                receipt = delivery.receipt
                start, at = at, at + receipt.span.size
                shirks = not world.healed and rng.random() < options.release
                if world.time >= until or shirks:
                    unused.append(receipt)
                    continue
                self.deliver(batch, start, at, delivery, until, asked, node)
                records = self.records(batch, start, at) if self.derives else ()
                taken.append(Taken(receipt, until, records))
        if unused and (world.healed or rng.random() < 0.8):
            self.release(unused)
        self.work(taken, answer.hold_time)

    def counts_from(self, answer: m.FetchReply) -> float:
        """Return the time from which a hold counts, by the client's clock: when its FETCH was sent."""
        return answer.sent_at

    def deliver(
        self, batch: Batch, start: int, stop: int, delivery: m.Delivery, until: float, asked: float, via: str
    ) -> None:
        """Hand records [start, stop) of the batch to the application."""
        receipt = delivery.receipt
        crcs = "".join([f"{crc32c(record):08x}" for record in self.records(batch, start, stop)])
        self.world.note(
            self.who,
            "deliver",
            **self.topics.described(receipt),
            token=token_text(receipt.owner.ballot),
            attempt=delivery.attempt,
            until=until,
            asked=asked,
            crcs=crcs,
            via=via,
        )
        if self.of_dead:
            self.world.saw("a dead letter was fetched")
        elif receipt.generation:
            self.world.saw("a delivery of a new generation")
        if self.options.distance > 0.15 * (until - asked):
            self.world.saw("a delivery was won though answers take a third of its hold")
        counts = self.around.counts
        counts.delivered += receipt.span.size
        if delivery.attempt > 1:
            counts.redelivered += receipt.span.size
        if len(self.old) < 200:
            self.old.append(receipt)
        else:
            self.old[self.rng.randrange(200)] = receipt

    def records(self, batch: Batch, start: int, stop: int) -> tuple[bytes, ...]:
        """Return the bytes of records [start, stop) of the batch."""
        header, body = batch.header, memoryview(batch.body)
        return tuple(bytes(body[header.end_of(i - 1) : header.end_of(i)]) for i in range(start, stop))

    def work(self, taken: list[Taken], hold: float) -> None:
        """Take some time, then settle; sometimes fetch more meanwhile."""
        rng, options = self.rng, self.options
        if not taken:
            self.later(0.01, self.fetch)
            return
        seconds = rng.expovariate(1 / 0.05)
        if self.world.healed:
            seconds = min(seconds, 0.02)
        elif options.silent and rng.random() < LONG:
            seconds = hold * rng.uniform(0.6, 0.9)
        elif rng.random() < options.slow:
            seconds = hold * rng.uniform(0.8, 3.0)
        elif rng.random() < options.extend:
            for _ in range(rng.choice((1, 1, 2, 3))):  # by any time, also by less than what is left
                more = hold if rng.random() < 0.5 else rng.uniform(*options.hold_times)
                self.later(hold * rng.uniform(0.1, 0.9), self.extend, [item.receipt for item in taken], more)
            seconds = hold * rng.uniform(0.9, 2.0)
        elif options.claim and rng.random() < options.claim:
            claim = options.hold_time_max * rng.uniform(1.1, 2.0)
            self.later(hold * rng.uniform(0.0, 0.8), self.claim, [item.receipt for item in taken], claim)
            seconds = claim * rng.uniform(0.5, 1.2)
        ahead = rng.random() < 0.3
        self.in_hand += len(taken)
        self.later(seconds, self.settle, taken, not ahead)
        if ahead:
            self.later(0.001, self.fetch)

    def settle(self, taken: list[Taken], then_fetch: bool) -> None:
        """Settle each of them by ACK, REJECT or dead-letter, or send no request at all."""
        rng, options = self.rng, self.options
        self.in_hand -= len(taken)
        acks: list[m.ReceiptPart] = []
        rejects: list[m.ReceiptPart] = []
        deads: list[m.ReceiptPart] = []
        for receipt, _, _ in taken:
            span = receipt.span
            whole = m.ReceiptPart(receipt, (span,))
            if self.world.healed:
                acks.append(whole)
            elif rng.random() < options.vanish:
                continue
            elif options.shred and rng.random() < options.shred:
                every = range(span.start, span.stop, 2)
                acks.append(
                    m.ReceiptPart(receipt, tuple(Span(span.producer_id, seq, seq + 1) for seq in every))
                )
            elif rng.random() < options.reject:
                rejects.append(whole)
            elif rng.random() < options.dead and not self.of_dead:
                deads.append(whole)
            elif span.size > 1 and rng.random() < options.partial:
                middle = rng.randrange(span.start + 1, span.stop)
                acks.append(m.ReceiptPart(receipt, (Span(span.producer_id, span.start, middle),)))
                rejects.append(m.ReceiptPart(receipt, (Span(span.producer_id, middle, span.stop),)))
            else:
                acks.append(whole)
        if rejects:
            delay = round(rng.random() * options.delay, 3)
            if rng.random() < options.by_topic:
                delay = TOPIC_BACKOFF_S
            self.call("reject", tuple(rejects), 3, delay=delay)
        if deads:
            self.call("dead_letter", tuple(deads), 3)
        if acks and self.derives:
            self.derive(taken, lambda: self.call("ack", tuple(acks), 6))
        elif acks:
            self.call("ack", tuple(acks), 6)
        if not self.world.healed and self.old and rng.random() < options.replay:
            self.later(rng.random() * 2.0, self.replay)
        if then_fetch:
            self.later(0.001, self.fetch)

    def replay(self) -> None:
        """Try an old receipt again."""
        receipt = self.rng.choice(self.old)
        if self.topics.is_over(receipt.partition.topic) and self.topics.current is not None:
            self.world.saw("an old receipt was used when its topic had been created again")
        items = (m.ReceiptPart(receipt, (receipt.span,)),)
        kind = self.rng.choice(("ack", "ack", "reject", "dead_letter", "extend"))
        if self.derives and kind == "ack":  # without its outputs
            kind = "reject"
        if self.of_dead and kind == "dead_letter":  # a dead letter dies no second time
            kind = "ack"
        if kind == "extend":
            self.extend([receipt], self.options.hold_times[0])
        else:
            self.call(kind, items, 1, delay=0.1)

    def extend(self, receipts: list[Receipt], hold: float) -> None:
        """Ask for more time."""
        items = tuple(m.ReceiptPart(receipt, (receipt.span,)) for receipt in receipts)
        kind = "claim" if any(receipt in self.claimed for receipt in receipts) else "extend"
        self.call(kind, items, 2, hold_time=hold)

    def claim(self, receipts: list[Receipt], seconds: float) -> None:
        """Ask for more time than any hold gives."""
        self.claimed.update(dict.fromkeys(receipts))
        items = tuple(m.ReceiptPart(receipt, (receipt.span,)) for receipt in receipts)
        self.call("claim", items, 2, hold_time=seconds)

    def release(self, receipts: list[Receipt]) -> None:
        """Give back the messages that the application never got."""
        items = self.named(tuple(m.ReceiptPart(receipt, (receipt.span,)) for receipt in receipts))
        node = self.node()
        op = self.next_op()
        for receipt in receipts:
            self.world.note(self.who, "leave", **self.topics.described(receipt), op=op, via=node)
        self.world.saw("a delivery was left")
        self.ask(node, m.ReleaseRequest(items), 1.0, lambda answer, _: None, op)

    def call(
        self,
        kind: str,
        items: tuple[m.ReceiptPart, ...],
        tries: int,
        *,
        delay: float = 0.0,
        hold_time: float = 0.0,
        interrupted: bool = False,
        tried: str = "",
    ) -> None:
        """Send one settling request, repeated through other nodes while its outcome is unknown."""
        items = self.named(items)
        node = self.node(tried)
        op = self.next_op()
        world = self.world
        sent_at = self.clock.mono(world.time)
        request: m.ClientRequest
        extra: dict[str, Any] = {}
        if kind == "ack":
            request = m.AckRequest(items)
        elif kind == "reject":
            request = m.RejectRequest(items, delay, interrupted=interrupted)
            extra = {"delay": delay} if delay != TOPIC_BACKOFF_S else {}
            extra |= {"interrupted": True} if interrupted else {}
        elif kind in ("extend", "claim"):
            request = m.ExtendRequest(items, hold_time, sent_at)
            extra = {"hold_time": hold_time}
        else:
            death = Death(Stamp(0, ""), "rejected", "Error", f"by {self.name}", consumer=self.name)
            request = m.RejectRequest(items, 0.0, death)
        for receipt, spans in items:
            fields = self.topics.described(receipt, spans)
            world.note(self.who, kind, **fields, op=op, outcome="invoke", via=node, **extra)

        def then(answer: Answer, _: Any) -> None:
            again = self.on_settled(kind, items, answer, op, sent_at + DEADLINE_SHARE * hold_time)
            if again and (tries > 1 or (world.healed and kind == "ack")):
                how: dict[str, Any] = {"delay": delay, "hold_time": hold_time, "interrupted": interrupted}
                how["tried"] = node
                self.later(0.02 + self.rng.random() * 0.1, partial(self.call, kind, again, tries - 1, **how))

        self.ask(node, request, self.timeout, then, op)

    def named(self, items: tuple[m.ReceiptPart, ...]) -> tuple[m.ReceiptPart, ...]:
        """Return the same messages; if a step votes on few runs perhaps each by itself, which then takes many steps."""
        if not self.options.runs_per_step or self.rng.random() < 0.5:
            return items
        return tuple(
            m.ReceiptPart(
                receipt,
                tuple(Span(span.producer_id, seq, seq + 1) for span in spans for seq in range(*span[1:])),
            )
            for receipt, spans in items
        )

    def on_settled(
        self, kind: str, items: tuple[m.ReceiptPart, ...], answer: Answer, op: int, until: float
    ) -> tuple[m.ReceiptPart, ...]:
        """Write down the verdicts; return the parts to try again."""
        world = self.world
        unknown: list[m.ReceiptPart] = []
        if not isinstance(answer, m.SettleReply):
            outcome = "fail" if nothing_done(answer) else "unknown"
            for receipt, spans in items:
                world.note(self.who, kind, **self.topics.described(receipt, spans), op=op, outcome=outcome)
            return items
        for verdict in answer.verdicts:
            receipt = items[verdict.item].receipt
            outcome, extra = told_by(verdict)
            if verdict.outcome == Code.OUTCOME_UNKNOWN:
                unknown.append(m.ReceiptPart(receipt, (verdict.span,)))
                if kind == "ack":
                    have, members = self.around.tombstones(receipt.partition, receipt.group, verdict.span)
                    if 0 < have <= members // 2:
                        world.saw("a tombstone was on a minority")
            if verdict.outcome == Code.NOT_FOUND and kind == "ack" and "topic" in verdict.detail:
                world.saw("an ACK was refused: its topic was deleted")
            if outcome == "ok" and kind == "claim":
                world.saw("a message was claimed")
            if outcome == "ok" and kind in ("extend", "claim"):
                extra = {"until": self.clock.true_time(until)}
            if outcome == "acked_after_expiry":
                self.around.on_late_ack(receipt)
            if kind == "ack":
                world.saw(f"an ACK {'of a dead letter ' if self.of_dead else ''}heard {outcome}")
            fields = self.topics.described(receipt, (verdict.span,))
            world.note(self.who, kind, **fields, op=op, outcome=outcome, **extra)
        return tuple(unknown)
