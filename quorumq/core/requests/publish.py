"""PUBLISH: a batch is stored at a majority of its partition's replicas, together with others of the same step."""

from __future__ import annotations

from collections.abc import Mapping

from quorumq.core import messages as m
from quorumq.core.cluster.rounds import Round
from quorumq.core.messages.effects import Effect, Send
from quorumq.core.partition.replica import Replica
from quorumq.core.requests.context import Context
from quorumq.core.requests.coordinator import Coordinator
from quorumq.core.requests.piggyback import piggyback_hold
from quorumq.core.values import limits
from quorumq.core.values.errors import Code
from quorumq.core.values.names import early, problem_with
from quorumq.core.values.printable import plural
from quorumq.core.values.types import DERIVED, NAMED, Incarnation, NodeId, Now, PartitionId, ProducerId


class PublishCoordinator(Coordinator):
    """PUBLISH: OK at a majority of durable STORED (docs/protocol.md, PUBLISH).

    Where any replica keeps it below a majority, the outcome is unknown and nothing is aborted: anti-entropy finishes
    batches that reached fewer.
    """

    __slots__ = ("came", "epoch", "partition", "problems", "publish", "refused")

    def __init__(self, key: int, publish: m.Publish) -> None:
        super().__init__(key)
        self.publish = publish
        self.partition = publish.batch.header.partition
        self.came = 0.0
        self.epoch = -1  # that of the set that is asked, once it is
        self.refused = 0  # bits of those that have not got it on disk
        self.problems: dict[NodeId, tuple[str, str]] = {}

    def concerns(self, topic: bytes) -> bool:
        return self.partition.topic == topic

    def start(self, context: Context, now: Now) -> list[Effect]:
        """Wait for the end of this step: the batches received until then are stored with it."""
        partition = self.partition
        topic = context.catalogue.topics.get(partition.topic)
        if topic is None or partition.number >= topic.partitions:
            return self.fail(context, Code.NOT_FOUND, context.catalogue.why_not_here(partition))
        for span in self.publish.batch.header.spans:
            if span.producer_id.node == NAMED:
                problem, not_yet = problem_with(span), early(span, now.wall_ms)
                if problem or not_yet:
                    return self.fail(context, Code.USAGE if problem else Code.NOT_STORED, problem or not_yet)
        self.came = now.mono
        context.publishing.append(self)
        return []

    def part(self, context: Context, now: Now) -> m.Part:
        """Return the part to store now: the batch has aged since its request. Its set stays, and so does the epoch."""
        age_ms = max(0, self.publish.age_ms) + int(1000 * (now.mono - self.came))
        if self.epoch < 0:
            self.epoch = context.catalogue.epoch_of(self.partition)
        return m.Part(self.epoch, self.publish.batch, age_ms)

    def decide(
        self, context: Context, round_: Round, stored: int, valid: int, *, timed_out: bool
    ) -> list[Effect]:
        """Answer once the outcome is clear.

        An error that says that the batch is not stored is answered only once every replica that was asked has refused
        it. A batch that one of them keeps, or may keep, is spread by anti-entropy, and delivered. Its client would
        publish it a second time if the answer were that it is not stored.

        Args:
            stored: bits of the replicas that have it on disk, in any start.
            valid: bits of the replicas whose replies count.
            timed_out: True if the coordinator waits for nothing more.
        """
        if round_.is_majority(stored & valid):
            return self.finish(context, m.PublishReply((stored & valid).bit_count()))
        if not timed_out and not round_.everyone:
            return []
        if not stored and round_.everyone:  # every replica that was asked refused, so none keeps it
            refusals = dict(self.problems.values())
            closed = [node for node, (code, _) in self.problems.items() if code == Code.SESSION_CLOSED]
            if Code.CONFLICT in refusals:
                return self.fail(context, Code.CONFLICT, refusals[Code.CONFLICT])
            if closed and round_.is_blocked_by(round_.bits_of(closed)):
                return self.fail(context, Code.SESSION_CLOSED, refusals[Code.SESSION_CLOSED])
            if refusals.keys() == {Code.STORAGE_FULL}:
                full = plural(len(self.problems), "replica")
                detail = f"{full} of {len(round_.members)} have no room: {refusals[Code.STORAGE_FULL]}"
                return self.fail(context, Code.STORAGE_FULL, detail)
        detail = "it may be stored: publish the same batch again, through any node"
        if self.problems:
            detail += "; " + "; ".join(
                f"{node}: {text or code}" for node, (code, text) in self.problems.items()
            )
        answered = (stored & valid).bit_count()
        return self.fail(context, Code.OUTCOME_UNKNOWN, detail, round_.majority, answered)


