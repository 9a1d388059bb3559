"""Users of a gateway at a real node's shell with a clients file, and the bounds that all share."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from quorumq.core.values.errors import Busy, TooFewReplicas, TooLarge, UnknownToken, UsageError
from quorumq.gateway import requests, shares, users
from quorumq.gateway.accesskeys import new_keys_file, read_keys, secret_access_key
from quorumq.gateway.app import asking, make_app
from quorumq.gateway.console.session import Sessions
from quorumq.gateway.gateway import ASK_S, TIMEOUT_S, running
from quorumq.gateway.identity import ANYBODY, User
from quorumq.gateway.requests import Bodies, Left, Stopping, has_more_values, while_there
from quorumq.gateway.settings import Settings
from quorumq.gateway.shares import PAYER
from quorumq.gateway.sqs.signature import HttpRequest
from quorumq.node.clients import write_clients
from tests.gateway.guarded import ENTRIES, SHOP, guarded
from tests.gateway.sdk import URL, Sdk


async def test_each_user_has_its_own_rights_and_sees_nothing_of_others(tmp_path: Path) -> None:
    async with guarded(tmp_path) as it:
        shop, rival = it.sdk("shop"), it.sdk("rival")
        url = (await shop.ok("CreateQueue", QueueName="shop-jobs"))["QueueUrl"]
        await shop.ok("SendMessage", QueueUrl=url, MessageBody="x")
        message = (await shop.ok("ReceiveMessage", QueueUrl=url))["Messages"][0]
        refused = {
            "SendMessage": {"MessageBody": "x"},
            "ReceiveMessage": {},
            "GetQueueAttributes": {"AttributeNames": ["All"]},
            "PurgeQueue": {},
            "DeleteQueue": {},
            "SetQueueAttributes": {"Attributes": {"MessageRetentionPeriod": "60"}},
        }
        for action, params in refused.items():
            theirs = await rival.ask(action, QueueUrl=url, **params)
            missing = await rival.ask(action, QueueUrl=f"{URL}/shop-none", **params)
            assert theirs.status == missing.status == 400
            assert theirs.code == missing.code == "QueueDoesNotExist", (
                "it does not even learn that there is one"
            )
        stolen = {"QueueUrl": url, "ReceiptHandle": message["ReceiptHandle"]}
        for action, params in (("DeleteMessage", {}), ("ChangeMessageVisibility", {"VisibilityTimeout": 0})):
            assert (await rival.ask(action, **stolen, **params)).code in (
                "AccessDenied",
                "QueueDoesNotExist",
            ), action
        assert await rival.ok("ListQueues") == {}
        denied = await rival.ask("CreateQueue", QueueName="shop-mine")
        assert (denied.status, denied.code) == (403, "AccessDenied")
        await shop.ok("DeleteMessage", **stolen)
        lines = it.nodes.logs["a"].of("change")
        assert lines, "changes are logged"
        assert {line["client"].partition(" at ")[0] for line in lines} == {"shop by gate"}


async def test_a_queue_is_purged_with_the_right_to_admin_alone(tmp_path: Path) -> None:
    async with guarded(tmp_path) as it:
        url = (await it.sdk("shop").ok("CreateQueue", QueueName="shop-jobs"))["QueueUrl"]
        await it.sdk("shop").ok("SendMessage", QueueUrl=url, MessageBody="x")
        await it.sdk("cleaner").ok("PurgeQueue", QueueUrl=url)
        assert await it.sdk("shop").ok("ReceiveMessage", QueueUrl=url) == {}


async def test_a_request_without_a_key_of_a_client_is_refused(tmp_path: Path) -> None:
    async with guarded(tmp_path) as it:
        answers = [
            await Sdk(it.app).ask("ListQueues"),
            await Sdk(it.app, "shop", "wrong").ask("ListQueues"),
            await Sdk(it.app, "nobody", "wrong").ask("ListQueues"),
            await Sdk(it.app, "shop", ENTRIES["shop"].token).ask("ListQueues"),
        ]
        assert [answer.status for answer in answers] == [403] * 4
        assert [answer.code for answer in answers] == ["MissingAuthenticationToken"] + [
            "SignatureDoesNotMatch"
        ] * 3
        assert it.nodes.services["a"].node.health.clients == 0, "no node has heard of them"


async def test_the_gateway_asks_for_no_client_beyond_its_right(tmp_path: Path) -> None:
    async with guarded(tmp_path) as it:
        answer = await it.sdk("boss").ask("ListQueues")
        assert (answer.status, answer.code) == (403, "AccessDenied")
        assert "client 'gate' lacks the right on_behalf for client 'boss'" in answer.json["message"]


async def test_a_gateway_that_the_nodes_do_not_know_is_not_its_users_fault(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its users got 403, as if they lacked a right, and it went on to be ready."""
    async with guarded(tmp_path) as it:
        app = make_app(it.gateway)
        shop, plain = it.sdk("shop", app), Sdk(app)
        bearer = {"authorization": f"Bearer {SHOP}"}
        url = (await shop.ok("CreateQueue", QueueName="shop-jobs"))["QueueUrl"]
        await shop.ok("SendMessage", QueueUrl=url, MessageBody="x")
        handle = (await shop.ok("ReceiveMessage", QueueUrl=url))["Messages"][0]["ReceiptHandle"]

        async def ready() -> tuple[int, str]:
            answer = await plain.send(b"", {}, method="GET", path="/ready")
            return answer.status, answer.body.decode()

        assert await ready() == (200, "ready\n")
        write_clients(it.path, {name: entry for name, entry in ENTRIES.items() if name != "gate"})
        await trio.sleep(3)
        for action, params in (
            ("SendMessage", {"MessageBody": "x"}),
            ("DeleteMessage", {"ReceiptHandle": handle}),
            ("ReceiveMessage", {"WaitTimeSeconds": 1}),
        ):
            answer = await shop.ask(action, QueueUrl=url, **params)
            assert (answer.status, answer.code) == (503, "ServiceUnavailable"), action
            assert "do not know the token of this gateway" in answer.json["message"]
        body = b'{"messages": [{"payload": "x"}]}'
        answer = await plain.send(body, bearer, path="/v1/topics/shop-jobs/messages/batch")
        assert answer.json["results"][0]["problem"]["status"] == 503
        answer = await plain.send(b'{"payload": "x"}', bearer, path="/v1/topics/shop-jobs/messages")
        assert (answer.status, answer.json["code"]) == (503, "unknown-token")
        assert "QUORUMQ_TOKEN" not in answer.json["detail"], "that is not for its users"
        await trio.sleep(ASK_S)
        status, said = await ready()
        assert (status, "a token that it does not know" in said) == (503, True)
        write_clients(it.path, ENTRIES)
        await trio.sleep(2 * ASK_S)
        await shop.ok("DeleteMessage", QueueUrl=url, ReceiptHandle=handle)
        assert await ready() == (200, "ready\n")
    lines = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert [line.partition(",")[0] for line in lines] == [
        "the nodes do not know the token of this gateway",
        "the nodes know the token of this gateway again",
    ]


