"""docs/examples: every program does what docs/patterns.md says of it, on trio and in threads.

They run in this process, as `python PROGRAM ADDRESS…` would, and are stopped by SIGTERM.
"""

from __future__ import annotations

import asyncio
import os
import runpy
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import urlopen

import pytest
import sniffio
import trio

from quorumq.client import NotFound
from quorumq.client.blocking import Client, Message, connect
from quorumq.lab.local import LocalCluster
from quorumq.lab.ports import free_ports
from tests.patience import PATIENCE_S, until

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
STYLES = ("trio", "blocking")
COUNT = 20
AGAIN_S = 60.0
"""A program that has not ended by then has missed its signal."""


class Ran(NamedTuple):
    """Output of a program, and the names that it has at its end."""

    lines: list[str]
    names: dict[str, Any]


def on_asyncio(program: str) -> str:
    """Return a program for trio on asyncio, by the rule at the top of docs/patterns.md."""
    program = program.replace("quorumq.client import", "quorumq.client.aio import")
    return program.replace("trio.run(main)", "trio.run(main())").replace("trio", "asyncio")


Done = Callable[[list[str]], bool]
Run = Callable[..., Ran]


@pytest.fixture(scope="module")
def cluster(shared: LocalCluster) -> LocalCluster:
    return shared


@pytest.fixture(scope="module")
def client(cluster: LocalCluster) -> Iterator[Client]:
    with connect(cluster.addresses) as client:
        yield client


@pytest.fixture(params=STYLES)
def run(
    request: pytest.FixtureRequest, cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Run]:
    """Runs a program in a directory of its own, with SIGTERM once ``done(lines printed so far)``."""
    monkeypatch.chdir(tmp_path)
    # Where the program is over already, SIGTERM is a KeyboardInterrupt. A pool takes the place of this handler.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)

    def one(name: str, done: Done | None = None) -> Ran:
        path = EXAMPLES / f"{name}_{request.param}.py"
        if request.param == "asyncio":
            path = tmp_path / path.name
            path.write_text(on_asyncio((EXAMPLES / f"{name}_trio.py").read_text()))
        monkeypatch.setattr(sys, "argv", [str(path), *cluster.addresses])
        ended = threading.Event()
        late = []
        lines: list[str] = []

        def printed(*words: object) -> None:
            lines.append(" ".join(map(str, words)))

        def stop_when_done() -> None:
            assert done is not None
            end = time.monotonic() + PATIENCE_S
            while not done(lines) and not ended.wait(0.05):
                if time.monotonic() > end:
                    late.append(name)
                    break
            while not ended.is_set():
                os.kill(os.getpid(), signal.SIGTERM)
                ended.wait(AGAIN_S)

        watcher = threading.Thread(target=stop_when_done)
        if done is not None:
            watcher.start()
        try:
            names = runpy.run_path(str(path), {"print": printed}, "__main__")
        finally:
            with suppress(KeyboardInterrupt):
                ended.set()
                if done is not None:
                    watcher.join()
        assert not late, f"{path.name} has not done its work within {PATIENCE_S:g} s"
        return Ran(lines, names)

    yield one
    signal.signal(signal.SIGTERM, before)


def is_done(client: Client, topic: str, group: str, dead: int = 0) -> bool:
    """Return True if a group has no message left to settle."""
    try:
        todo = client.backlog(topic, group)
    except NotFound:
        return False
    return (todo.ready, todo.held, todo.delayed, todo.dead) == (0, 0, 0, dead)


def becomes_done(client: Client, topic: str, group: str) -> None:
    until(lambda: is_done(client, topic, group), lambda: client.backlog(topic, group))


def taken(client: Client, topic: str, group: str, count: int) -> list[Message]:
    """``count`` messages, with as many FETCHes as needed."""
    messages: list[Message] = []
    while len(messages) < count:
        more = client.fetch(topic, group, max_messages=count - len(messages), max_wait=PATIENCE_S)
        assert more, f"{len(messages)} of {count} messages have come"
        messages += more
    return messages


def read(client: Client, topic: str, count: int) -> list[str]:
    """Return the messages of a topic for a group of the test, sorted: ``count``, and no other within a moment."""
    messages = taken(client, topic, "test", count)
    messages += client.fetch(topic, "test", max_wait=0.2)
    client.ack(messages)
    return sorted(message.payload.decode() for message in messages)


