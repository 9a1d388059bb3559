"""The client's side of a connection, without a connection: bytes in, replies out, and everything that is refused."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from quorumq.client.transport.protocol import ANSWERS, SOFTWARE, ClientProtocol
from quorumq.core import messages as m
from quorumq.core.values.errors import ClusterMismatch, PeerError, TooLarge, UsageError
from quorumq.core.values.types import Incarnation
from quorumq.wire.codec import decode_message, encode_message
from quorumq.wire.frames import Frame, FrameReader
from quorumq.wire.values import SignedNamed

WELCOME = m.Welcome(1, "cluster", "a", Incarnation(1, 2), 3, 4, 5, ())


def frames(data: bytes) -> list[Frame]:
    reader = FrameReader()
    reader.feed(data)
    return list(reader)


def reply(message: object, number: int) -> bytes:
    return b"".join(encode_message(message, request=number, stamp=9))  # type: ignore[arg-type]


def welcomed() -> ClientProtocol:
    protocol = ClientProtocol()
    protocol.hello(1)
    assert protocol.receive(reply(WELCOME, 1)) == []
    assert protocol.welcome == WELCOME
    return protocol


def test_hello_names_the_cluster_and_no_node() -> None:
    hello = decode_message(frames(ClientProtocol("mine").hello(77))[0])
    assert (hello.request, hello.stamp) == (1, 0)
    assert isinstance(hello.message, m.Hello)
    assert (hello.message.cluster_id, hello.message.node, hello.message.wall_ms) == ("mine", "", 77)
    assert hello.message.versions == m.VERSIONS


def test_replies_come_in_any_order_and_in_any_chunks() -> None:
    protocol = welcomed()
    assert [protocol.request(m.StatusRequest())[0] for _ in range(3)] == [2, 3, 4]
    data = b"".join(reply(m.StatusReply({"n": number}), number) for number in (4, 2, 3))
    answers = [answer for at in range(len(data)) for answer in protocol.receive(data[at : at + 1])]
    assert [(number, answer.fields) for number, answer in answers] == [(n, {"n": n}) for n in (4, 2, 3)]  # type: ignore[union-attr]
    protocol.close()


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (m.Metadata(("a\udc80",)), "Metadata cannot be sent: topics is .*it must be text, and Unicode"),
        (m.CreateTopic("jobs", 1 << 70), "CreateTopic cannot be sent: .*64 bits"),
        (
            m.LimitGroup("jobs", "g", 2.0, 1.5),
            "LimitGroup cannot be sent: burst is 1.5: it must be an integer",
        ),
    ],
)
def test_an_unencodable_request_raises_and_uses_no_number(request_: m.ClientRequest, says: str) -> None:
    protocol = welcomed()
    with pytest.raises(UsageError, match=says):
        protocol.request(request_)
    assert protocol.request(m.StatusRequest())[0] == 2


def test_a_welcome_in_a_version_that_was_not_offered_is_none() -> None:
    protocol = ClientProtocol()
    protocol.hello(0)
    with pytest.raises(PeerError, match="in version 2; 1 to 1 were offered"):
        protocol.receive(reply(WELCOME._replace(version=2), 1))


def test_failed_answers_anything() -> None:
    protocol = welcomed()
    number, _ = protocol.request(m.OpenSession())
    failed = m.Failed("not-stored", "why", 2, 1)
    assert protocol.receive(reply(failed, number)) == [(number, failed)]


def test_members_are_taken_without_a_request_and_other_messages_are_not() -> None:
    protocol = welcomed()
    members = m.MetadataReply("", "a", (), (), (), 60.0, 3)
    assert protocol.receive(reply(m.NotedReply(), 0) + reply(members, 0)) == [(0, members)]


@pytest.mark.parametrize("number", [1, 3, 7])
def test_an_answer_to_what_was_not_asked_ends_the_connection(number: int) -> None:
    protocol = welcomed()
    protocol.request(m.OpenSession())
    with pytest.raises(PeerError, match=f"request {number}"):
        protocol.receive(reply(m.NotedReply(), number))


def test_a_second_answer_ends_the_connection() -> None:
    protocol = welcomed()
    number, _ = protocol.request(m.StatusRequest())
    protocol.receive(reply(m.StatusReply({}), number))
    with pytest.raises(PeerError, match="not waiting"):
        protocol.receive(reply(m.StatusReply({}), number))


def test_an_answer_of_another_type_ends_the_connection() -> None:
    protocol = welcomed()
    number, _ = protocol.request(m.StatusRequest())
    with pytest.raises(PeerError, match="NotedReply, not StatusReply"):
        protocol.receive(reply(m.NotedReply(), number))


def test_a_refused_hello_is_raised_as_what_it_is() -> None:
    protocol = ClientProtocol("mine")
    protocol.hello(1)
    with pytest.raises(ClusterMismatch, match="theirs"):
        protocol.receive(reply(m.Failed("cluster-mismatch", "this is cluster theirs"), 1))


def test_other_bytes_are_told_by_name() -> None:
    protocol = ClientProtocol()
    protocol.hello(1)
    with pytest.raises(PeerError, match="HTTP"):
        protocol.receive(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def test_the_end_inside_a_frame_is_an_error() -> None:
    protocol = welcomed()
    number, _ = protocol.request(m.StatusRequest())
    protocol.receive(reply(m.StatusReply({}), number)[:-1])
    with pytest.raises(PeerError, match="inside a frame"):
        protocol.close()


def test_a_request_over_a_limit_uses_up_no_number() -> None:
    protocol = welcomed()
    items = tuple(SignedNamed(b"x" * 1000) for _ in range(5000))
    with pytest.raises(TooLarge):
        protocol.request(m.AckRequest(items))  # type: ignore[arg-type]
    assert protocol.request(m.StatusRequest())[0] == 2


def test_an_unsolicited_message_of_a_newer_node_is_skipped() -> None:
    assert welcomed().receive(reply(m.NotedReply(), 0)) == []


def test_a_withdrawn_request_is_not_awaited() -> None:
    protocol = welcomed()
    number, _ = protocol.request(m.StatusRequest())
    protocol.withdraw(number)
    with pytest.raises(PeerError, match=f"request {number}, which is not waiting"):
        protocol.receive(reply(m.StatusReply({}), number))


def test_every_request_has_its_answer() -> None:
    requests = set(m.ClientRequest.__args__)  # type: ignore[attr-defined]
    assert set(ANSWERS) == requests
    assert set(ANSWERS.values()) | {m.Failed, m.Admitted} == set(m.ClientReply.__args__)  # type: ignore[attr-defined]


def test_a_client_says_the_version_that_is_installed() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert f"quorumq-client {project['version']}" == SOFTWARE