async def test_a_gateway_whose_nodes_do_not_answer_keeps_what_it_knows_of_its_token() -> None:
    answers = iter(
        [UnknownToken("no such token"), TooFewReplicas("no node"), None, TooFewReplicas("no node")]
    )

    @asynccontextmanager
    async def connecting(user: User) -> AsyncIterator[Any]:
        assert user == ANYBODY
        if (error := next(answers)) is not None:
            raise error
        yield None

    async with running(Settings(nodes=("a:1",)), connecting) as gateway:
        await trio.sleep(ASK_S / 2)
        known = [gateway.refused]
        for _ in range(3):
            await trio.sleep(ASK_S)
            known.append(gateway.refused)
    assert known == ["no such token", "no such token", "", ""]


async def test_a_gateway_without_any_node_is_not_ready(caplog: pytest.LogCaptureFixture) -> None:
    """Balancers sent it requests, and all failed. Its log named the user ''."""
    failures = iter([True, True, False, True])

    @asynccontextmanager
    async def connecting(user: User) -> AsyncIterator[Any]:
        if next(failures):
            raise TooFewReplicas("nothing at a:1")
        yield None

    async with running(Settings(nodes=("a:1",)), connecting) as gateway:
        plain = Sdk(make_app(gateway))
        answers = []
        for seconds in (ASK_S / 2, ASK_S, ASK_S):
            await trio.sleep(seconds)
            answer = await plain.send(b"", {}, method="GET", path="/ready")
            answers.append((answer.status, answer.body))
        assert answers == [(503, b"no node answers\n")] * 2 + [(200, b"ready\n")]
        with pytest.raises(TooFewReplicas):
            async with gateway.client(ANYBODY):
                pass
    said = [record.getMessage() for record in caplog.records]
    assert said == ["no node answers: nothing at a:1", "no connection: nothing at a:1"]


