"""The operations of JSON over HTTP: a table of them, from which routes and the OpenAPI document are made."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct
from trio import CancelScope

from quorumq.client import Client, Match, MessageId, Peek, Pending, QuorumqError, receipt_from_text
from quorumq.client.admin.selection import Selection, chosen, chunked
from quorumq.core.values.errors import UsageError
from quorumq.core.values.types import Group, Topic
from quorumq.gateway.jsonapi import shapes
from quorumq.gateway.jsonapi.problems import Refused, problem_of
from quorumq.gateway.jsonapi.shapes import Problem
from quorumq.gateway.shares import each, pace

LOOK_AT_MAX: Final = 100_000
SEARCHED_BYTES_MAX: Final = 256 * 1024 * 1024
"""Bytes of messages that one search of a gateway reads."""
Text = Annotated[str, Meta(max_length=500)]


class Query(Struct, forbid_unknown_fields=True, kw_only=True):
    """Parameters behind the ``?`` of a request."""


class TopicsQuery(Query, kw_only=True):
    topic: str | None = None


class PeekQuery(Query, kw_only=True):
    """Messages in a state; with key, header (NAME=VALUE) or text only those in which these occur."""

    which: shapes.State = "ready"
    limit: shapes.Number = 20
    key: Text | None = None
    header: Text | None = None
    text: Text | None = None
    look_at: Annotated[int, Meta(ge=1, le=LOOK_AT_MAX)] = 10_000


class TailQuery(Query, kw_only=True):
    which: Literal["ready", "held", "delayed", "acked", "dead", "all"] = "all"


@dataclass(frozen=True)
class Call:
    """One request: the user's client, names in its path, its query and its body."""

    client: Client
    names: dict[str, str]
    query: Any
    body: Any

    @property
    def topic_and_group(self) -> tuple[str, str]:
        return self.names["topic"], self.names["group"]


Handler = Callable[[Call], Awaitable[Any]]


@dataclass(frozen=True)
class Operation:
    """A verb of the interface.

    Attributes:
        id: name in the OpenAPI document.
        body, query, answer: classes of the request's body, of its parameters, and of the answer; None without one.
        status: HTTP status of an answer without error.
        waits: whether it may wait for messages, and ends if the client leaves.
        undo: called with the answer if the client left before it was sent.
        streams: whether the answer is a stream of events.
    """

    method: str
    path: str
    id: str
    summary: str
    handler: Handler
    answer: type[Any] | None
    body: type[Any] | None = None
    query: type[Any] | None = None
    status: int = 200
    waits: bool = False
    undo: Callable[[Client, Any], Awaitable[None]] | None = None
    streams: bool = False


# ------------------------------------------------------------------------------------ messages


async def publish(call: Call) -> shapes.Published:
    payload, options = call.body.options()
    try:
        name = await call.client.publish(call.names["topic"], payload, **options)
    except (TypeError, ValueError) as error:  # a header or a JSON value that no message may have
        raise UsageError(str(error)) from None
    return shapes.Published(id=str(name))


async def publish_many(call: Call) -> shapes.PublishedAll:
    messages = []
    taken: list[Pending | MessageId | Problem] = []
    for number, message in enumerate(call.body.messages):
        try:
            messages.append(message.options())
        except UsageError as error:
            raise UsageError(f"message {number}: {error}") from None
        await pace(number)
    for number, (payload, options) in enumerate(messages):
        taken.append(await take(call, payload, options))
        await pace(number)
    results = [await stored(one) for one in taken]
    return shapes.PublishedAll(results=results, stored=sum(result.id is not None for result in results))


async def take(call: Call, payload: bytes | None, options: dict[str, Any]) -> Pending | MessageId | Problem:
    """Have the client take a message, in the order of the request; return the result, or its `Pending`."""
    try:
        # One producer serves all requests of a user to a topic: a session for each batch would use up those of a topic.
        pending = call.client._publish_now(call.names["topic"], payload, **options)
        if pending is not None:
            return pending
        return await call.client.publish(call.names["topic"], payload, **options)
    except QuorumqError as error:
        return problem_of(error)
    except (TypeError, ValueError) as error:
        return problem_of(UsageError(str(error)))