@pytest.mark.parametrize("run", [*STYLES, "asyncio"], indirect=True)
def test_worker_pool(run: Run, client: Client) -> None:
    client.create_topic("images", backoff=[1.0, 10.0, 60.0])
    client.create_group("images", "resizers")
    client.producer("images").publish_many(b"%d.png" % number for number in range(COUNT))
    *lines, last = run("worker_pool", lambda lines: len(lines) == COUNT).lines
    assert sorted(lines) == sorted(f"resized {number}.png" for number in range(COUNT))
    assert last == f"stopped: {COUNT} done, 0 given up"
    becomes_done(client, "images", "resizers")


def test_fan_out(run: Run, client: Client) -> None:
    client.create_topic("orders")
    client.create_group("orders", "billing")
    client.create_group("orders", "packing")
    client.producer("orders").publish_many(b"%d" % number for number in range(COUNT))
    lines = run("fan_out", lambda lines: len(lines) == 2 * COUNT).lines
    assert sorted(lines) == sorted(
        f"{verb} {number}" for verb in ("billed", "packed") for number in range(COUNT)
    )
    becomes_done(client, "orders", "billing")
    becomes_done(client, "orders", "packing")


def test_delayed_job(run: Run, client: Client) -> None:
    began = time.monotonic()
    lines = run("delayed_job", lambda lines: len(lines) == 2).lines
    assert sorted(lines) == ["time for the oven", "time for the tea"]  # a slow machine finds both due
    assert time.monotonic() - began > 1.0
    becomes_done(client, "reminders", "bells")


def test_retry_with_backoff(run: Run, client: Client) -> None:
    client.create_topic("calls", backoff=[0.2, 10.0, 60.0])
    client.create_group("calls", "callers")
    client.publish("calls", b"555-0100")
    client.publish("calls", b"nobody")
    began = time.monotonic()
    lines = run(
        "retry_with_backoff", lambda lines: lines and is_done(client, "calls", "callers", dead=1)
    ).lines
    assert lines == ["reached 555-0100 at attempt 3"]
    assert time.monotonic() - began > 0.5, "0.2 s of backoff and then the 0.3 s that it asked for"
    (item,) = client.peek("calls", "callers", "dead", complete=True)
    death = item.peeked.record.death
    assert death is not None
    assert (death.error_class, death.message, death.attempts) == ("ValueError", "nobody is no number", 1)
    client.purge("calls", "callers!dead")


def test_outbox(run: Run, client: Client) -> None:
    run("outbox")
    assert read(client, "sales", 2) == ["sold: a chair", "sold: a lamp"]
    with closing(sqlite3.connect("shop.db")) as db, db:
        assert db.execute("SELECT count(*) FROM sales").fetchone() == (2,)
        assert db.execute("SELECT count(*) FROM outbox").fetchone() == (0,)
        # As it is after a crash between publishing and deleting, and after a sale that was not relayed.
        db.execute("INSERT INTO outbox (payload) VALUES ('left over')")
    run("outbox")
    assert read(client, "sales", 3) == ["left over", "sold: a chair", "sold: a lamp"]


def test_effect_in_sql(run: Run, client: Client) -> None:
    client.create_topic("deposits")
    client.create_group("deposits", "bookkeepers")
    client.publish("deposits", b"10")
    names = run("effect_in_sql", lambda lines: is_done(client, "deposits", "bookkeepers")).names
    client.publish("deposits", b"20")
    message = fetched(client, "deposits", "bookkeepers")
    names["book"](message)
    assert balance() == 30
    message.reject(0.0)  # as if its worker had died before the ack
    run("effect_in_sql", lambda lines: is_done(client, "deposits", "bookkeepers"))
    assert balance() == 30


def test_consume_process_publish(run: Run, client: Client) -> None:
    client.create_topic("uploads")
    client.create_topic("thumbnails", partitions=4)
    client.create_group("uploads", "shrinkers")
    client.publish("uploads", b"cat.png")
    message = fetched(client, "uploads", "shrinkers")
    client.publish("thumbnails", b"small cat.png", derived_from=message)
    message.reject(0.0)  # as if its worker had died here
    client.publish("uploads", b"dog.png")
    run("consume_process_publish", lambda lines: is_done(client, "uploads", "shrinkers"))
    assert read(client, "thumbnails", 4) == [
        "large cat.png", "large dog.png", "small cat.png", "small dog.png"
    ]  # fmt: skip


def test_redrive_slowly(run: Run, client: Client) -> None:
    with pytest.raises(SystemExit, match=r"nothing to redrive: .*topic 'mails'"):
        run("redrive_slowly")
    client.create_topic("mails")
    client.create_group("mails", "senders")
    client.producer("mails").publish_many(b"%d" % number for number in range(5))
    messages = taken(client, "mails", "senders", 5)
    client.dead_letter(messages[:4], TimeoutError("no answer"))
    client.dead_letter(messages[4:], ValueError("no address"))
    began = time.monotonic()
    assert run("redrive_slowly").lines == ["redriven: 4"]
    assert time.monotonic() - began > 0.4
    (peek,) = client.peek("mails", "senders", "dead", complete=True)
    assert peek.peeked.record.death is not None
    assert peek.peeked.record.death.error_class == "ValueError"
    again = taken(client, "mails", "senders", 4)
    assert sorted(message.payload for message in again) == [b"0", b"1", b"2", b"3"]
    client.ack(again)
    client.delete_topic("mails")


