"""Every right against every request of clients: who lacks one hears which, and nothing passes that the table forgot."""

from __future__ import annotations

import typing
from typing import Any

import pytest

from quorumq.core import messages as m
from quorumq.core.cluster.catalogue import Catalogue
from quorumq.core.values.errors import NotFound, Unauthorized
from quorumq.core.values.types import STAMP_ZERO, Group, Topic
from quorumq.wire.rights import _NEEDS, RIGHTS, Client, check_rights, covers, visible
from tests.wire.requests import MAIL, ORDERS, REQUESTS, fetch

NAMES = {ORDERS: "orders", MAIL: "mail"}


CLIENTS = {
    "publish": Client("p", publish=("ord*",)),
    "consume": Client("c", consume=(("ord*", "g"),)),
    "admin": Client("a", admin=("ord*",)),
}


def passes(client: Client, request: Any) -> bool:
    try:
        check_rights(client, request, NAMES.get)
    except (NotFound, Unauthorized) as error:
        text = str(error)
    else:
        return True
    assert repr(client.name) in text
    assert type(request).__name__ in text
    return False


def test_no_request_is_without_a_row() -> None:
    assert set(_NEEDS) == set(typing.get_args(m.ClientRequest)) - {m.Hello}
    assert {type(request) for request, _ in REQUESTS.values()} | {m.DeclareSurvivors, m.StatusRequest} == set(
        _NEEDS
    )


@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize("right", RIGHTS)
def test_a_request_passes_with_a_right_that_it_needs_and_without_it_does_not(name: str, right: str) -> None:
    request, needed = REQUESTS[name]
    assert passes(CLIENTS[right], request) == (right in needed)
    assert passes(Client("nobody"), request) == (name == "Metadata")


@pytest.mark.parametrize("name", [name for name in REQUESTS if name not in (
    "OpenSession", "CloseSession", "Metadata",
)])  # fmt: skip
def test_a_right_to_another_topic_does_not_do(name: str) -> None:
    everywhere_else = Client("x", publish=("mail",), consume=(("mail", "*"),), admin=("mail",))
    assert not passes(everywhere_else, REQUESTS[name][0])


def test_a_right_to_another_group_does_not_do_and_one_of_several_topics_is_enough_to_refuse() -> None:
    other = Client("x", consume=(("*", "h"), ("mail", "g")))
    for name in (
        "Fetch",
        "Fetch, by id",
        "Fetch, dead",
        "AckRequest",
        "AckRequest, dead",
        "SetGroup",
        "PeekRequest",
    ):
        assert not passes(other, REQUESTS[name][0]), name
    assert not passes(CLIENTS["consume"], fetch("g", "orders", "mail"))
    assert passes(Client("x", consume=(("*", "*"),)), fetch("g", "orders", "mail"))


def test_a_publish_that_is_refused_is_called_one() -> None:
    """The client asks to create a topic that it may not see, and its user has created nothing."""
    with pytest.raises(
        Unauthorized, match=r"publish to topic 'orders', which a publish \(as CreateTopic\) needs"
    ):
        check_rights(CLIENTS["consume"], m.CreateTopic("orders", implicit=True), NAMES.get)
    with pytest.raises(Unauthorized, match=r"admin to topic 'orders', which CreateTopic needs"):
        check_rights(CLIENTS["consume"], m.CreateTopic("orders"), NAMES.get)


@pytest.mark.parametrize("request_", [m.DeclareSurvivors(("a",)), m.StatusRequest()])
def test_requests_about_the_whole_cluster_need_the_right_to_all(request_: Any) -> None:
    assert not passes(CLIENTS["admin"], request_)
    assert passes(Client("x", admin=("*",)), request_)


@pytest.mark.parametrize(
    "name", ["Publish", "AckRequest", "RejectRequest", "ExtendRequest", "ReleaseRequest"]
)
def test_by_an_id_that_is_not_known_here_only_who_may_do_it_everywhere_gets_on(name: str) -> None:
    """Another node may know the topic, and it is carried out there."""
    request, (right,) = REQUESTS[name]
    assert check_rights(Client("x", publish=("*",), consume=(("*", "g"),)), request, lambda _: None) is None
    with pytest.raises(NotFound, match="ask another node"):
        check_rights(CLIENTS[right], request, lambda _: None)
    for who in (CLIENTS["admin"], Client("nobody"), Client("x", consume=(("*", "h"),))):
        with pytest.raises(Unauthorized, match="any topic"):
            check_rights(who, request, lambda _: None)


def test_a_pattern_that_is_asked_for_has_to_lie_within_one_that_is_allowed() -> None:
    for pattern, asked in (("*", "a*c"), ("ord*", "orders.*"), ("a?c", "a?c"), ("or*", "or[de]*")):
        assert covers(pattern, asked), (pattern, asked)
    for pattern, asked in (
        ("a?c", "a*c"),
        ("a*c", "a*"),
        ("orders", "order?"),
        ("a*c", "a?*c"),
        ("[a]*", "a*"),
    ):
        assert not covers(pattern, asked), (pattern, asked)


def test_metadata_tells_a_client_of_what_it_has_a_right_to() -> None:
    def topic(name: str, id: bytes) -> Topic:
        return Topic(id, name, 1, (("a",),), 5, STAMP_ZERO)

    groups, nothing = (Group(ORDERS, "g", 0, 0), Group(MAIL, "g", 0, 0)), Catalogue("a")
    reply = m.MetadataReply("c", "a", (), (topic("orders", ORDERS), topic("mail", MAIL)), groups, 1.0)
    for client in CLIENTS.values():
        seen = visible(client, reply, nothing)
        assert [known.name for known in seen.topics] == ["orders"]
        assert [known.topic for known in seen.groups] == ([] if client.publish else [ORDERS])
    assert visible(Client("nobody"), reply, nothing).topics == ()
    assert visible(Client("all", admin=("*",)), reply, nothing) == reply
    assert visible(Client("h", consume=(("*", "h"),)), reply, nothing).groups == ()