async def stored(result: Pending | MessageId | Problem) -> shapes.Stored:
    """Return the result of one message, once it is known."""
    if isinstance(result, Pending):
        try:
            result = await result.wait()
        except QuorumqError as error:
            result = problem_of(error)
    return shapes.Stored(problem=result) if isinstance(result, Problem) else shapes.Stored(id=str(result))


async def fetch(call: Call) -> shapes.Fetched:
    body: shapes.FetchBody = call.body
    messages = await call.client.fetch(
        *call.topic_and_group,
        max_messages=body.max_messages,
        max_wait=body.max_wait,
        max_bytes=shapes.BYTES_MAX,
        hold_time=body.hold_time,
        start=body.start,
    )
    now = call.client.clock()
    with CancelScope(shield=True):  # if the client has left, `give_back` gets all messages
        delivered = await each(partial(shapes.delivered_of, now=now), messages)
    return shapes.Fetched(messages=delivered)


async def give_back(client: Client, fetched: shapes.Fetched) -> None:
    """Give back messages whose client has left."""
    tickets = [client.ticket(receipt_from_text(message.receipt)) for message in fetched.messages]
    await client.reject(tickets, interrupted=True)


async def peek(call: Call) -> shapes.Peeks:
    query: PeekQuery = call.query
    search = await call.client.search(
        *call.topic_and_group,
        query.which,
        key=query.key,
        header=query.header,
        text=query.text,
        limit=query.limit,
        look_at=query.look_at,
        max_bytes=shapes.BYTES_MAX,
        look_at_bytes=SEARCHED_BYTES_MAX,
        pace=pace,
    )
    return shapes.Peeks.made_from(search, messages=await each(shapes.peeked_of, search.matches))


async def show(call: Call) -> shapes.LifeView:
    return shapes.LifeView.of(await call.client.show(call.names["topic"], call.names["id"], body=True))


async def tail(call: Call) -> Any:
    topic, group = call.topic_and_group
    await call.client.topic(topic)  # an unknown topic is an error before the stream begins
    return followed(call.client.tail(topic, group, call.query.which))


async def followed(matches: AsyncIterator[Match]) -> AsyncGenerator[shapes.Peeked, None]:
    """Yield messages for JSON as they are published, and close their source at the end."""
    async with aclosing(matches):  # type: ignore[type-var]
        async for match in matches:
            yield shapes.peeked_of(match)


# ------------------------------------------------------------------------------------ receipts


async def settled(call: Call, settle: Callable[[list[Any]], Awaitable[Any]], done: str) -> shapes.SettledAll:
    """Settle the receipts of a request, and return the result of each."""
    tickets: list[Any] = []
    for number, receipt in enumerate(call.body.receipts):
        try:
            tickets.append(call.client.ticket(receipt_from_text(receipt)))
        except QuorumqError as error:
            # An exception that is kept is a cycle with its frames: a thousand of them are 100 ms of collection.
            tickets.append(problem_of(error))
        await pace(number)
    good = [ticket for ticket in tickets if not isinstance(ticket, Problem)]
    raised: QuorumqError | None = None
    try:
        if good:
            await settle(good)
    except QuorumqError as error:
        raised = error
    return shapes.SettledAll(results=await each(lambda ticket: settled_as(ticket, raised, done), tickets))


def settled_as(ticket: Any, raised: QuorumqError | None, done: str) -> shapes.Settled:
    """Return the result of one receipt: its ticket, or the problem of a receipt that is none."""
    if isinstance(ticket, Problem):
        return shapes.Settled(problem=ticket)
    failure = ticket.failure
    if failure is None and raised is not None and ticket.outcome is None:
        failure = raised
    if failure is not None:
        return shapes.Settled(problem=problem_of(failure))
    return shapes.Settled(outcome=done if ticket.outcome is None else ticket.outcome.value)


async def ack(call: Call) -> shapes.SettledAll:
    return await settled(call, call.client.ack, "acked")


async def reject(call: Call) -> shapes.SettledAll:
    return await settled(call, lambda tickets: call.client.reject(tickets, delay=call.body.delay), "requeued")


async def release(call: Call) -> shapes.SettledAll:
    return await settled(call, lambda tickets: call.client.reject(tickets, interrupted=True), "requeued")


async def extend(call: Call) -> shapes.SettledAll:
    return await settled(call, lambda tickets: call.client.extend(tickets, call.body.hold_time), "extended")