def fetched(client: Client, topic: str, group: str) -> Message:
    (message,) = taken(client, topic, group, 1)
    return message


def balance() -> int:
    with closing(sqlite3.connect("bank.db")) as db:
        (amount,) = db.execute("SELECT balance FROM account").fetchone()
    return int(amount)


# ------------------------------------------------------------------------------ a web service


def web_service(name: str, cluster: LocalCluster, lines: list[str], **scope: str) -> dict[str, Any]:
    """The names of docs/examples/web_service/``name``, which prints into ``lines``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QUORUMQ_NODES", ",".join(cluster.addresses))
        for variable, value in scope.items():
            patch.setenv(variable, value)
        printing = {"print": lambda *words: lines.append(" ".join(map(str, words)))}
        return runpy.run_path(str(EXAMPLES / "web_service" / f"{name}.py"), printing, "web_service")


@pytest.mark.parametrize("name", ["on_asyncio", "on_trio"])
def test_an_asgi_service_stores_what_it_takes_and_ends_its_pool_by_the_lifespan(
    name: str, cluster: LocalCluster, client: Client
) -> None:
    """The server calls it: a lifespan, requests beside it, and SIGTERM."""
    lines: list[str] = []
    app = web_service(name, cluster, lines)["app"]
    served: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: served.append(number))
    try:
        if name == "on_trio":
            trio.run(serve, app, lines)
        else:
            asyncio.run(serve(app, lines))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert served == [signal.SIGTERM], "the pool took the server's signal"
    *done, last = lines
    assert sorted(done) == sorted(f"resized {number}.png" for number in range(COUNT))
    assert last == f"stopped: {COUNT} done, 0 given up"
    becomes_done(client, "photos", "resizers")


async def serve(app: Any, lines: list[str]) -> None:
    """Run ``app`` as a server of either kind does."""
    sent: list[dict[str, Any]] = []
    sleep = asyncio.sleep if sniffio.current_async_library() == "asyncio" else trio.sleep
    messages = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]

    async def send(event: dict[str, Any]) -> None:
        sent.append(event)

    async def receive() -> dict[str, Any]:
        if len(messages) == 1:
            await requests()
        return messages.pop(0)

    async def requests() -> None:
        for number in range(COUNT):
            parts = [{"body": b"%d." % number, "more_body": True}, {"body": b"png"}]

            async def body(parts: list[dict[str, Any]] = parts) -> dict[str, Any]:
                return parts.pop(0)

            await app({"type": "http"}, body, send)
        os.kill(os.getpid(), signal.SIGTERM)
        end = time.monotonic() + PATIENCE_S
        while len(lines) < COUNT:
            assert time.monotonic() < end, lines
            await sleep(0.05)

    await app({"type": "lifespan"}, receive, send)
    events = [event["type"] for event in sent]
    assert (events[0], events[-1]) == ("lifespan.startup.complete", "lifespan.shutdown.complete")
    assert {event["status"] for event in sent if "status" in event} == {202}


def test_a_service_in_threads_ends_with_its_server(cluster: LocalCluster, client: Client) -> None:
    lines: list[str] = []
    (port,) = free_ports(1)
    main = web_service("in_threads", cluster, lines, PORT=str(port))["main"]
    before = signal.getsignal(signal.SIGTERM)

    def ask() -> None:
        end = time.monotonic() + PATIENCE_S
        for number in range(COUNT):
            while time.monotonic() < end:
                with suppress(OSError):
                    urlopen(f"http://127.0.0.1:{port}", b"%d.png" % number, timeout=PATIENCE_S).close()
                    break
                time.sleep(0.05)  # it does not answer yet
        while len(lines) < COUNT and time.monotonic() < end:
            time.sleep(0.05)  # no `until`: the signal ends the service, also when patience is over
        os.kill(os.getpid(), signal.SIGTERM)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        with pytest.raises(SystemExit):
            main()
    finally:
        asking.join()
        signal.signal(signal.SIGTERM, before)
    *done, last = lines
    assert sorted(done) == sorted(f"resized {number}.png" for number in range(COUNT))
    assert last == f"stopped: {COUNT} done, 0 given up"
    becomes_done(client, "photos", "resizers")
