"""The console against a cluster in one process."""

from __future__ import annotations

import re
import shlex
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import click
import pytest
import trio

pytest.importorskip("starlette", reason="the extra quorumq[gateway] is not installed")
pytest.importorskip("hypercorn", reason="the extra quorumq[gateway] is not installed")

from quorumq.cli.main import main as quorumq
from quorumq.client import Backlog, Client
from quorumq.core.values.printable import printable
from quorumq.gateway.console import views
from quorumq.gateway.console.health import health_of
from quorumq.gateway.console.session import Sessions
from quorumq.gateway.requests import LONG_BYTES
from quorumq.node.clients import Entry, new_token, write_clients
from quorumq.wire.batch import Message as Parts
from tests.gateway.http import Answer, Browser, gateway

HOSTILE = (
    """</textarea></code><script>alert(1)</script>" onmouseover='alert(2)' {{ 7*7 }} \u202e\x1b[2J&amp;"""
)
GROUP = "/console/group?topic=jobs&group=g"
DEAD = "/console/dead?topic=jobs&group=g"
WITHOUT_END = {"meta", "link", "input", "br", "circle", "polyline", "line", "path"}


@asynccontextmanager
async def served(**settings: Any) -> AsyncIterator[tuple[Client, Browser]]:
    async with gateway(**{"console_write": True, **settings}) as (_, client, browser):
        await client.create_topic("jobs", retention=3600)
        await client.create_group("jobs", "g")
        yield client, browser