async def dead_letter(call: Call) -> shapes.SettledAll:
    return await settled(
        call, lambda tickets: call.client.dead_letter(tickets, reason=call.body.reason), "dead_lettered"
    )


# ------------------------------------------------------------------------------------ topics and groups


async def topics(call: Call) -> shapes.Topics:
    known = await call.client.metadata(*([call.query.topic] if call.query.topic else ()))
    groups: dict[bytes, list[str]] = {}
    for group in known.groups:
        groups.setdefault(group.topic, []).append(group.name)

    def view(topic: Topic) -> shapes.TopicView:
        return shapes.TopicView.made_from(
            topic,
            rf=topic.target_rf,
            retention=topic.retention_s,
            ttl=topic.ttl_s,
            backoff=list(topic.backoff),
            groups=sorted(groups.get(topic.id, ())),
        )

    known_topics = sorted(known.topics, key=lambda topic: topic.name)
    return shapes.Topics(topics=await each(view, known_topics))


def group_view(call: Call, group: Group) -> shapes.GroupView:
    limit = group.limited
    return shapes.GroupView.made_from(limit, topic=call.names["topic"], name=group.name, paused=group.paused)


async def create_group(call: Call) -> shapes.GroupView:
    start = beginning_of(call.body.start)
    return group_view(call, await call.client.create_group(*call.topic_and_group, start=start))


async def pause(call: Call) -> shapes.GroupView:
    return group_view(call, await call.client.pause_group(*call.topic_and_group))


async def resume(call: Call) -> shapes.GroupView:
    return group_view(call, await call.client.resume_group(*call.topic_and_group))


async def limit(call: Call) -> shapes.GroupView:
    limit = await call.client.limit_group(*call.topic_and_group, call.body.per_second, burst=call.body.burst)
    return group_view(call, limit)


async def rewind(call: Call) -> shapes.Rewound:
    topic, group = call.topic_and_group
    to = beginning_of(call.body.to)
    if call.body.dry_run:
        count = await call.client.count_rewind(topic, group, to)
        return shapes.Rewound.made_from(count, group=group, dry_run=True)
    await call.client.rewind(topic, group, to)
    return shapes.Rewound(group=group, dry_run=False)


def beginning_of(text: str) -> Any:
    """Return the beginning of a group; Refused if it is neither a word nor a time with a zone."""
    if text in ("earliest", "latest"):
        return text
    try:
        start = datetime.fromisoformat(text)
        start.timestamp()
    except (OverflowError, ValueError):
        start = datetime.min
    if start.tzinfo is None:
        detail = (
            "this is no beginning: write earliest, latest or a time with its zone, as 2026-11-21T08:00:00Z"
        )
        raise Refused(detail, value=text)
    return start


async def backlog(call: Call) -> shapes.BacklogView:
    return shapes.BacklogView.of(*call.topic_and_group, await call.client.backlog(*call.topic_and_group))


async def backlogs(call: Call) -> shapes.Backlogs:
    counts = await call.client.backlogs(*([call.query.topic] if call.query.topic else ()))
    return shapes.Backlogs(
        backlogs=await each(lambda it: shapes.BacklogView.of(it[0][0], it[0][1], it[1]), counts.items())
    )


async def purge(call: Call) -> shapes.Purged:
    return await purged(call, *call.topic_and_group)


async def purged(call: Call, topic: str, group: str) -> shapes.Purged:
    body: shapes.PurgeBody = call.body
    if body.all == (body.ids is not None):
        raise UsageError("name messages by ids, or say all: give one of the two")
    return shapes.Purged(purged=await call.client.purge(topic, group, ids=body.ids))


# ------------------------------------------------------------------------------------ dead letters


async def kinds(call: Call) -> shapes.Kinds:
    counts = await call.client.count_dead_letters(*call.topic_and_group)
    kinds = [
        shapes.Kind.made_from(kind, samples=[str(name) for name in kind.samples]) for kind in counts.kinds
    ]
    return shapes.Kinds.made_from(counts, kinds=kinds)


