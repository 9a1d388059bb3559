"""The application under ``/console``: finds the session, the page or the action, and renders templates."""

from __future__ import annotations

import json
import logging
import time
import zlib
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from importlib import resources
from typing import Any, Final
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import Receive, Scope, Send

from quorumq.client import Client, QuorumqError
from quorumq.client.admin.selection import Selection
from quorumq.core.values.errors import NotFound, Unauthorized, UsageError
from quorumq.core.values.printable import plural, printable
from quorumq.gateway.console import views
from quorumq.gateway.console.health import ago, short
from quorumq.gateway.console.redrives import RATE_MAX, Redrive, Redrives
from quorumq.gateway.console.session import COOKIE, SESSION_S, Session, Sessions
from quorumq.gateway.console.views import command
from quorumq.gateway.gateway import Gateway
from quorumq.gateway.identity import User
from quorumq.gateway.jsonapi.operations import beginning_of
from quorumq.gateway.jsonapi.problems import problem_of
from quorumq.gateway.requests import LONG_BYTES, Left, form_fields, length_of, owner_of
from quorumq.gateway.shares import finish
from quorumq.wire.rights import EVERYTHING

ROOT: Final = "/console"
FORM_BYTES_MAX: Final = 3 * 1024 * 1024
FIELDS_MAX: Final = 50
HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'self'; base-uri 'none'; object-src 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
ASSETS: Final = {"console.css": "text/css", "console.js": "text/javascript", "icon.svg": "image/svg+xml"}
SHOWN_VALUES: Final = {
    "uptime_s": "runs for",
    "incarnation": "starts so far",
    "disk_free": "free on disk",
    "journal_bytes": "journal",
    "rss": "memory",
    "fsync_ms": "fsync, p99",
    "hold_reply_p99_ms": "answer to a hold, p99",
    "connections": "connections",
    "requests": "requests under way",
}
"""Values of a node's status that its card shows, with their names there."""

log = logging.getLogger("quorumq.gateway")


def when(ms: int) -> str:
    """Return a time of day in milliseconds since 1970 as people read it, in UTC, and how long ago that is."""
    try:
        text = datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return "at an impossible time"
    seconds = time.time() - ms / 1000
    return f"{text} UTC ({ago(seconds)} ago)" if seconds >= 0 else f"{text} UTC"


def url(page: str, **query: Any) -> str:
    """Return the address of a page; names go into the query, as they may have any characters."""
    given = {name: value for name, value in query.items() if value not in (None, "")}
    return f"{ROOT}/{page}" + (f"?{urlencode(given)}" if given else "")