async def test_a_request_has_its_time_and_only_the_first_one_connects(tmp_path: Path) -> None:
    async with guarded(tmp_path) as it, it.gateway.client(User("shop")) as client:
        assert client.timeout == TIMEOUT_S


async def test_names_of_no_client_are_one_owner_at_each_address(tmp_path: Path) -> None:
    """Else a stranger had as many shares of the processor as it could make up names."""
    async with guarded(tmp_path) as it:
        owners = []
        for name in ("shop", "nobody", "none"):
            signed = Sdk(it.app, name, "wrong").signed(HttpRequest("POST", "/", "", {"host": "a"}, b""))
            headers = [(key.encode(), text.encode()) for key, text in signed.items()]
            scope = {"path": "/", "headers": headers, "client": ("127.0.0.1", 1)}
            owners.append(asking(it.gateway, Sessions(), scope))
        assert owners == [(("127.0.0.1", name), None) for name in ("shop", "", "")]


async def test_answers_that_are_not_read_count_for_their_user_and_not_for_its_address(tmp_path: Path) -> None:
    async with guarded(tmp_path) as it:
        sizes: list[set[Any]] = []

        async def send(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.body":
                sizes.append({owner for owner, size in it.gateway.bodies.by_owner.items() if size})

        scope = {
            "type": "http", "method": "GET", "path": "/v1/topics", "query_string": b"", "root_path": "",
            "headers": [(b"authorization", f"Bearer {SHOP}".encode())], "client": ("127.0.0.1", 1),
        }  # fmt: skip

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        await make_app(it.gateway)(scope, receive, send)
        assert sizes[0] == {("127.0.0.1", "shop")}


async def test_connections_count_for_their_user_and_end_if_it_does_not_ask() -> None:
    """Those of an open gateway work for all. Else they would count for the address that asked first."""
    payers: dict[User, list[Any]] = defaultdict(list)

    @asynccontextmanager
    async def connecting(user: User) -> AsyncIterator[Any]:
        payer = PAYER.get()
        assert payer is not None
        payers[user].append(payer.share)
        yield object()
        payers[user].append("closed")

    shop = User("shop")
    async with running(Settings(nodes=("a:1",)), connecting) as gateway:
        await trio.sleep(ASK_S / 2)
        payers.clear()
        share = gateway.shares.of(shop)
        for user in (shop, ANYBODY):
            async with gateway.shares.request(("127.0.0.1", "")), gateway.client(user):
                pass
        assert payers == {shop: [share], ANYBODY: [None]}
        await trio.sleep(0.8 * users.IDLE_S)
        async with gateway.client(shop):
            pass
        await trio.sleep(0.8 * users.IDLE_S)
        assert payers[shop] == [share], "it has asked meanwhile"
        await trio.sleep(0.7 * users.IDLE_S)
        assert payers[shop] == [share, "closed"]
    with pytest.raises(KeyError):
        trio.lowlevel.remove_instrument(gateway.shares)


async def test_a_revoked_client_is_out_within_seconds(tmp_path: Path) -> None:
    async with guarded(tmp_path) as it:
        shop = it.sdk("shop")
        await shop.ok("ListQueues")
        assert (await shop.send(b"", {}, method="GET", query="Action=ListQueues")).status == 200
        write_clients(it.path, {name: entry for name, entry in ENTRIES.items() if name != "shop"})
        await trio.sleep(3)
        assert (await shop.ask("ListQueues")).code == "SignatureDoesNotMatch"
        assert await it.sdk("rival").ok("ListQueues") == {}


async def test_one_user_beyond_its_quota_delays_no_other_user(tmp_path: Path) -> None:
    async with guarded(tmp_path) as it:
        shop, rival = it.sdk("shop"), it.sdk("rival")
        url = (await shop.ok("CreateQueue", QueueName="shop-jobs"))["QueueUrl"]
        times: list[float] = []

        async def flood() -> None:
            while True:
                await rival.ask("ListQueues")

        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(flood)
            await trio.sleep(1)
            for _ in range(20):
                began = trio.current_time()
                await shop.ok("SendMessage", QueueUrl=url, MessageBody="x")
                times.append(trio.current_time() - began)
            nursery.cancel_scope.cancel()
        assert max(times) < 0.1


# ------------------------------------------------------------------------------- bounds


def received(*messages: dict[str, Any]) -> Any:
    """A client that sends these messages of ASGI, and then nothing."""
    queue = list(messages)

    async def receive() -> dict[str, Any]:
        if not queue:
            await trio.sleep_forever()
        await trio.lowlevel.checkpoint()
        return queue.pop(0)

    return receive


def part(data: bytes, more: bool = True) -> dict[str, Any]:
    return {"type": "http.request", "body": data, "more_body": more}


GONE = {"type": "http.disconnect"}


async def body_of(bodies: Bodies, receive: Any, most: int = 100, owner: str = "a") -> bytes:
    async with bodies.read(receive, ("127.0.0.1", owner), most) as body:
        return bytes(body)


async def test_bodies_are_bounded_in_size_and_time() -> None:
    bodies = Bodies()
    assert await body_of(bodies, received(part(b"a"), part(b"b", more=False)), 2) == b"ab"
    with pytest.raises(TooLarge, match="more than 2 bytes"):
        await body_of(bodies, received(part(b"a"), part(b"bc"), part(b"d", more=False)), 2)
    with pytest.raises(Left):
        await body_of(bodies, received(part(b"a"), GONE))
    began = trio.current_time()
    with pytest.raises(Busy, match="did not come within 30 s"):
        await body_of(bodies, received(part(b"a")))
    assert trio.current_time() - began == requests.BODY_S
    assert (bodies.bytes, bodies.by_owner) == (0, {})


async def test_bodies_count_together_and_by_owner_until_requests_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "BODIES_BYTES_MAX", 80)
    bodies = Bodies()

    def body(size: int) -> Any:
        return received(part(size * b"x", more=False))

    async with AsyncExitStack() as stack:
        await stack.enter_async_context(bodies.read(body(8), ("h", "a")))
        with pytest.raises(Busy, match="no room for more bodies of this client"):
            await stack.enter_async_context(bodies.read(body(3), ("h", "a")))
        for number in range(7):
            await stack.enter_async_context(bodies.read(body(10), ("h", str(number))))
        with pytest.raises(Busy, match="no room for more bodies now"):
            await body_of(bodies, body(3), owner="b")
        assert bodies.bytes == 78
    assert (bodies.bytes, bodies.by_owner) == (0, {})