class StoreCoordinator(Coordinator):
    """One STORE of the batches published in one step, for partitions of one set of replicas.

    Args:
        members: the set, in order of their ids.

    Attributes:
        publishes: PUBLISHes whose batches it carries, in its order.
        stored: bits of the replicas that have all of it on disk, but for what each PUBLISH knows to be refused.
    """

    __slots__ = ("_bytes", "_stops", "members", "publishes", "stored")

    def __init__(self, members: tuple[NodeId, ...]) -> None:
        super().__init__(0)
        self.members = members
        self.publishes: list[PublishCoordinator] = []
        self.stored = 0
        self._bytes = 0
        self._stops: dict[tuple[PartitionId, ProducerId], int] = {}  # end of its numbers of each producer id

    def take(self, publish: PublishCoordinator) -> bool:
        """Let it carry one more, unless it is full, or may have one of these messages already."""
        header, raw, body = publish.publish.batch
        size = len(raw) + len(body)
        if self.publishes:
            if len(self.publishes) >= limits.STORE_BATCHES_MAX or self._bytes + size > limits.STORE_BYTES_MAX:
                return False
            for section in header.spans:
                if section.start < self._stops.get((header.partition, section.producer_id), 0):
                    return False
        for section in header.spans:
            self._stops[(header.partition, section.producer_id)] = section.stop
        self.publishes.append(publish)
        self._bytes += size
        return True

    @property
    def carried(self) -> list[PublishCoordinator]:
        return self.publishes

    def concerns(self, topic: bytes) -> bool:
        return False  # each of its PUBLISHes does

    def start(self, context: Context, now: Now) -> list[Effect]:
        round_ = self.open_round(context, self.members, now)
        reachable = [
            member
            for member in self.members
            if member == context.state.me or member in context.state.answering
        ]
        if len(reachable) < round_.majority:
            names = f"only {', '.join(reachable)}" if reachable else "none"
            detail = f"nothing was sent: {names} of {', '.join(self.members)} can be reached"
            refusal = m.Failed(Code.NOT_STORED, detail, round_.majority, len(reachable))
            effects = [effect for one in self.publishes for effect in one.finish(context, refusal)]
            return effects + self.finish(context, None)
        store = self.store(round_, context, now)
        if len(self.publishes) == 1 and context.parking.lines:
            hold = piggyback_hold(context, store.batch.header, now)
            if hold is not None:
                store = store._replace(hold=hold)
        # If we refuse a HOLD ourselves, the RELEASE is to be sent after it.
        ours_last = store.hold is not None
        return self.ask(context, round_, self.publishes[0].partition, store, now, ours_last=ours_last)

    def store(self, round_: Round, context: Context, now: Now) -> m.Store:
        """Return the STORE to send now; no HOLD is piggybacked on it yet."""
        first, *more = [one.part(context, now) for one in self.publishes]
        return m.Store(round_.number, *first, tuple(more))

    def on_reply(
        self, context: Context, sender: NodeId, incarnation: Incarnation, message: m.PeerMessage, now: Now
    ) -> list[Effect]:
        assert isinstance(message, m.StoreReply)
        round_ = self.rounds[message.round]
        context.state.learn_vector(round_.members, message.known)
        problems = message.problems
        if problems and (
            any(problem.error == Code.UNKNOWN_TOPIC for problem in problems)
            or (
                any(problem.error == Code.WRONG_EPOCH for problem in problems)
                and (round_.number, sender) not in self.taught
            )
        ):
            return self._teach_all(context, round_, sender, message, now)
        bit = round_.hear(sender, incarnation)
        self.stored |= bit
        for at, error, detail in problems:
            if at < len(self.publishes):
                self.publishes[at].refused |= bit
                self.publishes[at].problems[sender] = (error, detail)
        return self._decide(context, round_, timed_out=False)

    def _teach_all(
        self, context: Context, round_: Round, sender: NodeId, message: m.StoreReply, now: Now
    ) -> list[Effect]:
        """Send the topics to ``sender``, which lacks some, and ask again for all, once. Its answer has not counted."""
        if (round_.number, sender) in self.taught or any(
            one.partition.topic not in context.catalogue.topics for one in self.publishes
        ):
            return []
        self.taught[(round_.number, sender)] = None
        unknown = dict.fromkeys(
            self.publishes[problem.part].partition.topic
            for problem in message.problems
            if problem.error in (Code.UNKNOWN_TOPIC, Code.WRONG_EPOCH) and problem.part < len(self.publishes)
        )
        effects = [Send(sender, m.PutTopic(0, context.catalogue.topics[topic])) for topic in unknown]
        return [*effects, Send(sender, self.store(round_, context, now))]

    def on_timeout(self, context: Context, number: int, now: Now) -> list[Effect]:
        return self._decide(context, self.rounds[number], timed_out=True)

    def on_moved(self, context: Context, moved: tuple[PartitionId, ...], now: Now) -> list[Effect]:
        """Answer the PUBLISHes to these partitions, which are made again under the new layout."""
        effects: list[Effect] = []
        for round_ in list(self.rounds.values()):
            valid = round_.valid(context.state)
            for one in self.publishes:
                if not one.done and one.partition in moved:
                    stored = self.stored & ~one.refused
                    effects += one.decide(context, round_, stored, valid, timed_out=True)
        if self.rounds and all(one.done for one in self.publishes):
            effects += self.finish(context, None)
        return effects

    def _decide(self, context: Context, round_: Round, *, timed_out: bool) -> list[Effect]:
        effects: list[Effect] = []
        valid = round_.valid(context.state)
        under_way = False
        for one in self.publishes:
            if not one.done:
                stored = self.stored & ~one.refused
                effects += one.decide(context, round_, stored, valid, timed_out=timed_out)
                under_way = under_way or not one.done
        return effects if under_way else effects + self.finish(context, None)


