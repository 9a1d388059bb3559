"""Life of one message: the memory that every replica of its partition has of it."""

from __future__ import annotations

from typing import NamedTuple

from quorumq.client.base.context import Calls
from quorumq.client.base.message import MessageId, check_topic, id_of
from quorumq.client.consume.fetching import readable
from quorumq.core import messages as m
from quorumq.core.values.errors import NotFound, TooFewReplicas
from quorumq.core.values.printable import plural
from quorumq.core.values.types import STAMP_ZERO, Death, Span
from quorumq.wire.batch import Message as Parts


class Seen(NamedTuple):
    """State of the message in one group, as one node sees it.

    ``state`` is ready, held, delayed, acked, dead, skipped (never to be delivered) or purged; ``remaining`` are the
    seconds of a hold or a delay that are left. ``ended`` deliveries ended without an ack, at redrive number
    ``redrives``, and ``interruptions`` beside them as interrupted. ``holder`` is the node that delivered it,
    ``token`` the fencing token of the last delivery that this node voted for (0: none that it remembers). ``death``
    says how a dead letter died.
    """

    group: str
    state: str
    remaining: float
    ended: int
    redrives: int
    generation: int
    holder: str | None
    token: int
    death: Death | None
    interruptions: int = 0


class Replica(NamedTuple):
    """State of the message on one node. If the node gave none, ``error`` is the reason, and the rest is empty.

    ``groups`` are the first 1,000 groups by name, ``left_out`` is the number of the others.
    """

    node: str
    payload: bool
    groups: tuple[Seen, ...]
    error: str | None = None
    left_out: int = 0


class Life(NamedTuple):
    """The life of one message, from `Client.show`.

    ``published_ms``: when its batch was made, by its producer's clock (ms since 1970); None if no payload is left.
    ``session`` is the producer's, which begins with the node that opened it. ``body`` is the published message, if it
    was requested and a replica has it.
    """

    id: MessageId
    topic: str
    published_ms: int | None
    delay: float
    session: str
    replicas: tuple[Replica, ...]
    body: Parts | None = None


class ShowCalls(Calls):
    """Calls that show the life of one message."""

    async def show(
        self, topic: str, message: MessageId | str, *, body: bool = False, timeout: float | None = None
    ) -> Life:
        """Return every replica's memory of one message: its payload, and its state in each group.

        Nothing is merged. Of the past it has the count of deliveries that ended, the last fencing token, a tombstone or
        a dead letter. Each delivery with its consumer is in the histories (docs/history.md), if they are written.

        Args:
            message: its id, or that as text.
            body: bring the message along: payload, key and headers.
            timeout: seconds for each node; if None the client's, and at most 3, as one may be down.

        Returns:
            reply of each replica, or why it did not say. If some did not, and no other knows the message, they may.

        Raises:
            NotFound: no such topic or partition, or all replicas answer and none has heard of the message.
            UsageError: no id, or one of another topic.
            TooFewReplicas: no replica answered.
        """
        name = id_of(message)
        register = await self.context.topic(topic, timeout=timeout)
        check_topic(name, register)
        if name.partition.number >= register.partitions:
            raise NotFound(
                f"topic {topic!r} has {plural(register.partitions, 'partition')}: there is no {name.partition.number}"
            )
        members = register.replicas[name.partition.number]
        request = m.ShowRequest(name.partition, Span(name.producer_id, name.seq, name.seq + 1), body)
        replies, errors = await self.context.ask_each(members, request, "show a message", timeout)
        if not replies:
            raise TooFewReplicas(
                f"no replica of {topic!r}/{name.partition.number} answers: {errors[members[0]]}",
                needed=1,
                answered=0,
            )
        replicas = tuple(
            Replica(
                node,
                replies[node].payload,
                tuple(map(seen, replies[node].groups)),
                left_out=replies[node].left_out,
            )
            if node in replies
            else Replica(node, False, (), errors[node])
            for node in members
        )
        if not errors and not any(replica.payload or knows(replica) for replica in replicas):
            raise NotFound(
                f"no replica knows {name}: it was never stored, or is reclaimed and every group is done with it"
            )
        first = next((reply for reply in replies.values() if reply.payload), None)
        node, n, nonce, k = name.producer_id
        return Life(
            name,
            topic,
            first.published_ms if first is not None else None,
            first.delay_ms / 1000 if first is not None else 0.0,
            f"{node}.{n}.{nonce:016x}.{k}",
            replicas,
            next(
                (stored for reply in replies.values() for part in reply.slices for stored in readable(part)),
                None,
            ),
        )


def seen(shown: m.ShownGroup) -> Seen:
    peeked = shown.peeked
    return Seen(
        shown.group,
        peeked.state,
        peeked.remaining,
        peeked.attempts,
        peeked.record.n,
        peeked.record.generation,
        peeked.owner.node if peeked.owner is not None else None,
        shown.granted.time if shown.granted != STAMP_ZERO else 0,
        peeked.record.death,
        peeked.interruptions,
    )


def knows(replica: Replica) -> bool:
    """Return True if a group of it has heard of the message; else all is ready there, and never delivered."""
    return any(
        seen.state != "ready" or seen.ended or seen.interruptions or seen.token for seen in replica.groups
    )
