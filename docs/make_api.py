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

Names that `quorumq.client` exports, with the first paragraph of each docstring (`python docs/make_api.py` writes this
page). `help` has the rest: arguments with units, results, and the reasons of errors. [client.md](client.md) is the
guide. `quorumq.client.blocking` has the same names without `async` and `await`.

An argument whose default is None may be None. `topic` and `group` are names; dead letters are those of group "g!dead"
or topic "t.deadletters". `timeout` is in seconds, for the call or for each of its requests. Changes of topics, groups
and nodes return the value as a majority has it. [client.md](client.md#errors) has the remedies of errors.
"""
ITEM = re.compile(r"^    (\w+(?:, \w+)*): ")
RAISES = re.compile(r"\n\nRaises:\n((?: {4}.*\n?)*)")
INTERNAL = {
    "Client": ("extend_quietly",),
    "Consumer": ("let_go", "settled"),
    "NotAllStored": ("of",),
    "Task": ("check", "is_async", "retries", "retries_on", "seconds"),
    "Worked": ("count",),
}
"""Members by class that the library itself calls."""
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


def shortened(title: str, thing: Any, docs: str) -> str:
    """The first paragraph of a call, with the names of its errors; of a class all but its arguments."""
    first = docs.partition("\n\n")[0]
    if title in REGISTERS:
        return f"{first}\n\n[wire-format.md](wire-format.md#nested-values) has the fields."
    if inspect.isclass(thing):
        return re.sub(r"\n\nArgs:\n(?: .*\n?)*", "", docs)
    raises = RAISES.search(docs)
    names = [item[1] for line in raises[1].splitlines() if (item := ITEM.match(line))] if raises else []
    errors = ", ".join(f"`{name}`" for item in names for name in item.split(", "))
    return f"{first}\n\nRaises {errors}." if errors else first


def prose(docs: str) -> Iterator[str]:
    """A docstring as Markdown: sections are bold, their items a list."""
    inside = False
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
        str(each.replace(annotation=inspect.Parameter.empty))
        if each.annotation is inspect.Parameter.empty or each.name == "timeout"
        else str(each).replace(repr(each.annotation), each.annotation).replace(" | None = None", " = None")
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
    yield from prose(shortened(title.strip("`"), thing, docs).replace("``", "`"))
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