def producer_ids_begun(replicas: Mapping[PartitionId, Replica], publish: m.Publish) -> int:
    """Return how many of a batch's producer ids and names are not known in its partition, as far as this node knows.

    If it has no replica, derived ones and names count and sessions do not: those are mostly known.
    """
    header = publish.batch.header
    replica = replicas.get(header.partition)
    count = 0
    for section in header.spans:
        producer_id = section.producer_id
        if replica is None:
            known = 0 if producer_id.node in (DERIVED, NAMED) else section.size
        elif producer_id.node == NAMED:
            known = sum([part.size for part in replica.batches.known_of(section)])
        else:
            tables = (replica.batches.present.runs, replica.batches.reclaimed.runs)
            known = section.size if any(producer_id in table for table in tables) else 0
        count += section.size - known if producer_id.node == NAMED else not known
    return count


def store_published(context: Context, now: Now) -> list[Effect]:
    """Send the batches published in this step, in as few STOREs as may be: those present go together, none waits.

    Each batch keeps its own header, age and verdict, *because* delay, TTL and publish time are a batch's own: in one
    header that two coordinators join differently, replicas would disagree about them.
    """
    came, context.publishing = context.publishing, []
    stores: list[StoreCoordinator] = []
    newest: dict[tuple[NodeId, ...], StoreCoordinator] = {}
    for publish in came:
        assert isinstance(publish, PublishCoordinator)
        if publish.done:  # its topic was deleted by an event of the same step
            continue
        partition = publish.partition
        members = tuple(sorted(context.catalogue.topics[partition.topic].replicas[partition.number]))
        store = newest.get(members)
        if store is None or not store.take(publish):
            store = newest[members] = StoreCoordinator(members)
            store.take(publish)
            stores.append(store)
    if len(stores) == 1:
        return stores[0].start(context, now)
    return [effect for store in stores for effect in store.start(context, now)]
