"""Rights that each request of a client needs, and a check if a client has them. One table, pure.

A node with a clients file asks it before the core hears of a request (node/connections.py). A request that nodes
forward to each other was checked by the node that the client had sent it to.

Rights are for topics, by pattern, and `consume` for groups as well: those of a group cover its dead letters. `publish`
is enough to make a topic if the nodes have auto_create_topics, and `consume` to make a group. Requests that change or
remove topics and groups in use need `admin`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple, TypeVar

from quorumq.core import messages as m
from quorumq.core.cluster.catalogue import Catalogue
from quorumq.core.values import limits
from quorumq.core.values.deadnames import dead_letter_names, source_of
from quorumq.core.values.errors import NotFound, Unauthorized
from quorumq.core.values.patterns import is_pattern
from quorumq.core.values.types import Topic
from quorumq.wire.hints import unknown_group, unknown_topic

RIGHTS: Final = ("publish", "consume", "admin")
EVERYTHING: Final = "*"
"""The pattern that a right to the whole cluster has."""

NameOf = Callable[[bytes], "str | None"]
"""The name of a topic by its id, or None if none is known here."""


class Client(NamedTuple):
    """A client that has proved its identity, and its rights.

    Attributes:
        name: in the clients file.
        publish: patterns of topics.
        consume: patterns of topics, each with one of groups.
        admin: patterns of topics.
    """

    name: str
    publish: tuple[str, ...] = ()
    consume: tuple[tuple[str, str], ...] = ()
    admin: tuple[str, ...] = ()

    def may(self, right: str, topic: str | None, group: str | None) -> bool:
        """Return True if it has a right to a topic and, to consume, a group; to any if that is None."""
        if right == "consume":
            return any(
                (topic is None or covers(topics, topic)) and (group is None or covers(groups, group))
                for topics, groups in self.consume
            )
        patterns: tuple[str, ...] = getattr(self, right)
        return any(topic is None or covers(pattern, topic) for pattern in patterns)

    def sees(self, topic: str) -> bool:
        """Return True if it has any right to a topic."""
        return any(self.may(right, topic, None) for right in RIGHTS)

    def sees_group(self, topic: str, group: str) -> bool:
        """Return True if it may know that a group reads a topic."""
        return self.may("consume", topic, group) or self.may("admin", topic, None)


class Need(NamedTuple):
    """One of ``rights`` to a topic, and to a group of it; to any if that is None."""

    rights: tuple[str, ...]
    topic: str | None = None
    group: str | None = None


def covers(pattern: str, name: str) -> bool:
    """Return True if all names that ``name``, which may be a pattern too, stands for match ``pattern``."""
    if not is_pattern(name):
        return fnmatchcase(name, pattern)
    start = pattern[:-1]
    return pattern == name or (pattern.endswith("*") and not is_pattern(start) and name.startswith(start))


_PUBLISH: Final = ("publish",)
_CONSUME: Final = ("consume",)
_ADMIN: Final = ("admin",)
_LOOK: Final = ("consume", "admin")


def _of_group(rights: tuple[str, ...], topics: Sequence[str], group: str) -> list[Need]:
    names, group = dead_letter_names(tuple(topics), group)
    return [Need(rights, name, source_of(group)) for name in names]


def _settled(request: Any, name: NameOf) -> list[Need]:
    groups = dict.fromkeys((item.receipt.partition.topic, item.receipt.group) for item in request.items)
    return [Need(_CONSUME, name(topic) or EVERYTHING, source_of(group)) for topic, group in groups]


_FOUND_BY_ID: Final = (
    m.Publish, m.FindName, m.AckRequest, m.RejectRequest, m.ExtendRequest, m.ReleaseRequest, m.ShowRequest
)  # fmt: skip
"""Name a topic by its id alone, and may be carried out if only another node knows it (core/requests/finding.py). Its
name is not known when rights are looked at, so all names that it may have must be covered. If the client may not see
a topic, it is taken for one that is not known."""


_NEEDS: Final[dict[type, Callable[[Any, NameOf], Iterable[Need]]]] = {
    m.OpenSession: lambda request, name: [Need(_PUBLISH)],
    m.CloseSession: lambda request, name: [Need(_PUBLISH)],
    m.Publish: lambda request, name: [
        Need(_PUBLISH, name(request.batch.header.partition.topic) or EVERYTHING)
    ],
    m.FindName: lambda request, name: [Need(_PUBLISH, name(request.partition.topic) or EVERYTHING)],
    m.CreateTopic: lambda request, name: [Need(_PUBLISH if request.implicit else _ADMIN, request.name)],
    m.AlterTopic: lambda request, name: [Need(_ADMIN, request.name)],
    m.LabelsRequest: lambda request, name: [Need(_ADMIN if request.changes else RIGHTS, request.topic)],
    m.MovePartition: lambda request, name: [Need(_ADMIN, request.name)],
    m.DeleteTopic: lambda request, name: [Need(_ADMIN, request.name)],
    m.Metadata: lambda request, name: [],  # see `check_seen` and `visible`
    m.Fetch: lambda request, name: _of_group(_CONSUME, request.topics, request.group),
    m.AckRequest: _settled,
    m.RejectRequest: _settled,
    m.ExtendRequest: _settled,
    m.ReleaseRequest: _settled,
    m.SetGroup: lambda request, name: _of_group(
        _ADMIN if request.rewind else _CONSUME, (request.topic,), request.group
    ),
    m.DeleteGroup: lambda request, name: _of_group(_ADMIN, (request.topic,), request.group),
    m.PauseGroup: lambda request, name: _of_group(_ADMIN, (request.topic,), request.group),
    m.LimitGroup: lambda request, name: _of_group(_ADMIN, (request.topic,), request.group),
    m.PurgeRequest: lambda request, name: _of_group(_ADMIN, (request.topic,), request.group),
    m.RedriveRequest: lambda request, name: _of_group(_ADMIN, (request.topic,), request.group),
    m.PeekRequest: lambda request, name: _of_group(_LOOK, (request.topic,), request.group),
    m.DescribeGroups: lambda request, name: [
        need for topic, group in request.groups for need in _of_group(_LOOK, (topic,), group)
    ],
    m.ShowRequest: lambda request, name: [Need(_LOOK, name(request.partition.topic) or EVERYTHING)],
    m.StatusRequest: lambda request, name: [Need(_ADMIN, EVERYTHING)],
    m.DeclareSurvivors: lambda request, name: [Need(_ADMIN, EVERYTHING)],
    m.ChangeMembers: lambda request, name: [Need(_ADMIN, EVERYTHING)],
}


def check_rights(client: Client, request: Any, name_of: NameOf) -> None:
    """Refuse a request for which the client has no right.

    Raises:
        Unauthorized: a right is missing. Names it, its topic or group, and the file of rights.
        NotFound: the right is not known here, because the topic is not.
    """

    def seen(topic: bytes) -> str | None:
        name = name_of(topic)
        return name if name is not None and client.sees(name) else None

    for need in _NEEDS[type(request)](request, seen):
        if not any(client.may(right, need.topic, need.group) for right in need.rights):
            if need.topic == EVERYTHING and isinstance(request, _FOUND_BY_ID):
                need = need._replace(topic=None)
            if need.topic is None and any(client.may(right, None, need.group) for right in need.rights):
                raise NotFound(
                    f"this node does not know a topic that {type(request).__name__} is for, nor so whether client "
                    f"{client.name!r} has a right to it: ask another node"
                )
            target = "any topic" if need.topic is None else f"topic {need.topic!r}"
            if need.group is not None:
                target = f"group {need.group!r} of {target}"
            action = type(request).__name__
            if getattr(request, "implicit", False):  # the client looked for the topic, which it may not see
                action = f"a publish (as {action})"
            raise Unauthorized(
                f"client {client.name!r} lacks the right {' or '.join(need.rights)} to {target}, which "
                f"{action} needs: rights are in the nodes' clients file (`quorumq clients`)"
            )


Reply = TypeVar("Reply", bound=m.ClientReply)


def public(reply: Reply) -> Reply:
    """Return a reply as any client may have it: without the keys of digests, and labels, in its registers of topics."""
    fields: dict[str, Any] = {}
    for name, value in zip(getattr(reply, "_fields", ()), reply, strict=False):
        if isinstance(value, Topic):
            fields[name] = value._replace(digest_key=b"", labels=())
        elif type(value) is tuple and value and isinstance(value[0], Topic):
            fields[name] = tuple([topic._replace(digest_key=b"", labels=()) for topic in value])
    return reply._replace(**fields) if fields else reply  # type: ignore[return-value]


def check_seen(client: Client, request: m.Metadata) -> None:
    """Refuse a topic that a client may not see by NotFound, in the same words whether there is one or not."""
    for name in request.topics:
        if not is_pattern(name) and not client.sees(name):
            raise NotFound(
                f"there is no topic {name!r} to which client {client.name!r} has a right: rights are in the nodes' "
                "clients file (`quorumq clients`)"
            )


def visible(client: Client | None, reply: Any, catalogue: Catalogue, asked: Any = None) -> Any:
    """Return an answer with nothing but the topics and groups that a client may see.

    Args:
        client: client that asked; None if the node does not ask for credentials.
        asked: the request, if it is a `ShowRequest`.
    """
    match reply:
        case m.MetadataReply() if client is not None:
            topics = {topic.id: topic for topic in reply.topics if client.sees(topic.name)}
            groups = tuple(
                group
                for group in reply.groups
                if group.topic in topics and client.sees_group(topics[group.topic].name, group.name)
            )
            return reply._replace(topics=tuple(topics.values()), groups=groups)
        case m.ShowReply():
            topic = catalogue.topics.get(asked.partition.topic)
            shown = [
                entry
                for entry in reply.groups
                if client is None
                or (topic is not None and client.sees_group(topic.name, source_of(entry.group)))
            ]
            left_out = max(0, len(shown) - limits.SHOWN_GROUPS_MAX)
            return reply._replace(groups=tuple(shown[: limits.SHOWN_GROUPS_MAX]), left_out=left_out)
        case m.Failed() if reply.group:
            registers = catalogue.group_registers(catalogue.names.get(reply.topic, b""))
            names = [
                register.name
                for register in registers
                if not register.deleted and (client is None or client.sees_group(reply.topic, register.name))
            ]
            return reply._replace(detail=unknown_group(reply.topic, reply.group, names))
        case m.Failed() if reply.topic:
            live = sorted(topic.name for topic in catalogue.live())
            seen = (name for name in live if client is None or client.sees(name))
            return reply._replace(detail=unknown_topic(reply.topic, seen))
    return reply
