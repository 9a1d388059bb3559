"""A scenario is a text: requests to a cluster of real cores, and below each the nodes' messages.

Lines that begin with `> ` are asked, lines with `# ` and blank ones are for people, all others are events: the
test plays the requests and compares. `python -m tests.scenarios` writes the events into the files.

    nodes COUNT                             a cluster; the topic is `jobs`, the group is `g`
    topic [NAME=NUMBER …]                   create it, with settings
    publish NODE COUNT                      as the next messages
    fetch NODE AS [hold=S] [most=N]         the delivery is called AS
    ack|reject|dead NODE AS                 settle it; reject has [delay=S], dead makes dead letters
    redrive NODE; rewind NODE               the dead letters; the group
    slow S                                  from now on each message takes S seconds to arrive
    cut NODE NODE; heal                     messages between these two are lost, and no more
    kill NODE; start NODE; wait S

Ballots are numbered by their rank in the whole scenario: #2@b is higher than #1@c, and b took it. So are generations.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from quorumq.core import messages as m
from quorumq.core.messages.records import (
    AttemptsCounted,
    BatchStored,
    DelaysSet,
    GroupPut,
    JournalRecord,
    RecordsMerged,
    TopicPut,
)
from quorumq.core.values.types import STAMP_ZERO, Death, NodeId, Owner, Record, Span, Stamp
from sim.message_text import MessageText
from tests.core.cluster import Cluster

FILES = sorted(Path(__file__).parent.glob("*.txt"))


GROUP: Final = "g"
STAMP: Final = re.compile(r"<(\d+)@(\w*)>")
GENERATION: Final = re.compile(r"<g(\d+)>")
UNSAID: Final = (
    m.Heartbeat, m.SyncDigests, m.SyncListed, m.SyncPull, m.SyncRegisters, m.SyncTopics, m.SyncState,
    m.RegistersRequest, m.RegistersReply,
)  # fmt: skip
"""Heartbeats, anti-entropy and registers that nodes exchange when they meet: always there, and long."""

REPLIES: Final = {
    "TopicReply": "created", "PublishReply": "OK: durable on a majority", "GroupReply": "OK",
}  # fmt: skip


def stamp(value: Stamp) -> str:
    return f"<{value.time}@{value.node}>"


def owner(value: Owner) -> str:
    return stamp(value.ballot)


def span(value: Span) -> str:
    return str(value.start) if value.size == 1 else f"{value.start}-{value.stop - 1}"


def spans(values: Any) -> str:
    return ", ".join(span(getattr(it, "span", it)) for it in values) or "nothing"


def record(value: Record) -> str:
    """A record, without the text of its dead letter."""
    n = f" n={value.n}" if value.n else ""
    generation = f" of generation <g{value.generation}>" if value.generation else ""
    return f"{value.kind.name}{n}{generation}"


def settled(values: Any) -> str:
    return ", ".join(f"{span(it.span)} {record(it.record)}" for it in values)


def said(message: Any) -> str:
    """Return a message between nodes in the words of docs/protocol.md."""
    match message:
        case m.Store(batch=batch):
            return f"STORE {spans(batch.header.spans)}"
        case m.StoreReply(problems=problems):
            return ", ".join(["STORED", *(f"refused: {problem.error}" for problem in problems)])
        case m.Hold(ballot=ballot, wants=wants, hold_time=hold_time, released=released):
            more = f", and {' '.join(owner(it.owner) for it in released)} is given up" if released else ""
            return f"HOLD {spans(wants)} by {stamp(ballot)} for {hold_time:g} s{more}"
        case m.HoldReply():
            return f"VOTE {'; '.join(votes(message))}"
        case m.Release(released=released) | m.ReleaseReply(released=released):
            name = "RELEASE" if isinstance(message, m.Release) else "RELEASED"
            return f"{name} {', '.join(f'{spans(it.spans)} of {owner(it.owner)}' for it in released)}"
        case m.Ack(entries=entries):
            return f"ACK {', '.join(f'{span(it.span)} of {owner(it.owner)}' for it in entries)}"
        case m.AckReply(error=error, exclusive=exclusive, higher=higher):
            parts = [
                error,
                exclusive and f"{spans(exclusive)} was its own",
                higher and f"{spans(higher)} has a higher",
            ]
            return f"ACKED: {'; '.join(filter(None, parts)) or 'and nothing known of its hold'}"
        case m.Reject(entries=entries, delay=delay, death=death):
            held = ", ".join(f"{span(it.span)} of {owner(it.owner)}" for it in entries)
            return f"REJECT {held} {'as dead letters' if death else f'for {delay:g} s'}"
        case m.RejectReply(applied=applied, refused=refused, settled=values, error=error):
            parts = [error, applied and f"{spans(applied)} done", refused and f"{spans(refused)} refused",
                     values and f"known: {settled(values)}"]  # fmt: skip
            return f"REJECTED: {'; '.join(filter(None, parts))}"
        case m.Merge(entries=entries, redrive=redrive):
            return f"{'REDRIVE' if redrive else 'MERGE'} {settled(entries)}"
        case m.MergeReply(exact=exact, higher=higher, error=error):
            parts = [error, exact and f"{spans(exact)} as asked", higher and f"known: {settled(higher)}"]
            return f"MERGED: {'; '.join(filter(None, parts))}"
        case m.PutTopic(topic=topic):
            return f"PUT topic {topic.name}"
        case m.PutGroup(group=group):
            return f"PUT group {group.name}, generation <g{group.generation}>"
        case m.PutReply(refused=refused):
            return f"HAS it{f', refused: {refused}' if refused else ''}"
        case m.HoldsRequest():
            return "HOLDS? which deliveries are live"
        case m.HoldsReply(holds=holds):
            return f"HOLDS: {', '.join(f'{span(it.span)} of {owner(it.owner)}' for it in holds) or 'none'}"
        case _:
            return TEXT.content(message)


class RankedText(MessageText):
    """Describes the messages that `said` does not, with ballots that are numbered at the end."""

    def ballot(self, ballot: Stamp) -> str:
        return "0" if ballot == STAMP_ZERO else stamp(ballot)


TEXT: Final = RankedText()


def votes(reply: m.HoldReply) -> Iterator[str]:
    """Return a replica's answers to HOLD, message by message."""
    if reply.error or reply.abstained:
        yield reply.error or "abstains: in quarantine"
    if reply.granted:
        again = [it for it in reply.granted if it.attempts]
        ended = f" ({spans(again)} after {again[0].attempts} ended)" if again else ""
        yield f"granted {spans(reply.granted)}{ended}"
    for it in reply.refused:
        yield f"refused {span(it.span)}: {stamp(it.highest)} has it for {it.remaining:.1f} s more"
    for late in reply.not_due:
        yield f"{span(late.span)} not due for {late.remaining:.1f} s"
    if reply.tombs:
        yield f"known: {settled(reply.tombs)}"