def selected(status: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the values of a node that its card shows."""
    rows = []
    for name, label in SHOWN_VALUES.items():
        value = status.get(name)
        if name == "fsync_ms" and isinstance(value, dict):
            value = value.get("p99")
        if value is None:
            continue
        if name == "uptime_s":
            text = ago(value)
        elif name in ("disk_free", "journal_bytes", "rss"):
            text = f"{value / 1024**3:,.1f} GiB" if value >= 10 * 1024**3 else f"{value / 1024**2:,.0f} MiB"
        elif name in ("fsync_ms", "hold_reply_p99_ms"):
            text = f"{value:.3g} ms" if value < 999.5 else f"{value / 1000:.3g} s"
        else:
            text = f"{value:,}" if isinstance(value, int) else str(value)
        rows.append((label, text))
    return rows


def sentence(text: str) -> str:
    """Return a text that begins with a capital and ends with a full stop; "" as it is."""
    return text[:1].upper() + text[1:] + "." * (text != "" and text[-1] not in ".!?")


def is_number(text: str) -> bool:
    """Return True if a text is a number of at most 15 digits."""
    return len(text) <= 15 and text.isascii() and text.isdigit()


class Raw(str):
    """Text for the value of a form's field, without escapes: the browser has to send it back unchanged."""

    __slots__ = ()


def visible(value: Any) -> Any:
    """Return a value of a template with escapes for characters that cannot be seen; it is escaped for HTML later."""
    return printable(value) if type(value) is str else value


class Page:
    """One request of a browser: its session, user, and the fields of its query or form."""

    def __init__(self, console: ConsoleApp, session: Session, user: User, fields: dict[str, str]) -> None:
        self.console = console
        self.session = session
        self.user = user
        self.fields = fields
        self.client: Client

    def get(self, name: str, other: str = "") -> str:
        return self.fields.get(name, other)

    @property
    def topic_and_group(self) -> tuple[str, str]:
        if not self.get("topic") or not self.get("group"):
            raise UsageError("the address names no topic and group: follow a link to them")
        return self.get("topic"), self.get("group")

    def number(self, name: str, most: int) -> int | None:
        """Return a field that is a number from 1 to ``most``; None if it is empty."""
        text = self.get(name)
        if not text:
            return None
        if not is_number(text) or not 1 <= int(text) <= most:
            raise UsageError(f"{name} is {text[:20]!r}: give a number from 1 to {most:,}")
        return int(text)

    def render(self, template: str, status: int = 200, **values: Any) -> Response:
        console = self.console
        may = console.gateway.identities.may
        topic, group = self.get("topic"), self.get("group")
        shared = {
            "root": ROOT, "url": url, "here": "", "notice": "",
            "clock": f"{datetime.now(UTC):%H:%M:%S} UTC", "write": console.write, "user": self.user.name,
            "token": console.sessions.form_token(self.session), "topic": topic, "group": group,
            "may_admin": console.write and bool(topic) and may(self.user, "admin", topic),
            "may_publish": console.write and (not topic or may(self.user, "publish", topic)),
        }  # fmt: skip
        text = console.templates.get_template(template).render({**shared, **values})
        return HTMLResponse(text, status, headers={"Cache-Control": "no-store"})


class ConsoleApp:
    """The console."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.write = gateway.settings.console_write
        self.sessions = Sessions(gateway.identities.keys, gateway.identities.token_hash_of)
        self.redrives = Redrives(gateway)
        loader = PackageLoader("quorumq.gateway.console", "pages")
        self.templates = Environment(
            loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
        )
        self.templates.filters.update(when=when, ago=ago, raw=Raw, selected=selected, short=short)
        self.templates.finalize = visible
        folder = resources.files("quorumq.gateway.console") / "assets"
        self.assets = {name: (folder / name).read_bytes() for name in ASSETS}
        # Part of their addresses: after an upgrade a browser takes no old style for a new page.
        self.templates.globals["assets"] = f"{zlib.crc32(b''.join(self.assets.values())):08x}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            response = await self.answer(request)
        except Left:
            return
        response.headers.update(HEADERS)
        await response(scope, receive, send)

    async def answer(self, request: Request) -> Response:
        path = request.scope["path"].removeprefix(ROOT).strip("/")
        name = path.removeprefix("assets/")
        if name != path and name in self.assets:
            headers = {"Cache-Control": "max-age=300"}
            return Response(self.assets[name], media_type=ASSETS[name], headers=headers)
        session = self.sessions.read(request.cookies.get(COOKIE, ""), time.time())
        is_open = self.gateway.identities.is_open
        fresh = session is None and is_open
        if session is None:
            session = self.sessions.begin("", time.time())
        page = Page(self, session, User(session.name), {})
        try:
            owner = owner_of(request.scope, session.name)
            most = FORM_BYTES_MAX if is_open or session.name else LONG_BYTES
            length = length_of(request.scope["headers"])
            async with self.gateway.bodies.read(request.receive, owner, most, length=length) as body:
                page.fields = await self.fields_of(request, body)
                response = await self.find(
                    page, request.method, path, signed_in=is_open or bool(session.name)
                )
        except QuorumqError as error:
            response = self.refused(page, error)
        except Left:
            raise
        except Exception:
            log.exception("%s %s", request.method, request.scope["path"])
            response = self.refused(page, QuorumqError("the gateway failed: its log has the cause"))
        if fresh:
            self.set_cookie(response, session, request)
        return response

    async def fields_of(self, request: Request, body: bytearray) -> dict[str, str]:
        """Return the fields of the query, or those of a form that was posted."""
        text = request.url.query if request.method in ("GET", "HEAD") else body.decode("latin-1")
        fields = form_fields(text, FIELDS_MAX, errors="replace")
        try:
            return dict(await finish(fields))
        except ValueError as error:
            raise UsageError(f"the form cannot be read: {error}") from None

    async def find(self, page: Page, method: str, path: str, *, signed_in: bool) -> Response:
        """Return the page, or carry out the action, of a path."""
        if path == "login":
            return self.sign_in(page, method)
        if not signed_in:
            return (
                RedirectResponse(f"{ROOT}/login", 303)
                if method == "GET"
                else page.render("login.html", 401, problem="")
            )
        if method == "POST":
            if not self.sessions.is_form_token(page.session, page.get("token")):
                raise Unauthorized("the form is of another session: load the page again")
            if path == "logout":
                gone = RedirectResponse(f"{ROOT}/login", 303)
                gone.delete_cookie(COOKIE, path=ROOT)
                return gone
            if not self.write:
                raise Unauthorized(
                    "this console only looks: `quorumq gateway --console-write` starts one that acts"
                )
        handler = (PAGES if method in ("GET", "HEAD") else ACTIONS if method == "POST" else {}).get(path)
        if handler is None:
            raise NotFound("the console has no such page")
        async with self.gateway.client(page.user) as page.client:
            return await handler(page)

    def sign_in(self, page: Page, method: str) -> Response:
        if self.gateway.identities.is_open:
            return RedirectResponse(f"{ROOT}/", 303)
        if method != "POST":
            return page.render("login.html", problem="")
        try:
            user = self.gateway.identities.by_token(page.get("secret").strip())
        except Unauthorized:
            return page.render("login.html", 401, problem="No client has this token.")
        response = RedirectResponse(f"{ROOT}/", 303)
        self.set_cookie(response, self.sessions.begin(user.name, time.time()), None)
        return response

    def set_cookie(self, response: Response, session: Session, request: Request | None) -> None:
        """Have the browser keep a session."""
        secure = bool(self.gateway.settings.tls_cert) or self.gateway.settings.public_url.startswith("https:")
        response.set_cookie(
            COOKIE, self.sessions.cookie_of(session), max_age=SESSION_S, path=ROOT, secure=secure, httponly=True,
            samesite="strict",
        )  # fmt: skip

    def refused(self, page: Page, error: QuorumqError) -> Response:
        problem = problem_of(error)
        return page.render(
            "error.html",
            problem.status,
            title=problem.title,
            detail=printable(sentence(problem.detail)),
            remedy=sentence(problem.remedy),
        )


# ------------------------------------------------------------------------------------------ pages


async def overview(page: Page) -> Response:
    return page.render(
        "overview.html",
        here="overview",
        **await views.overview(
            page.client,
            page.get("topics").strip()[:200],
            ask_nodes=page.console.gateway.identities.may(page.user, "admin", EVERYTHING),
        ),
    )


async def group(page: Page) -> Response:
    topic, name = page.topic_and_group
    fields: dict[str, Any] = {field: page.get(field)[:200] for field in ("key", "header", "text")}
    which = page.get("which", "ready")
    which = which if which in views.STATES else "ready"
    values = await views.group(page.client, topic, name, which, **fields)
    return page.render("group.html", which=which, notice=notice_of(page), **fields, **values)


async def dead(page: Page) -> Response:
    topic, name = page.topic_and_group
    running = page.console.redrives.of(page.user, topic, name)
    values = await views.dead(page.client, topic, name)
    return page.render("dead.html", running=running, notice=notice_of(page), **values)


async def message(page: Page) -> Response:
    name = page.get("id").strip()
    topic = page.get("topic")
    if not topic:  # the id has the topic's id, not its name
        known = await page.client.metadata()
        topic = next((one.name for one in known.topics if one.id.hex() == name.partition("/")[0]), "")
        if not topic:
            raise NotFound(f"{name[:100]!r} is no id of a message of a topic that you may see")
        page.fields["topic"] = topic
    values = await views.message(page.client, topic, name)
    redrives = {
        name: command(
            "deadletters", "redrive", topic, group=name.removesuffix("!dead"), id=str(values["life"].id)
        )
        for name, _ in values["groups"]
    }
    return page.render(
        "message.html", body_parts=values.pop("body"), notice=notice_of(page), redrives=redrives, **values
    )


async def nodes(page: Page) -> Response:
    return page.render("nodes.html", here="nodes", **await views.nodes(page.client))


async def publish_form(page: Page) -> Response:
    values = await views.publish(page.client, page.get("topic"), page.get("id"))
    return page.render("publish.html", here="publish", **values)


async def rewind_form(page: Page) -> Response:
    topic, name = page.topic_and_group
    to = page.get("to", "earliest")
    count = await page.client.count_rewind(topic, name, beginning_of(to))
    states = ", ".join(f"{number:,} {state}" for state, number in sorted(count.states.items()))
    least = "" if count.complete else "At least "
    return page.render(
        "confirm.html",
        question=f"Rewind {name} of {topic} to {to}?",
        details=[
            f"{least}{plural(count.messages, 'message')} would be delivered{': ' if states else ''}{states}.",
            "Messages in hand cannot be acked any more, and come again.",
        ],
        action=f"{ROOT}/rewind",
        fields={"to": to},
        button=f"Rewind {name}",
        back=url("group", topic=topic, group=name),
        command=command("groups", "rewind", topic, name, to=to),
    )


NOTICES: Final = {
    "rewound": "The group was rewound.",
    "paused": "The group is paused. Consumers go on with the messages in hand.",
    "resumed": "The group goes on.",
    "limited": "The limit of the group is set.",
    "published": "The message is published.",
    "stopped": "The redrive stops. What it has redriven stays so.",
    "redrive": "The redrive has begun. It goes on when this page is closed.",
}


def notice_of(page: Page) -> str:
    """Return the result of the action that led to this page: one of a few texts, or a number."""
    purged = page.get("purged")
    if is_number(purged):
        return f"{plural(int(purged), 'dead letter')} dropped."
    return NOTICES.get(page.get("done"), "")


# ---------------------------------------------------------------------------------------- actions


async def publish(page: Page) -> Response:
    text = page.get("headers").strip()
    try:
        headers = json.loads(text) if text else {}
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the headers are no JSON: {error}") from None
    plain = (str, int, float, bool, type(None))
    if not isinstance(headers, dict) or not all(isinstance(value, plain) for value in headers.values()):
        raise UsageError("the headers are no JSON object of texts, numbers and true or false")
    try:
        delay = float(page.get("delay") or 0)
    except ValueError:
        raise UsageError(f"the delay is {page.get('delay')[:20]!r}: give seconds") from None
    payload = page.get("payload").replace("\r\n", "\n").encode("utf-8", "surrogatepass")
    topic = page.get("topic")
    try:
        name = await page.client.publish(
            topic, payload, key=page.get("key") or None, headers=headers, delay=delay or None
        )
    except (TypeError, ValueError) as error:  # a header that no message may have
        raise UsageError(str(error)) from None
    return RedirectResponse(url("message", topic=topic, id=name, done="published"), 303)


async def rewind(page: Page) -> Response:
    topic, name = page.topic_and_group
    await page.client.rewind(topic, name, beginning_of(page.get("to")))
    return RedirectResponse(url("group", topic=topic, group=name, done="rewound"), 303)


async def pause(page: Page) -> Response:
    topic, name = page.topic_and_group
    await page.client.pause_group(topic, name)
    return RedirectResponse(url("group", topic=topic, group=name, done="paused"), 303)


async def limit(page: Page) -> Response:
    topic, name = page.topic_and_group
    text = page.get("per_second").strip()
    try:
        rate = float(text) if text else None
    except ValueError:
        raise UsageError(
            f"the limit is {text[:20]!r}: give a number of messages, or nothing for no limit"
        ) from None
    await page.client.limit_group(topic, name, rate)
    return RedirectResponse(url("group", topic=topic, group=name, done="limited"), 303)


async def resume(page: Page) -> Response:
    topic, name = page.topic_and_group
    await page.client.resume_group(topic, name)
    return RedirectResponse(url("group", topic=topic, group=name, done="resumed"), 303)


async def redrive(page: Page) -> Response:
    topic, name = page.topic_and_group
    try:
        ids = tuple(views.ids_of(page.get("ids"))) or None
    except ValueError as error:
        raise UsageError(str(error)) from None
    limit = None if page.get("count") == "all" else page.number("limit", 1_000_000) or 1
    rate = page.number("rate", RATE_MAX) or 100
    kind: dict[str, Any] = {
        field: page.get(field) for field in ("fingerprint", "error_class", "reason") if field in page.fields
    }
    selection = Selection(topic, name, ids=ids, **kind)
    back = url("dead", topic=topic, group=name)
    if page.get("sure") != "yes" and ids is None:
        counts = await page.client.count_dead_letters(topic, name)
        number = sum(
            one.messages
            for one in counts.kinds
            if selection.fits(one.fingerprint, one.error_class, one.reason)
        )
        count = min(number, limit) if limit is not None else number
        return page.render(
            "confirm.html",
            question=f"Redrive {plural(count, 'dead letter')} of {name}?",
            details=[
                f"They come to {name} again with fresh attempts, at most {rate} a second.",
                "It goes on when you close the page, as long as this gateway runs. Begun again, it does the rest.",
            ],
            action=f"{ROOT}/redrive",
            fields={**kind, "count": page.get("count"), "limit": str(limit or ""), "rate": str(rate)},
            button=f"Redrive {count:,}",
            back=back,
            command=command(
                "deadletters", "redrive", topic, group=name, **kind, limit=limit, rate=rate,
                all=limit is None and not kind,
            ),
        )  # fmt: skip
    page.console.redrives.begin(Redrive(page.user, selection, limit, float(rate)))
    return RedirectResponse(url("dead", topic=topic, group=name, done="redrive"), 303)


async def stop(page: Page) -> Response:
    topic, name = page.topic_and_group
    page.console.redrives.stop(page.user, page.number("number", 10**9) or 0)
    return RedirectResponse(url("dead", topic=topic, group=name, done="stopped"), 303)


async def purge(page: Page) -> Response:
    topic, name = page.topic_and_group
    if page.get("sure") != "yes":
        backlog = await page.client.backlog(topic, name)
        return page.render(
            "confirm.html",
            question=f"Drop {plural(backlog.dead, 'dead letter')} of {name} for good?",
            details=[
                f"Group {name} of topic {topic} never gets these messages again. Other groups keep theirs."
            ],
            action=f"{ROOT}/purge",
            fields={},
            button=f"Drop {backlog.dead:,} for good",
            back=url("dead", topic=topic, group=name),
            command=command("deadletters", "purge", topic, group=name),
        )
    purged = await page.client.purge(topic, f"{name.removesuffix('!dead')}!dead")
    return RedirectResponse(url("dead", topic=topic, group=name, purged=str(purged)), 303)


Handler = Callable[[Page], Awaitable[Response]]
PAGES: Final[dict[str, Handler]] = {
    "": overview,
    "group": group,
    "dead": dead,
    "message": message,
    "nodes": nodes,
    "publish": publish_form,
    "rewind": rewind_form,
}
ACTIONS: Final[dict[str, Handler]] = {
    "publish": publish,
    "rewind": rewind,
    "redrive": redrive,
    "purge": purge,
    "pause": pause,
    "limit": limit,
    "resume": resume,
    "stop": stop,
}