async def test_work_is_cancelled_when_its_client_hangs_up_and_undone_if_it_had_ended() -> None:
    undone: list[int] = []

    async def undo(result: int) -> None:
        undone.append(result)

    async def forever() -> int:
        await trio.sleep_forever()
        raise AssertionError

    async def seven() -> int:
        return 7

    async def wrong() -> int:
        raise UsageError("wrong")

    with pytest.raises(Left):
        await while_there(received(GONE), forever)
    assert await while_there(received(), seven, undo=undo) == 7
    with pytest.raises(UsageError, match="wrong"):
        await while_there(received(), wrong)
    stop = trio.Event()
    stop.set()
    with pytest.raises(Stopping):
        await while_there(received(), forever, stopping=stop)

    async def gone_at_once() -> dict[str, Any]:
        return GONE

    with pytest.raises(Left):
        await while_there(gone_at_once, seven, undo=undo)
    assert undone == [7]


# --------------------------------------------------------------------------- files, settings


def test_keys_are_for_their_owner_and_every_line_is_one(tmp_path: Path) -> None:
    path = tmp_path / "gateway.keys"
    new_keys_file(path)
    (key,) = read_keys(path)
    assert len(key) == 32
    with pytest.raises(FileExistsError):
        new_keys_file(path)
    second = tmp_path / "second"
    new_keys_file(second)
    path.write_text(second.read_text() + path.read_text())
    assert read_keys(path) == (*read_keys(second), key)
    secrets = {
        secret_access_key(one, name, hash) for one in read_keys(path) for name in "ab" for hash in "xy"
    }
    assert len(secrets) == 8, "key, name and token each make another secret"
    path.chmod(0o640)
    with pytest.raises(UsageError, match="chmod 600"):
        read_keys(path)
    path.chmod(0o600)
    for text, words in (
        ("# none\n", "has no key"),
        ("abc\n", "is no key of 32 bytes"),
        ("\xff\n", "is no key"),
    ):
        path.write_text(text, "latin-1")
        with pytest.raises(UsageError, match=words):
            read_keys(path)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"listen": "0.0.0.0:80"}, "no TLS and a clients file"),
        ({"listen": "example.com:80", "clients_file": "c", "token": "t"}, "no TLS"),
        ({"listen": "[::]:80", "tls_cert": "c", "tls_key": "k"}, "no a clients file"),
        ({"tls_cert": "c"}, "--tls-cert and --tls-key together"),
        ({"clients_file": "c"}, "a token of its own"),
        ({"keys_file": "k"}, "give --clients"),
        ({"listen": "x"}, "must be host:port"),
        ({"public_url": "queues.example.org:80"}, "give scheme, host and port"),
        ({"public_url": "https://"}, "give scheme, host and port"),
        ({"public_url": "http://[::1"}, "give scheme, host and port"),
        ({"public_url": "http://a:x"}, "give scheme, host and port"),
        ({"public_url": "https://a/queues"}, "give scheme, host and port"),
    ],
)
def test_settings_that_open_the_cluster_or_fail_are_refused(settings: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Settings(nodes=("a:1",), **settings).check()  # type: ignore[arg-type]


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "[::1]:7480", "localhost:80", "127.9.9.9:1"])
def test_a_gateway_on_loopback_needs_no_clients_file(listen: str) -> None:
    Settings(nodes=("a:1",), listen=listen).check()