def kept(value: JournalRecord) -> str | None:
    """Return the text of a durable record; None for a node's notes on itself and others."""
    match value:
        case BatchStored(batch=batch):
            return f"messages {spans(batch.header.spans)}"
        case RecordsMerged(entries=entries):
            return settled(entries)
        case AttemptsCounted(entries=entries):
            return f"{spans(entries)}: an attempt ended"
        case DelaysSet(entries=entries):
            return ", ".join(f"{span(it.span)} not before {it.remaining:g} s" for it in entries)
        case GroupPut(group=group):
            return f"group {group.name}, generation <g{group.generation}>"
        case TopicPut(topic=topic):
            return f"topic {topic.name}"
        case _:
            return None


class Journal(list[JournalRecord]):
    """A node's journal, which reports appended records."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__()
        self.tell = tell

    def __iadd__(self, records: Any) -> Journal:  # type: ignore[misc, override]
        texts = [text for it in records if (text := kept(it)) is not None]
        if texts:
            self.tell(f"keeps {'; '.join(texts)}")
        self.extend(records)
        return self


class Told(Cluster):
    """A cluster that writes down its nodes' messages and records."""

    def __init__(self, lines: list[str], count: int) -> None:
        self.lines = lines
        self.began = 0.0
        self.receipts: dict[str, tuple[m.ReceiptPart, ...]] = {}
        self.asked: dict[int, tuple[NodeId, str]] = {}
        self.lost: set[frozenset[NodeId]] = set()
        self.published = 0
        super().__init__(0, hold_time_max=20.0)
        self.names = tuple("abcdefghi"[:count])
        for name in self.names:
            self.journals[name] = Journal(lambda text, name=name: self.tell(f"{name}  {text}"))  # type: ignore[misc]
            self.dropped[name], self.unreadable[name] = set(), set()
        for name in self.names:
            self.start(name)
        self.drop = lambda sender, to, message: frozenset((sender, to)) in self.lost
        self.began = self.time

    def tell(self, text: str) -> None:
        self.lines.append(f"{self.time - self.began:6.2f}  {text}")

    def send(self, sender: NodeId, to: NodeId, message: object) -> None:
        peer = self.nodes.get(to)
        if not isinstance(message, UNSAID) and peer is not None and to in self.nodes[sender].state.links:
            lost = "  (lost)" if self.drop(sender, to, message) else ""
            self.tell(f"{sender} -> {to}  {said(message)}{lost}")
        super().send(sender, to, message)

    def client(self, node: NodeId, action: str, request: object, name: str = "") -> None:
        """Send a client's request, and write down its answer when there is one."""
        self.tell(f"client -> {node}  {action}")
        self.asked[self.keys + 1] = (node, name)
        self.submit(node, request)
        self.answered()

    def answered(self) -> None:
        for key, (node, name) in list(self.asked.items()):
            if (reply := self.replies.get(key)) is not None:
                del self.asked[key]
                self.tell(f"{node} -> client  {self.answer_text(reply, name)}")

    def run(self) -> None:
        super().run()
        self.answered()

    def answer_text(self, reply: Any, name: str) -> str:
        """An answer; the delivery of a FETCH is kept under a name."""
        if isinstance(reply, m.FetchReply):
            deliveries = [delivery for part in reply.slices for delivery in part.deliveries]
            self.receipts[name] = tuple(m.ReceiptPart(it.receipt, (it.receipt.span,)) for it in deliveries)
            each = [
                f"{span(it.receipt.span)} by {owner(it.receipt.owner)}, attempt {it.attempt}"
                for it in deliveries
            ]
            return f"{name}: {'; '.join(each) or 'nothing'}"
        if isinstance(reply, m.SettleReply):
            return "; ".join(f"{span(it.span)} {it.outcome}" for it in reply.verdicts)
        if isinstance(reply, m.Failed):
            return f"{reply.code}: {reply.detail}"
        return REPLIES.get(type(reply).__name__, type(reply).__name__)


