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
page). `help` has the rest: types, arguments with units, fields of results, and the reasons of errors.
[client.md](client.md) is the guide, with the options of producers, consumers and workers, and the remedies of errors.
`quorumq.client.blocking` has the same names without `async` and `await`.

`topic` and `group` are names; dead letters are those of group "g!dead" or topic "t.deadletters". Each call that
asks nodes also takes `timeout`, in seconds, for the call or for each of its requests. Changes of topics, groups and
nodes return the value as a majority has it.

A call raises `NotFound` if there is no such topic, group, partition or node, `UsageError` for a value that cannot be,
`TooFewReplicas` if too few nodes answered. A change raises `NotStored` (nothing was done) or `OutcomeUnknown` then.
Other errors are in the line of the call.
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
USUAL = ("NotFound", "UsageError", "TooFewReplicas", "NotStored", "OutcomeUnknown", "Exception")
"""Errors of many calls, which the head of the page names."""
REGISTERS = tuple(kind.__name__ for kind in (client.Group, client.Death, client.Stamp, client.Topic))
"""Values of the core, whose fields are those of the wire format."""


def described(title: str, thing: Any) -> str:
    """The first paragraph of a docstring with the errors that the head does not name; of a class all but arguments."""
    docs, first = (inspect.getdoc(thing) or "").replace("``", "`"), first_paragraph(title, thing)
    if inspect.isclass(thing) and not issubclass(thing, Exception):
        return "\n".join(prose(re.sub(r"\n\nArgs:\n(?: .*\n?)*", "", docs)))
    raises = RAISES.search(docs)
    names = [item[1] for line in raises[1].splitlines() if (item := ITEM.match(line))] if raises else []
    errors = ", ".join(f"`{name}`" for item in names for name in item.split(", ") if name not in USUAL)
    return f"{first} Raises {errors}." if errors else first


def first_paragraph(title: str, thing: Any) -> str:
    docs = (inspect.getdoc(thing) or "").replace("``", "`")
    assert docs, f"{title} has no docstring"
    return " ".join(docs.partition("\n\n")[0].split())


def prose(docs: str) -> Iterator[str]:
    """A docstring as Markdown: the label of its attributes goes, and they are a list."""
    inside = False
    for line in docs.splitlines():
        if line == "Attributes:":
            inside = True
        elif inside and (item := ITEM.match(line)):
            yield f"- `{item[1]}`: {line[item.end() :]}"
        elif inside and line.startswith("    "):
            yield f"  {line.strip()}"
        else:
            inside = inside and not line.strip()
            yield line


def call_of(name: str, thing: Any) -> str:
    """A call on one line, without the types of its arguments, and without the time that the head of the page names."""
    signature = inspect.signature(thing)
    bare = [
        each.replace(annotation=inspect.Parameter.empty)
        for each in signature.parameters.values()
        if each.name not in ("self", "cls") and (each.name, each.default) != ("timeout", None)
    ]
    call = f"{name}{signature.replace(parameters=bare, return_annotation=inspect.Signature.empty)}"
    return f"async {call}" if inspect.iscoroutinefunction(thing) else call


def members(thing: type) -> Iterator[str]:
    ours = [base for base in thing.__mro__ if base.__module__.startswith("quorumq.client")]
    for name, member in {
        name: member for base in reversed(ours) for name, member in vars(base).items()
    }.items():
        plain = inspect.unwrap(member.__func__ if isinstance(member, classmethod | staticmethod) else member)
        if name.startswith("_") or name in INTERNAL.get(thing.__name__, ()):
            continue
        title = f"{thing.__name__}.{name}"
        if isinstance(member, property):
            yield f"- `{name}`: {described(title, member.fget)}"
        elif inspect.isfunction(plain):
            yield f"- `{call_of(name, plain)}`: {described(title, plain)}"


def page() -> str:
    things = {name: getattr(client, name) for name in client.__all__ if name not in ERRORS}
    things = {
        name: thing for name, thing in things.items() if not is_typeddict(thing) and name not in REGISTERS
    }
    lines = [HEAD, "## Functions", ""]
    lines += [
        f"- `{call_of(name, thing)}`: {described(name, thing)}"
        for name, thing in things.items()
        if inspect.isfunction(thing)
    ]
    errors = {
        name for name, thing in things.items() if inspect.isclass(thing) and issubclass(thing, Exception)
    }
    values = []
    for name, thing in things.items():
        if not inspect.isclass(thing) or name in errors:
            continue
        rows = list(members(thing))
        if not rows:
            values.append(f"- `{name}`: {first_paragraph(name, thing)}")
            continue
        lines += ["", f"## `{name}`", "", described(name, thing)]
        lines += ["", *rows] if "\n- `" not in lines[-1] else rows
    names = ", ".join(f"`{name}`" for name in REGISTERS)
    lines += ["", "## Values", "", *values]
    lines += [f"- {names}: [wire-format.md](wire-format.md#nested-values) has their fields."]
    lines += ["", "## Other errors", ""]
    lines += [f"- `{name}`: {described(name, things[name])}" for name in sorted(errors)]
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
