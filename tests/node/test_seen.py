"""Every request of every client: its answer has only names that the client may see.

Marker texts stand in names, bodies, keys, headers and dead letters of two topics and two groups. All is asked for with
every right, and the bytes of every answer are searched.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from quorumq.core import messages as m
from quorumq.core.values import limits
from quorumq.core.values.types import STAMP_ZERO, Death, Kind, PartitionId, ProducerId, Record, Span, Topic
from quorumq.node.clients import Entry, new_token, write_clients
from quorumq.wire.batch import Message, build_batch
from quorumq.wire.codec import encode_message, signed_items
from quorumq.wire.rights import _NEEDS
from quorumq.wire.values import SignedNamed
from tests.node.memory import Client, World, receipts, signed_session, world

OURS, THEIRS, GONE = "our-topic", "their-secret-topic", "their-secret-gone"
GROUP, OTHER = "our-group", "other-hidden-group"
RIGHTS: dict[str, dict[str, Any]] = {
    "nobody": {},
    "publish": {"publish": (OURS,)},
    "consume": {"consume": ((OURS, GROUP),)},
    "admin": {"admin": ("our*",)},
    "near": {"admin": (THEIRS[:-1],), "consume": ((OURS, OTHER[:-1]),)},
}
TOKENS = {name: new_token(name) for name in (*RIGHTS, "root")}


def markers(topic: str, group: str) -> Death:
    return Death(
        STAMP_ZERO, f"reason {topic} {group}", "Error", f"message {topic} {group}", f"stack {topic} {group}"
    )


def forbidden(client: str) -> list[bytes]:
    """Return the texts that no answer to a client may have in it."""
    texts = [THEIRS, GONE]
    if client != "admin":
        texts.append(OTHER)
    if client in ("nobody", "publish", "near"):
        texts.append(GROUP)
    if client in ("nobody", "publish"):
        texts.append("body of our")
    if client == "nobody":
        texts.append(OURS)
    return [text.encode() for text in texts]


@dataclass
class Filled:
    """A node with messages and dead letters everywhere."""

    cluster: World
    root: Client
    clients: dict[str, Client]
    topics: dict[str, Topic]
    producer_id: ProducerId
    receipts: list[SignedNamed]

    @classmethod
    async def make(cls, cluster: World) -> Filled:
        root = await cluster.client("a", token=TOKENS["root"][0])
        producer_id, topics, held = await root.session(), {}, []
        for name in (OURS, THEIRS, GONE):
            topic = topics[name] = await root.topic(name, rf=1)
            for group in (GROUP, OTHER):
                await root.ask(m.SetGroup(name, group))
            text = f"body of {name}"
            message = Message(text.encode(), key=text.encode(), headers={"header": text})
            batch = build_batch(PartitionId(topic.id, 0), producer_id, 0, 1, [message] * 3)
            assert isinstance(
                await root.ask(m.Publish(batch, signature=signed_session(producer_id))), m.PublishReply
            )
            for group in (GROUP, OTHER):
                items = receipts(await root.ask(fetch((name,), group, most=1)))
                rejected = await root.ask(m.RejectRequest(signed_items(items), 0.0, markers(name, group)))
                assert isinstance(rejected, m.SettleReply)
                held += receipts(await root.ask(fetch((name,), group, most=1)))
        await root.ask(m.DeleteTopic(GONE, topics[GONE].id))
        clients = {name: await cluster.client("a", token=TOKENS[name][0]) for name in RIGHTS}
        return cls(cluster, root, clients, topics, producer_id, held)

    def requests(self, name: str, id: bytes, group: str) -> list[Any]:
        """Every kind of request that names a topic or a group."""
        location, span = PartitionId(id, 0), Span(self.producer_id, 0, 1)
        items = signed_items(self.receipts)
        dead = m.SpanRecord(span, Record(0, 0, Kind.DEAD))
        batch = build_batch(location, self.producer_id, 9, 1, [Message(b"x")])
        return [
            m.OpenSession(),
            m.CloseSession(self.producer_id, (location,), signed_session(self.producer_id)),
            m.Publish(batch, signature=signed_session(self.producer_id)),
            m.CreateTopic(name, 1, implicit=True),
            m.AlterTopic(name, max_deliveries=0),
            m.DeleteTopic(name, id if name != OURS else b"y" * 16),
            m.DeleteTopic(OURS, id if name != OURS else b"y" * 16),
            m.Metadata(),
            m.Metadata((name,)),
            m.Metadata((f"{name[:-1]}",)),
            m.Metadata((f"{name[:3]}*", "their*")),
            fetch((name,), group[:-1] + "!dead"),
            fetch((name,), group),
            fetch((f"{name[:-1]}",), group),
            fetch((name,), group[:-1]),
            m.SetGroup(name, group[:-1] + "!"),
            m.SetGroup(name[:-1], group),
            m.DeleteGroup(name, group[:-1]),
            m.PauseGroup(name, group[:-1], True),
            m.LimitGroup(name, group[:-1], 5.0),
            m.MovePartition(name, 0, "a", "b"),
            m.ChangeMembers("add", "a", "b:1"),
            m.LabelsRequest(name),
            m.LabelsRequest(name[:-1]),
            m.FindName(location, 60, 1, 1),
            m.PurgeRequest(name, 0, group[:-1]),
            m.PurgeRequest(name[:-1], 0, group),
            m.RedriveRequest(name, 0, group[:-1], (dead,)),
            m.DescribeGroups(((name, group),)),
            m.DescribeGroups(((name[:-1], group),)),
            m.DescribeGroups(((name, group), (name[:-1], group))),
            m.PeekRequest(name, 0, group, "all", (0, 0), 10, counted=True),
            m.PeekRequest(name, 0, group, "all", (0, 0), 10, bodies=True),
            m.PeekRequest(name, 0, group + "!dead", "dead", (0, 0), 10, bodies=True),
            m.PeekRequest(name, 0, group[:-1], "all", (0, 0), 10, complete=True),
            m.ShowRequest(location, span),
            m.ShowRequest(location, Span(self.producer_id, 0, 3)),
            m.AckRequest(items),
            m.RejectRequest(items),
            m.ExtendRequest(items, 1.0, 0.0),
            m.ReleaseRequest(items),
            m.StatusRequest(),
            m.DeclareSurvivors(("a",)),
        ]


def fetch(topics: tuple[str, ...], group: str, most: int = 9) -> m.Fetch:
    return m.Fetch(topics, group, most, 1 << 20, 1, 0.0, 4.0, 0.0, idle=True)


def clients_file(path: Path) -> str:
    entries = {name: Entry(TOKENS[name][1], **rights) for name, rights in RIGHTS.items()}
    entries["root"] = Entry(TOKENS["root"][1], publish=("*",), consume=(("*", "*"),), admin=("*",))
    write_clients(path, entries)
    return str(path)


async def test_no_answer_has_what_its_client_may_not_see(tmp_path: Path) -> None:
    async with world("a", clients_file=clients_file(tmp_path / "clients.toml")) as cluster:
        filled = await Filled.make(cluster)
        kinds: set[type] = set()
        for name, client in filled.clients.items():
            for topic, group in ((OURS, GROUP), (OURS, OTHER), (THEIRS, GROUP), (GONE, OTHER)):
                for request in filled.requests(topic, filled.topics[topic].id, group):
                    kinds.add(type(request))
                    reply = await client.ask(request)
                    data = b"".join(map(bytes, encode_message(reply, request=1, read=lambda part: part.body)))
                    said = b"".join(map(bytes, encode_message(request, request=1)))
                    for text in forbidden(name):
                        if text not in said:  # else it named that itself
                            assert text not in data, (name, request, reply)
        assert kinds == set(_NEEDS)


async def test_invisible_topics_and_groups_are_not_found(tmp_path: Path) -> None:
    """The same answer, but for the name or id itself, to a topic that is there, was there, and never was."""
    async with world("a", clients_file=clients_file(tmp_path / "clients.toml")) as cluster:
        filled = await Filled.make(cluster)
        never = "their-secret-never"
        ids = {THEIRS: filled.topics[THEIRS].id, GONE: filled.topics[GONE].id, never: b"n" * 16}
        for who, client in filled.clients.items():
            if who == "near":
                continue  # has a right to one of these names
            for rows in zip(*(filled.requests(name, id, GROUP) for name, id in ids.items()), strict=True):
                if rows[0] == rows[1] == rows[2]:
                    continue  # names nothing
                texts = set()
                for (name, id), request in zip(ids.items(), rows, strict=True):
                    reply = await client.ask(request)
                    assert not isinstance(reply, m.TopicReply)
                    texts.add(
                        repr(reply).replace(name, "NAME").replace(name[:-1], "NAM").replace(id.hex(), "ID")
                    )
                assert len(texts) == 1, (who, rows[0], texts)


async def test_a_message_is_shown_with_the_groups_that_a_client_may_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SHOWN_GROUPS_MAX", 1)
    async with world("a", clients_file=clients_file(tmp_path / "clients.toml")) as cluster:
        filled = await Filled.make(cluster)
        show = m.ShowRequest(PartitionId(filled.topics[OURS].id, 0), Span(filled.producer_id, 0, 1))
        shown = {name: await filled.clients[name].ask(show) for name in ("consume", "admin")}
        assert [shown_group.group for shown_group in shown["consume"].groups] == [GROUP]
        assert [shown[name].left_out for name in shown] == [0, 1]


async def test_a_hint_is_one_that_the_client_may_see(tmp_path: Path) -> None:
    async with world("a", clients_file=clients_file(tmp_path / "clients.toml")) as cluster:
        filled = await Filled.make(cluster)
        mistyped = await filled.clients["admin"].ask(m.AlterTopic("our-topics"))
        assert f"there is no topic 'our-topics': did you mean {OURS!r}?" in mistyped.detail
        groups = await filled.clients["admin"].ask(m.PurgeRequest(OURS, 0, "our-gruop"))
        assert f"{OTHER}, {GROUP} do; did you mean {GROUP!r}?" in groups.detail
        unseen = await filled.root.ask(m.AlterTopic("their-secret-topics"))
        assert f"did you mean {THEIRS!r}?" in unseen.detail
        assert (await filled.clients["admin"].ask(m.Metadata((THEIRS,)))).code == "not-found"