class Player:
    """Carries out the lines of one scenario."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.cluster: Told

    def play(self, text: str) -> None:
        """One line that is asked."""
        word, *rest = text.split()
        named = dict(part.split("=") for part in rest if "=" in part)
        getattr(self, f"do_{word}")(*(part for part in rest if "=" not in part), **named)

    def do_nodes(self, count: str) -> None:
        self.cluster = Told(self.lines, int(count))
        self.lines.clear()

    def do_topic(self, **settings: str) -> None:
        known = {"rf": len(self.cluster.names), **{name: int(value) for name, value in settings.items()}}
        self.topic = self.cluster.topic(**known)  # type: ignore[arg-type]
        self.producer_id = self.cluster.ask("a", m.OpenSession()).producer_id  # type: ignore[union-attr]
        self.lines.clear()
        self.cluster.tell("the topic jobs is there")

    def do_publish(self, node: str, count: str) -> None:
        first = self.cluster.published
        self.cluster.published += int(count)
        batch = self.cluster.batch(self.topic, self.producer_id, first, [b"x"] * int(count))
        self.cluster.client(node, f"PUBLISH {spans(batch.header.spans)}", m.Publish(batch))

    def do_fetch(self, node: str, name: str, hold: str = "10", most: str = "100") -> None:
        request = m.Fetch(("jobs",), GROUP, int(most), 1 << 20, 1, 0.0, float(hold), 0.0, idle=True)
        self.cluster.client(node, f"FETCH at most {most} for {hold} s", request, name)

    def do_ack(self, node: str, name: str) -> None:
        self.cluster.client(node, f"ACK {name}", m.AckRequest(self.cluster.receipts[name]))

    def do_reject(self, node: str, name: str, delay: str = "0") -> None:
        items = self.cluster.receipts[name]
        self.cluster.client(node, f"REJECT {name} for {delay} s", m.RejectRequest(items, float(delay)))

    def do_dead(self, node: str, name: str) -> None:
        items = self.cluster.receipts[name]
        death = Death(items[0].receipt.owner.ballot, "rejected", "ValueError")
        self.cluster.client(node, f"REJECT {name} for good", m.RejectRequest(items, 0.0, death))

    def do_redrive(self, node: str) -> None:
        peeking = m.PeekRequest("jobs", 0, GROUP, "dead", (0, 0), 100, complete=True)
        listed = self.cluster.ask(node, peeking)
        assert isinstance(listed, m.PeekReply)
        self.lines.clear()
        entries = tuple(m.SpanRecord(it.span, it.record._replace(death=None)) for it in listed.items)
        self.cluster.client(node, f"REDRIVE {spans(entries)}", m.RedriveRequest("jobs", 0, GROUP, entries))

    def do_rewind(self, node: str) -> None:
        self.cluster.client(node, "REWIND to the earliest", m.SetGroup("jobs", GROUP, rewind=True))

    def do_slow(self, seconds: str) -> None:
        self.cluster.delay = float(seconds)

    def do_cut(self, one: str, other: str) -> None:
        self.cluster.lost.add(frozenset((one, other)))

    def do_heal(self) -> None:
        self.cluster.lost.clear()

    def do_kill(self, node: str) -> None:
        self.cluster.tell(f"{node}  is killed")
        self.cluster.kill(node)

    def do_start(self, node: str) -> None:
        self.cluster.tell(f"{node}  starts")
        self.cluster.start(node)
        remaining = self.cluster.nodes[node].context.quarantine_left(self.cluster.now)
        self.cluster.tell(
            f"{node}  {f'grants nothing for {remaining:.1f} s yet' if remaining else 'may vote'}"
        )

    def do_wait(self, seconds: str) -> None:
        self.cluster.advance(float(seconds))


def played(text: str) -> str:
    """A scenario with the present events."""
    player = Player()
    lines: list[str] = []
    for line in text.splitlines():
        if not line.strip() or line.startswith(("#", ">")):
            lines.append(line)
        if line.startswith("> "):
            player.lines.clear()
            player.play(line[2:])
            lines += player.lines
    whole = "\n".join(lines) + "\n"
    taken = sorted({(int(time), node) for time, node in STAMP.findall(whole)})
    whole = STAMP.sub(lambda it: f"#{taken.index((int(it[1]), it[2])) + 1}@{it[2]}", whole)
    generations = sorted({0, *map(int, GENERATION.findall(whole))})
    return GENERATION.sub(lambda it: str(generations.index(int(it[1]))), whole)