class Checked(HTMLParser):
    """Refuses a page whose elements do not nest, or that could run a user's text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.names: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        for name, value in attrs:
            assert not name.startswith("on"), (tag, name)
            assert name != "style", (tag, value)
            if name in ("href", "src", "action"):
                assert (value or "").startswith(("/console", "#")), (tag, value)
        if tag == "script":
            assert re.fullmatch(r"/console/assets/console\.js\?[0-9a-f]{8}", dict(attrs).get("src") or "")
        if tag not in WITHOUT_END:
            self.open.append(tag)

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["textarea"]:
            assert printable(data) == data, data

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)

    def handle_endtag(self, tag: str) -> None:
        last = self.open.pop()
        assert last == tag, f"{tag} ends within {last}"


def checked(answer: Answer, status: int = 200) -> str:
    """Check a page, and return its text."""
    assert answer.status == status, answer.text
    parser = Checked()
    parser.feed(answer.text)
    assert parser.open == []
    assert "default-src 'self'" in answer.headers["content-security-policy"]
    assert "unsafe" not in answer.headers["content-security-policy"]
    return answer.text


async def post(browser: Browser, path: str, **fields: str) -> Answer:
    """Post a form with the token that a page of the session carries."""
    page = (await browser.get("/console/publish")).text
    token = re.search(r'name="token" value="(\w+)"', page)
    data = urlencode({"token": token[1] if token else "", **fields}).encode()
    return await browser.ask("POST", path, data, content_type="application/x-www-form-urlencoded")


async def die(client: Client, count: int, error: Exception, key: str | None = None) -> None:
    for _ in range(count):
        await client.publish("jobs", b"x", key=key)
    for message in await client.fetch("jobs", "g", max_messages=count, min_messages=count, max_wait=5):
        await message.dead_letter(error)


async def test_the_overview_says_how_the_cluster_is_and_what_each_group_has_to_do() -> None:
    async with served() as (client, browser):
        await client.publish("jobs", b"x")
        text = checked(await browser.get("/console/"))
        assert "Nobody reads g of jobs, where 1 message waits." in text
        assert 'href="/console/group?topic=jobs&amp;group=g"' in text
        assert "quorumq groups backlog" in text


async def test_a_page_of_many_groups_and_kinds_shows_the_first_and_says_how_many_are_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(views, "GROUPS", 2)
    monkeypatch.setattr(views, "KINDS", 1)

    async with served() as (client, browser):
        for topic in ("mails", "notes", "zoo"):
            await client.create_topic(topic)
            await client.create_group(topic, "g")
        text = checked(await browser.get("/console/"))
        assert "2 more groups are not shown." in text
        assert text.count('<th scope="row"') == 2
        text = checked(await browser.get("/console/?topics=z*"))
        assert "zoo" in text
        assert text.count('<th scope="row"') == 1
        await die(client, 2, ValueError("bad"))
        await die(client, 1, KeyError("k"))
        text = checked(await browser.get(DEAD))
        assert text.count('class="kind"') == 1
        assert "3 dead letters of 2 kinds" in text
        assert "1 rarer kind is not shown." in text


async def test_a_group_shows_its_messages_by_state_and_searches_them() -> None:
    async with served() as (client, browser):
        for number in range(3):
            await client.publish("jobs", b'{"n": %d}' % number, key=f"k{number}", headers={"t": "v"})
        await client.fetch("jobs", "g", max_messages=1, max_wait=1)
        text = checked(await browser.get(GROUP))
        assert text.count("<article>") == 2
        assert "&#34;n&#34;: 1" in text
        assert checked(await browser.get(GROUP + "&which=held")).count("<article>") == 1
        text = checked(await browser.get(GROUP + "&which=all&key=K2"))
        assert text.count("<article>") == 1
        assert "Looked at 3 of 3" in text
        assert "quorumq peek jobs --group g --which all --key K2" in commands_of(text)
        assert (await client.backlog("jobs", "g")).held == 1


async def test_dead_letters_are_shown_by_kind_and_a_redrive_goes_on_when_the_page_is_closed() -> None:
    async with served() as (client, browser):
        await die(client, 5, ValueError("bad amount"))
        await die(client, 2, KeyError("k"))
        text = checked(await browser.get(DEAD))
        assert text.index("bad amount") < text.index("KeyError")
        assert "7 dead letters of 2 kinds" in text
        fingerprint = re.findall(r'name="fingerprint" value="(\w+)"', text)[0]
        query = {"topic": "jobs", "group": "g"}
        kind = {**query, "fingerprint": fingerprint, "error_class": "ValueError", "reason": "rejected"}
        text = checked(await post(browser, "/console/redrive", **kind, count="some", limit="3", rate="1"))
        assert "Redrive 3 dead letters of g?" in text, (
            re.findall("<h1>.*", text),
            checked(await browser.get(DEAD))[1500:6000],
        )
        assert (await client.backlog("jobs", "g")).dead == 7, "it only asks"
        answer = await post(
            browser, "/console/redrive", **kind, count="some", limit="3", rate="1", sure="yes"
        )
        assert (answer.status, answer.headers["location"]) == (303, DEAD.replace("&", "&") + "&done=redrive")
        assert "at most 1 a second; under way" in checked(await browser.get(DEAD))
        await trio.sleep(10)
        assert (await client.backlog("jobs", "g")).dead == 4
        assert "3 messages redriven, at most 1 a second; over" in checked(await browser.get(DEAD))
        text = checked(await post(browser, "/console/purge", **query))
        assert "Drop 4 dead letters of g for good?" in text
        answer = await post(browser, "/console/purge", **query, sure="yes")
        assert "4 dead letters dropped." in checked(await browser.get(answer.headers["location"]))


async def test_a_kind_is_redriven_alone_and_its_command_names_no_other() -> None:
    async with served() as (client, browser):
        await die(client, 2, ValueError("bad"))
        for _ in range(3):
            await client.publish("jobs", b"x", ttl=1)
        await trio.sleep(5)
        await client.fetch("jobs", "g")  # the node looks, and they are dead
        await trio.sleep(1)
        for line in commands_of(checked(await browser.get(DEAD))):
            check_command(line)
        kind = {
            "topic": "jobs",
            "group": "g",
            "fingerprint": "expired",
            "error_class": "",
            "reason": "expired",
        }
        text = checked(await post(browser, "/console/redrive", **kind, count="all"))
        assert "Redrive 3 dead letters of g?" in text
        (line,) = commands_of(text)
        check_command(line)
        assert "--fingerprint expired --error-class '' --reason expired" in line
        assert "--all" not in line
        unknown = {**kind, "fingerprint": "", "reason": ""}
        assert "Redrive 0 dead letters" in checked(
            await post(browser, "/console/redrive", **unknown, count="all")
        )
        fields = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', text))
        del fields["token"]
        await post(browser, "/console/redrive", **fields)
        await trio.sleep(1)
        assert [one.reason for one in (await client.count_dead_letters("jobs", "g")).kinds] == ["rejected"]


def commands_of(text: str) -> list[str]:
    """Return the commands that a page shows."""
    lines = re.findall(r'<p class="same">.*?<code>(.*?)</code>', text)
    return [unescape(re.sub(r"</?span>", "", line)) for line in lines]


def check_command(line: str) -> None:
    """Check that the command line takes a command that a page shows."""
    _, *words = shlex.split(line)
    part: Any = quorumq
    context = click.Context(quorumq)
    while isinstance(part, click.Group):
        name, part, words = part.resolve_command(context, words)
        assert part is not None, line
        context = part.make_context(name, list(words), parent=context)
        words = context._protected_args + context.args if isinstance(part, click.Group) else words


async def test_a_user_has_few_redrives_at_once_and_stops_them() -> None:
    async with served() as (client, browser):
        await die(client, 30, ValueError("bad"))
        fields = {"topic": "jobs", "group": "g", "count": "all", "rate": "1", "sure": "yes"}
        for _ in range(4):
            assert (await post(browser, "/console/redrive", **fields)).status == 303
        refused = await post(browser, "/console/redrive", **fields)
        assert "4 redrives of yours run" in checked(refused, 429)
        await trio.sleep(2)
        text = checked(await browser.get(DEAD))
        for number in re.findall(r'name="number" value="(\d+)"', text):
            answer = await post(browser, "/console/stop", topic="jobs", group="g", number=number)
            assert "The redrive stops." in checked(await browser.get(answer.headers["location"]))
        dead = (await client.backlog("jobs", "g")).dead
        await trio.sleep(3)
        text = checked(await browser.get(DEAD))
        assert (text.count("; stopped"), text.count("under way")) == (4, 0)
        assert (await client.backlog("jobs", "g")).dead == dead > 10
        checked(await post(browser, "/console/stop", topic="jobs", group="g", number="99"), 404)


async def test_fields_that_are_no_numbers_or_that_no_message_may_have_are_refused() -> None:
    async with served() as (_, browser):
        fields = {"topic": "jobs", "group": "g", "count": "some"}
        for limit in ("\u00b2", 12 * "0" + "1000001", 5000 * "1", "-1"):
            assert (await post(browser, "/console/redrive", **fields, limit=limit)).status == 400, limit
        for purged in ("\u00b2", 5000 * "1"):
            checked(await browser.get(f"{DEAD}&purged={quote(purged)}"))
        headers = f'{{"n": {2**64}}}'
        refused = await post(browser, "/console/publish", topic="jobs", payload="x", headers=headers)
        assert "64 bits" in checked(refused, 400) or "header" in refused.text


def test_a_payload_is_indented_only_if_that_changes_nothing_of_it() -> None:
    def shown(payload: bytes) -> tuple[str, bool]:
        values = views.contents(Parts(payload))
        return values["payload"], values["cut"]

    assert shown(b'{"a":[1,2.5]}') == ('{\n  "a": [\n    1,\n    2.5\n  ]\n}', False)
    for text in ('{"a":1,"a":2}', "[1e999]", "[1.10]", "[0.1000000000000000055]"):
        assert shown(text.encode()) == (text, False)
    assert shown(3999 * b"x" + b"yz")[1] is True
    assert shown(4000 * b"x" + b"\xff") == (4000 * "x", True), "bytes that are not shown are not all"


async def test_one_message_is_shown_found_by_its_id_alone_redriven_and_published_again_edited() -> None:
    async with served() as (client, browser):
        await die(client, 1, ValueError("bad"), key="k")
        (peek,) = [peek async for peek in client.peek("jobs", "g", "dead")]
        (name,) = peek.ids((await client.topic("jobs")).id)
        text = checked(await browser.get(f"/console/message?id={quote(str(name))}"))
        assert text.count('"State"><span class="tag dead">dead</span>') == 3, "at each replica"
        assert "ValueError" in text
        form = checked(await browser.get(f"/console/publish?topic=jobs&id={quote(str(name))}"))
        assert 'name="key" value="k"' in form
        answer = await post(
            browser,
            "/console/publish",
            topic="jobs",
            key="k2",
            payload="a\r\nb",
            headers='{"n": 1}',
            delay="",
        )
        text = checked(await browser.get(answer.headers["location"]))
        assert "The message is published." in text
        (message,) = await client.fetch("jobs", "g", max_wait=1)
        assert (message.payload, message.key, dict(message.headers)) == (b"a\nb", b"k2", {"n": 1})
        answer = await post(browser, "/console/redrive", topic="jobs", group="g", ids=str(name), count="all")
        assert answer.status == 303
        await trio.sleep(1)
        assert (await client.backlog("jobs", "g")).dead == 0


async def test_a_rewind_is_counted_before_it_is_done() -> None:
    async with served() as (client, browser):
        await client.publish("jobs", b"x")
        await client.ack(await client.fetch("jobs", "g", max_wait=1))
        text = checked(await browser.get("/console/rewind?topic=jobs&group=g&to=earliest"))
        assert "1 message would be delivered: 1 acked." in text
        assert commands_of(text) == ["quorumq groups rewind jobs g --to earliest"]
        answer = await post(browser, "/console/rewind", topic="jobs", group="g", to="earliest", sure="yes")
        assert "The group was rewound." in checked(await browser.get(answer.headers["location"]))
        assert (await client.backlog("jobs", "g")).ready == 1


async def test_a_group_is_limited() -> None:
    async with served() as (client, browser):
        await client.publish("jobs", b"x")
        await client.create_group("jobs", "g")
        for rate, shown in (("2.5", True), ("", False)):
            answer = await post(browser, "/console/limit", topic="jobs", group="g", per_second=rate)
            text = checked(await browser.get(answer.headers["location"]))
            assert ("2.5 a second</span>" in text) is shown
            assert "The limit of the group is set." in text
            overview = checked(await browser.get("/console/"))
            assert ('<span class="tag">2.5 / s</span>' in overview) is shown
        refused = await post(browser, "/console/limit", topic="jobs", group="g", per_second="many")
        assert "many" in refused.text


async def test_a_group_is_paused_and_resumed() -> None:
    async with served() as (client, browser):
        await client.publish("jobs", b"x")
        assert "quorumq groups pause jobs g" in checked(await browser.get(GROUP))
        answer = await post(browser, "/console/pause", topic="jobs", group="g")
        text = checked(await browser.get(answer.headers["location"]))
        assert "The group is paused." in text
        assert "quorumq groups resume jobs g" in text
        assert "Group g of jobs is paused, and 1 message waits." in checked(await browser.get("/console/"))
        assert await client.fetch("jobs", "g") == []
        await post(browser, "/console/resume", topic="jobs", group="g")
        assert len(await client.fetch("jobs", "g", max_wait=1)) == 1


async def test_the_nodes_are_shown_with_their_links_and_one_that_is_down() -> None:
    async with gateway() as (nodes, _, browser):
        await nodes.kill("c")
        text = checked(await browser.get("/console/nodes"))
        assert text.count('class="bad">down<') >= 2
        assert "<h1>c is down." in text
        assert "The cluster works. c is down, the others go on." in checked(await browser.get("/console/"))


async def test_nothing_that_others_wrote_becomes_part_of_a_page() -> None:
    async with served() as (client, browser):
        group = HOSTILE[:60]
        await client.create_group("jobs", group)
        await client.publish("jobs", HOSTILE.encode(), key=HOSTILE, headers={HOSTILE: HOSTILE})
        async with client.consumer("jobs", group, name=HOSTILE[:90], version=HOSTILE[:50]) as consumer:
            (message,) = await consumer.take(1)
            await message.dead_letter(type(HOSTILE[:40], (Exception,), {})(HOSTILE))
        name = str(message.id)
        where = urlencode({"topic": "jobs", "group": group})
        for path in (
            "/console/", f"/console/group?{where}&which=all", f"/console/group?{where}&which=dead",
            f"/console/dead?{where}", f"/console/message?topic=jobs&id={quote(name)}", f"/console/rewind?{where}",
            f"/console/publish?topic=jobs&id={quote(name)}", f"/console/group?{where}&key={quote(HOSTILE)}",
        ):  # fmt: skip
            assert HOSTILE[:20] not in checked(await browser.get(path))
        for path in (f"/console/group?{where}x", f"/console/message?id={quote(HOSTILE)}", f"/console/{quote(HOSTILE)}",
                     f"/console/rewind?{where}&to={quote(HOSTILE)}", "/console/group", "/console/%0A"):  # fmt: skip
            answer = await browser.get(path)
            assert answer.status in (400, 404), path
            checked(answer, answer.status)
        wrong = await post(browser, "/console/publish", topic=HOSTILE, payload="", headers=HOSTILE)
        checked(wrong, 400)


async def test_a_console_that_only_looks_has_no_buttons_and_takes_no_action() -> None:
    async with served(console_write=False) as (client, browser):
        await die(client, 1, ValueError("bad"))
        for path in ("/console/", GROUP, DEAD):
            text = checked(await browser.get(path))
            assert "read-only" in text
            assert 'method="post"' not in text.replace("/console/logout", "")
        answer = await post(browser, "/console/purge", topic="jobs", group="g", sure="yes")
        checked(answer, 403)
        assert (await client.backlog("jobs", "g")).dead == 1


async def test_an_action_needs_the_token_of_the_session_and_a_page_of_this_site() -> None:
    async with served() as (client, browser):
        fields = urlencode({"topic": "jobs", "payload": "x", "token": "0" * 64}).encode()
        checked(await browser.ask("POST", "/console/publish", fields), 403)
        for headers in ({"origin": "http://evil.example"}, {"origin": "null"}, {"host": "evil.example:7480"}):
            for path in ("/console/publish", "/v1/topics/jobs/messages"):
                assert (await browser.ask("POST", path, b'{"payload": ""}', **headers)).status == 403
        assert (await client.backlog("jobs", "g")).ready == 0
        same = await browser.ask("GET", "/console/", **{"origin": "http://127.0.0.1:7480"})
        assert same.status == 200


async def test_a_user_signs_in_by_a_token_and_sees_what_its_rights_allow(tmp_path: Path) -> None:
    token, digest = new_token("alice")
    write_clients(tmp_path / "clients.toml", {"alice": Entry(digest, publish=("jobs",))})
    settings = {"clients_file": str(tmp_path / "clients.toml"), "token": "gateway.x"}

    async with served(**settings) as (_, browser):
        answer = await browser.get("/console/")
        assert (answer.status, answer.headers["location"]) == (303, "/console/login")
        checked(await browser.get("/console/login"))
        wrong = await browser.ask("POST", "/console/login", urlencode({"secret": "alice.x"}).encode())
        assert "No client has this token." in checked(wrong, 401)
        long = await browser.ask("POST", "/console/login", b"secret=" + b"%41" * LONG_BYTES)
        assert f"more than {LONG_BYTES} bytes" in checked(long, 413), "it is not signed in"
        answer = await browser.ask("POST", "/console/login", urlencode({"secret": token}).encode())
        assert answer.status == 303
        assert "HttpOnly" in answer.headers["set-cookie"]
        assert "samesite=strict" in answer.headers["set-cookie"].lower()
        text = checked(await browser.get(GROUP))
        assert "alice" in text
        assert "Rewind" not in text, "it has no right to that"
        for entries in ({"alice": Entry(new_token("alice")[1], publish=("jobs",))}, {"bob": Entry(digest)}):
            write_clients(tmp_path / "clients.toml", entries)
            await trio.sleep(3)
            answer = await browser.get(GROUP)
            assert (answer.status, answer.headers["location"]) == (303, "/console/login"), entries


def test_a_cookie_is_good_at_every_gateway_with_the_keys_and_at_no_other() -> None:
    old, new = b"o" * 32, b"n" * 32
    session = Sessions(lambda: (old,)).begin("al.ice", 1000.0)
    cookie = Sessions(lambda: (old,)).cookie_of(session)
    assert Sessions(lambda: (new, old)).read(cookie, 1001.0) == session
    assert Sessions(lambda: (new,)).read(cookie, 1001.0) is None
    assert Sessions(lambda: (old,)).read(cookie, session.ends + 1.0) is None
    for wrong in ("", ".", "x" * 1000, "é.é", cookie[:-1], "A" + cookie[1:]):
        assert Sessions(lambda: (old,)).read(wrong, 1001.0) is None
    assert Sessions(lambda: (old,), lambda name: "another token").read(cookie, 1001.0) is None


def test_health_is_one_sentence_with_the_worst_first() -> None:
    up = [("a", True), ("b", True), ("c", True)]
    assert health_of(up, {})[:2] == ("good", "All 3 nodes are up, there are no groups yet.")
    assert health_of([*up[:2], ("c", False)], {}).level == "warn"
    assert health_of([("a", True), ("b", False), ("c", False)], {}).level == "bad"
    assert health_of(up, {("jobs", "g"): None}).sentence == (
        "Something is wrong: g of jobs: no replica of a partition answers."
    )
    problems = ["a has a full disk: only deletions are taken there", "b is down: no answer within 3 s"]
    health = health_of(up, {}, (), problems)
    assert (health.level, health.sentence) == ("warn", "The cluster works. b is down.")
    assert health.reasons == (problems[1], problems[0])
    waiting = {
        ("t", name): Backlog(ready, 0, 0, 0, 1.0, ()) for name, ready in (("a", 1), ("b", 9), ("c", 99))
    }
    assert [reason.split(",")[0] for reason in health_of(up, waiting, {("t", "c")}).reasons] == [
        "Nobody reads b of t", "Nobody reads a of t", "Group c of t is paused",
    ]  # fmt: skip