async def redrive(call: Call) -> shapes.Redriven:
    body: shapes.Choice = call.body
    if not (body.all or body.ids is not None or body.fingerprint is not None or body.error_class is not None):
        raise UsageError("choose dead letters by ids, fingerprint or error_class, or say all")
    ids = tuple(body.ids) if body.ids is not None else None
    selection = Selection(*call.topic_and_group, body.fingerprint, body.error_class, ids=ids)
    async with aclosing(chunked(chosen(call.client, selection), body.limit)) as chunks:
        items: list[Peek] = await anext(chunks, [])
        more = bool(await anext(chunks, []))
    done = await call.client.redrive(*call.topic_and_group, items)
    already = sum(span.size for span, _ in done.refused)
    return shapes.Redriven(redriven=done.messages, already=already, more=more)


async def purge_dead(call: Call) -> shapes.Purged:
    topic, group = call.topic_and_group
    return await purged(call, topic, group.removesuffix("!dead") + "!dead")


_TOPIC: Final = "/topics/{topic}"
_GROUP: Final = _TOPIC + "/groups/{group}"
OPERATIONS: Final = (
    Operation("GET", "/topics", "listTopics", "List topics with their settings and groups", topics, shapes.Topics,
              query=TopicsQuery),
    Operation("POST", _TOPIC + "/messages", "publish", "Publish a message", publish, shapes.Published,
              shapes.NewMessage, status=201),
    Operation("POST", _TOPIC + "/messages/batch", "publishMany", "Publish several messages", publish_many,
              shapes.PublishedAll, shapes.NewMessages),
    Operation("GET", _TOPIC + "/messages/{id:path}", "show", "Show the life of a message on each replica", show,
              shapes.LifeView),
    Operation("PUT", _GROUP, "createGroup", "Create a group; one that is there stays as it is", create_group,
              shapes.GroupView, shapes.GroupBody),
    Operation("POST", _GROUP + "/fetch", "fetch", "Fetch messages, waiting for some if need be", fetch, shapes.Fetched,
              shapes.FetchBody, waits=True, undo=give_back),
    Operation("GET", _GROUP + "/messages", "peek", "Look at messages or search them, without holding any", peek,
              shapes.Peeks, query=PeekQuery, waits=True),
    Operation("GET", _GROUP + "/tail", "tail", "Follow messages as server-sent events, without holding any", tail,
              shapes.Peeked, query=TailQuery, streams=True),
    Operation("GET", _GROUP + "/backlog", "backlog", "Count the work of a group", backlog, shapes.BacklogView),
    Operation("GET", "/backlogs", "backlogs", "Count the work of all groups", backlogs, shapes.Backlogs,
              query=TopicsQuery),
    Operation("POST", _GROUP + "/rewind", "rewind", "Have a group read again from a time, or count that", rewind,
              shapes.Rewound, shapes.RewindBody),
    Operation("POST", _GROUP + "/pause", "pause", "Stop deliveries to a group", pause, shapes.GroupView),
    Operation("POST", _GROUP + "/resume", "resume", "Go on with deliveries to a group", resume, shapes.GroupView),
    Operation("POST", _GROUP + "/limit", "limit", "Limit the deliveries to a group in a second", limit,
              shapes.GroupView, shapes.LimitBody),
    Operation("POST", _GROUP + "/purge", "purge", "Settle messages unread", purge, shapes.Purged, shapes.PurgeBody),
    Operation("GET", _GROUP + "/dead-letters", "deadLetterKinds", "Count dead letters by kind of failure", kinds,
              shapes.Kinds, waits=True),
    Operation("POST", _GROUP + "/dead-letters/redrive", "redrive", "Make dead letters available again", redrive,
              shapes.Redriven, shapes.Choice, waits=True),
    Operation("POST", _GROUP + "/dead-letters/purge", "purgeDeadLetters", "Drop dead letters", purge_dead,
              shapes.Purged, shapes.PurgeBody),
    Operation("POST", "/receipts/ack", "ack", "Ack messages", ack, shapes.SettledAll, shapes.ReceiptsBody),
    Operation("POST", "/receipts/reject", "reject", "Make messages available again, at the cost of an attempt", reject,
              shapes.SettledAll, shapes.RejectBody),
    Operation("POST", "/receipts/release", "release", "Give messages back that were not worked on", release,
              shapes.SettledAll, shapes.ReceiptsBody),
    Operation("POST", "/receipts/extend", "extend", "Extend the holds of messages", extend, shapes.SettledAll,
              shapes.ExtendBody),
    Operation("POST", "/receipts/dead-letter", "deadLetter", "Give messages up", dead_letter, shapes.SettledAll,
              shapes.DeadLetterBody),
)  # fmt: skip