JSON = st.recursive(
    st.none() | st.integers() | st.text(st.sampled_from(',[{"\\a'), max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.sampled_from(',[{"\\a'), max_size=3), inner, max_size=4)
    ),
)


def marks_of(value: Any) -> int:
    """Return how many commas and opening brackets are outside of strings."""
    if not isinstance(value, dict | list):
        return 0
    inner = list(value.values()) if isinstance(value, dict) else value
    return 1 + max(0, len(inner) - 1) + sum(map(marks_of, inner))


@given(JSON, st.integers(1, 12))
def test_values_are_counted_before_they_are_decoded(value: Any, most: int) -> None:
    """4 MiB of empty messages took a second to decode, and were refused then: they were too many."""
    text = json.dumps(value).encode()
    assert has_more_values(text, most) == (marks_of(value) > most)
    assert has_more_values(bytearray(text), most) == (marks_of(value) > most)


async def test_a_long_form_of_sqs_is_read_in_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bodies of 4 MiB, not even signed by a client, made a cycle of another user take 97 times the processor time."""
    turns = 0

    async def turn() -> None:
        nonlocal turns
        turns += 1

    monkeypatch.setattr(shares, "turn", turn)
    async with guarded(tmp_path) as it:
        shop = it.sdk("shop")
        await shop.ok("CreateQueue", QueueName="shop-jobs")
        turns = 0
        answer = await shop.query("SendMessage", QueueUrl=f"{URL}/shop-jobs", MessageBody="\xe9" * 64 * 1024)
        assert (answer.status, turns) == (200, 24)
