"""docs/client.md: every example runs, and every default it names is the code's."""

from __future__ import annotations

import asyncio
import inspect
import pydoc
import re
import textwrap
from pathlib import Path
from typing import Any, Unpack, get_type_hints

import pytest
import trio

import quorumq.client
from quorumq.client import (
    Client,
    Consumer,
    ConsumerOptions,
    Message,
    Producer,
    ProducerOptions,
    aio,
    blocking,
    connect,
)
from quorumq.core.values.limits import MIB
from tests.client.fake import FakeCluster, fake_cluster
from tests.client.steps import in_a_loop, in_a_thread, publish

PAGE = (Path(__file__).parents[2] / "docs" / "client.md").read_text()
SNIPPETS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
ASYNCIO = [snippet for snippet in SNIPPETS if "quorumq.client.aio" in snippet]
BLOCKING = [snippet for snippet in SNIPPETS if "quorumq.client.blocking" in snippet]
OPTIONS: dict[Any, Any] = {Client.producer: ProducerOptions, Client.consumer: ConsumerOptions}
PORTS = {"127.0.0.1:7401": "a:1", "127.0.0.1:7402": "b:1", "127.0.0.1:7403": "c:1"}


def title(snippet: str) -> str:
    return snippet.strip().splitlines()[-1].strip()[:40]


async def resize(message: Message) -> None:
    """The handler of a section's first example, in its others."""


@pytest.mark.parametrize("snippet", [it for it in SNIPPETS if it not in (*ASYNCIO, *BLOCKING)], ids=title)
async def test_the_example_runs(snippet: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with fake_cluster(hold_time_max=5.0) as cluster:  # as `quorumq demo` has it
        monkeypatch.setattr("quorumq.client.client.dial_tcp", dialling(cluster))
        async with connect("127.0.0.1:7401") as client:
            await client.create_topic("jobs")
            await publish(client, 20)
            scope: dict[str, Any] = {
                "trio": trio, "client": client, "directory": tmp_path, "process": lambda payload: None,
                "resize": resize, "__name__": "x",
            }  # fmt: skip
            with trio.fail_after(60.0):
                if "async def main" in snippet:
                    exec(compile(snippet, "docs/client.md", "exec"), scope)
                    await scope["main"]()
                else:
                    body = "async def snippet():\n" + textwrap.indent(snippet, "    ")
                    exec(compile(body, "docs/client.md", "exec"), scope)
                    await scope["snippet"]()


@pytest.mark.parametrize("snippet", BLOCKING, ids=title)
def test_the_example_without_trio_runs(snippet: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In real time: the cluster is in the client's own thread."""
    monkeypatch.setattr("quorumq.client.blocking.connect", lambda addresses: in_a_thread())
    exec(compile(snippet, "docs/client.md", "exec"), {"__name__": "x"})


@pytest.mark.parametrize("snippet", ASYNCIO, ids=title)
def test_the_example_on_asyncio_runs(snippet: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quorumq.client.aio.connect", lambda addresses: in_a_loop())
    scope: dict[str, Any] = {"__name__": "x"}
    exec(compile(snippet, "docs/client.md", "exec"), scope)
    asyncio.run(scope["main"]())


def dialling(cluster: FakeCluster) -> Any:
    async def dial(address: str) -> trio.abc.Stream:
        return await cluster.dial(PORTS.get(address, address))

    return dial


def test_the_tables_name_every_option() -> None:
    for method in (Client.producer, Client.consumer, Client.work):
        for name in arguments_of(method):
            assert f"`{name}`" in PAGE, f"docs/client.md does not name {name} of {method.__name__}"


def arguments_of(method: Any) -> list[str]:
    names = list(inspect.signature(method).parameters)[1:]
    return [*names[:-1], *get_type_hints(OPTIONS[method])] if method in OPTIONS else names


@pytest.mark.parametrize("front", [quorumq.client, blocking, aio], ids=lambda front: front.__name__)
@pytest.mark.parametrize(
    ("name", "kind", "options"),
    [("producer", Producer, ProducerOptions), ("consumer", Consumer, ConsumerOptions)],
)
def test_factories_of_producers_and_consumers_name_every_argument(
    front: Any, name: str, kind: Any, options: Any
) -> None:
    """To type checkers and editors by its annotations, to people by `help`; and they match the class."""
    method = getattr(front.Client, name)
    assert get_type_hints(method)["options"] == Unpack[options]
    assert not hasattr(method, "__signature__"), "it is made when the program runs: editors do not see it"
    takes = inspect.signature(kind.__init__).parameters
    hints = get_type_hints(kind.__init__)
    optional = {name: hints[name] for name, one in takes.items() if one.kind is one.KEYWORD_ONLY}
    assert get_type_hints(options) == optional
    required = [name for name, one in takes.items() if one.kind is one.POSITIONAL_OR_KEYWORD]
    assert list(inspect.signature(method).parameters) == ["self", *required[2:], "options"]
    text = pydoc.render_doc(method)
    assert all(re.search(rf"^ +(\w+, )*{one}(, \w+)*: ", text, re.MULTILINE) for one in optional), text


def test_omitted_arguments_have_the_documented_defaults() -> None:
    for method, kind in ((Client.producer, Producer), (Client.consumer, Consumer)):
        text = " ".join((inspect.getdoc(method) or "").split())
        for name, one in inspect.signature(kind.__init__).parameters.items():
            if isinstance(one.default, int | float) and not isinstance(one.default, bool):
                mib = f"{one.default / MIB:g} MiB"
                number = mib if name.endswith("_bytes") else f"{one.default:g}"
                assert re.search(rf"{name}: (?:(?! \w+: ).)*{number} if not given", text), name


def test_every_exported_name_exists() -> None:
    assert all(hasattr(quorumq.client, name) for name in quorumq.client.__all__)
