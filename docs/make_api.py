"""Write docs/api.md, the reference of `quorumq.client`, from its docstrings: `python docs/make_api.py`.

A test compares the page with what this would write.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, is_typeddict

import quorumq.client as client

PAGE = Path(__file__).parent / "api.md"
HEAD = """# API reference

What `quorumq.client` exports, from its docstrings (`python docs/make_api.py` writes this page).
[client.md](client.md) is the guide. `quorumq.client.blocking` has the same names without `async` and `await`.

An argument whose default is None may be None. Arguments without an explanation: `topic` and `group` are names; dead
letters are those of group "g!dead" or topic "t.deadletters". `timeout` is in seconds, for the call or for each of its
requests; None stands for the client's, and for 3 s at most in calls that ask each node. Changes of topics, groups and
nodes return the value as a majority has it.

Errors without an explanation: `NotFound` if there is no such topic, group, partition or node, `UsageError` for a value
that cannot be, `TooFewReplicas` if no node answered or too few did. A change raises `NotStored` (nothing was done) or
`OutcomeUnknown` then; repeat it. A call that is like another one raises the same errors. [client.md](client.md#errors)
has the remedies.
"""
ITEM = re.compile(r"^    (\w+(?:, \w+)*): ")
USUAL = re.compile(
    r"Returns:\n    the (?:group|layout of the cluster|topic with)\b.*majority.*\n\n?"
    r"| {4}(?:timeout: seconds for each node; if None the client's, and at most 3, as one may be down"
    r'|topic, group: name of the topic and of its group; "g!dead" and "t\.deadletters" mean the same'
    r"|NotFound: (?:no such [\w ,]+|no such topic, or the group was deleted)"
    r"|UsageError: (?:a (?:value|time|number) that cannot be"
    r"|an id is of another topic|a name or \w+ \w+ that cannot be)"
    r"|TooFewReplicas: (?:no node answered|too few replicas answered)(?: at all)?"
    r"|(?:NotStored|TooFewReplicas), OutcomeUnknown: too few (?:nodes|replicas) answered"
    r"(?:; (?:repeat it|do it again))?"
    r"|(?:NotStored|OutcomeUnknown|(?:NotStored, OutcomeUnknown)|(?:OutcomeUnknown, NotStored)): "
    r"(?:too few (?:nodes|replicas) answered|not confirmed within)(?:.|\n {5,})*?"
    r"|TooFewReplicas: no (?:node could serve it|replica of some partition answered)(?:.|\n {5,})*?"
    r"|timeout: seconds(?: for each partition)?; the client's if None"
    r"|as (?:`\w+` (?:does|do)|iterating does|`[\w.]+` and `[\w.]+` do|`[\w.]+` does))\.\n(?! {5})"
)
"""Arguments, results and errors that the head of the page explains."""
INTERNAL = {
    "Client": ("extend_quietly",),
    "Consumer": ("let_go", "settled"),
    "NotAllStored": ("of",),
    "Task": ("check", "is_async", "retries", "retries_on", "seconds"),
    "Worked": ("count",),
}
"""Members by class that the library itself calls."""
GUIDE = {
    "Client.add_node": "operations.md#growing",
    "Client.consumer": "client.md#consuming",
    "Client.delete_group": "client.md#groups",
    "Client.delete_topic": "client.md#publishing",
    "Client.fetch": "client.md#once",
    "Client.limit_group": "client.md#groups",
    "Client.move_partition": "operations.md#moving-a-partition",
    "Client.move_voter": "operations.md#nodes-that-leave",
    "Client.pause_group": "client.md#groups",
    "Client.producer": "client.md#publishing",
    "Client.publish": "client.md#publishing",
    "Client.purge": "client.md#groups",
    "Client.rewind": "client.md#groups",
    "Client.set_labels": "client.md#publishing",
    "Client.work": "client.md#a-worker-pool",
    "Consumer": "client.md#consuming",
    "Message.extend": "client.md#once",
    "Producer": "client.md#publishing",
    "Producer.publish": "client.md#publishing",
    "Producer.publish_many": "client.md#publishing",
    "Producer.send": "patterns.md#consume-process-publish",
    "Worked": "client.md#a-worker-pool",
}
"""Calls by the section that explains them: the page has their first paragraph, and a link."""
TABLES = ("Client.consumer", "Client.producer")
"""Calls with a table of their options in that section."""
ERRORS = (
    "HoldLost",
    "NotStored",
    "OutcomeUnknown",
    "SessionClosed",
    "StorageFull",
    "TooFewReplicas",
    "Transient",
    "UsageError",
)
"""Errors that client.md#errors explains."""
REGISTERS = tuple(kind.__name__ for kind in (client.Group, client.Death, client.Stamp, client.Topic))
"""Values of the core: the page has the first paragraph, because their fields are those of the wire format."""


def shortened(title: str, docs: str) -> str:
    """Replace the explanation of a call that a guide has by a link to it."""
    first, _, rest = docs.partition("\n\n")
    if title in REGISTERS:
        return f"{first}\n\n[wire-format.md](wire-format.md#nested-values) has the fields.\n"
    if title not in GUIDE:
        return docs
    if title in TABLES:
        rest = re.sub(r"Args:\n(?: .*\n?|\n(?= ))*", "", rest)
    labels = re.search(r"^(?:Args|Returns|Raises):$", rest, re.MULTILINE)
    page, _, anchor = GUIDE[title].partition("#")
    link = f"[{page}]({page}#{anchor}) has {'the options and ' if title in TABLES else ''}more."
    return f"{first}\n\n{link}\n\n{rest[labels.start() :] if labels else ''}"


def prose(docs: str) -> Iterator[str]:
    """A docstring as Markdown: sections are bold, their items a list."""
    inside = False
    docs = USUAL.sub("", docs + "\n")
    docs = re.sub(r"(?:Args|Raises):\n(?=\n|\Z)\n?", "", docs).rstrip()
    for line in docs.splitlines():
        if re.fullmatch(r"\w+:", line):
            inside = True
            yield f"**{line[:-1]}**"
            yield ""
        elif inside and (item := ITEM.match(line)):
            yield f"- `{item[1]}`: {line[item.end() :]}"
        elif inside and line.startswith("    "):
            yield f"  {line.strip()}"
        else:
            inside = inside and not line.strip()
            yield line


def call_of(name: str, thing: Any) -> str:
    """How ``thing`` is called: on one line, or with a line for each argument where that is too long."""
    signature = inspect.signature(thing)
    arguments = [
        re.sub(r"['\"]", "", str(each))
        .replace("timeout: float | None = None", "timeout=None")
        .replace(" | None = None", " = None")
        for each in signature.parameters.values()
        if each.name != "self"
    ]
    kinds = [each.kind for each in signature.parameters.values() if each.name != "self"]
    if inspect.Parameter.KEYWORD_ONLY in kinds:
        arguments.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    begin = f"{'async ' if inspect.iscoroutinefunction(thing) else ''}{name}("
    line = begin + ", ".join(arguments) + ")"
    return line if len(line) < 110 else begin + "".join(f"\n    {each}," for each in arguments) + "\n)"


def entry(level: str, title: str, thing: Any, call: str = "") -> Iterator[str]:
    docs = inspect.getdoc(thing)
    assert docs, f"{title} has no docstring"
    yield f"{level} {title}"
    yield ""
    if call:
        yield from ("```python", call, "```", "")
    yield from prose(shortened(title.strip("`"), docs).replace("``", "`"))
    yield ""


def members(thing: type) -> Iterator[str]:
    ours = [base for base in thing.__mro__ if base.__module__.startswith("quorumq.client")]
    for name, member in {
        name: member for base in reversed(ours) for name, member in vars(base).items()
    }.items():
        plain = inspect.unwrap(member.__func__ if isinstance(member, classmethod | staticmethod) else member)
        if name.startswith("_") or name in INTERNAL.get(thing.__name__, ()):
            continue
        if isinstance(member, property):
            yield from entry("###", f"`{thing.__name__}.{name}`", member.fget)
        elif inspect.isfunction(plain):
            yield from entry("###", f"`{thing.__name__}.{name}`", plain, call_of(name, plain))


def page() -> str:
    lines = [HEAD]
    for name in client.__all__:
        thing = getattr(client, name)
        if is_typeddict(thing) or name in ERRORS:
            continue
        if inspect.isclass(thing):
            lines += entry("##", f"`{name}`", thing)
            lines += members(thing)
        elif inspect.isfunction(thing):
            lines += entry("##", f"`{name}`", thing, call_of(name, thing))
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
