"""Counts of wording that the project avoids, by check and package, for tests/test_words.py."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]

PACKAGES: Final = (
    "quorumq/core", "quorumq/client", "quorumq/node", "quorumq/storage", "quorumq/wire", "quorumq/cli",
    "quorumq/lab", "quorumq/history", "quorumq/audit", "quorumq/testing", "quorumq/brokers",
    "quorumq/gateway", "quorumq", "sim", "spark", "tests", "docs",
)  # fmt: skip
"""Prefixes of paths. The first match counts the file."""

LINE_MAX: Final = 120

MADE: Final = ("docs/api.md",)
"""Pages that a command writes from docstrings."""

QUOTING: Final = ("CHANGELOG.md", "docs/decisions/", "docs/names.md", "tests/words.py", "tests/test_words.py")
"""Files that may quote a retired word."""

PROSE_IN: Final = ("docs", "quorumq", "sim", "spark")
OTHER: Final = (".txt", ".js", ".css", ".html", ".yaml", ".service")
"""Files that are neither modules nor pages, as the sources of pictures: only retired words are looked for."""

RETIRED: Final = {
    "asker": "caller",
    "askers": "callers",
    "badge": "credentials",
    "behind": "backfill, after",
    "browse": "peek",
    "census": "peer groups",
    "door": "listener, router",
    "doors": "listeners",
    "doubtful": "uncertain",
    "duty": "component",
    "emptying": "compaction",
    "facts": "rule context, observations, fields",
    "floor": "min_ballot",
    "forget": "drop, discard, delete",
    "forgets": "drops, discards, deletes",
    "forgotten": "dropped, discarded, deleted",
    "freed": "released",
    "frontdoor": "request_router",
    "hasty": "has_retryable",
    "heard": "answered",
    "hunt": "mutants, find_seed",
    "judge": "checker",
    "judges": "checkers",
    "leave": "release",
    "leaves": "releases",
    "letter": "death",
    "letters": "deaths, dead_letters",
    "moments": "targeted_faults",
    "mortal": "ttl_share",
    "nobody": "BLOCKED, NO_CALLER, NO_TOKEN, NO_GROUP",
    "offer": "ready, digests",
    "offers": "ready, digests",
    "origin": "producer_id",
    "origins": "producer_ids",
    "piece": "chunk, part",
    "pieces": "chunks, parts",
    "place": "location, index, cursor",
    "placed": "moved, located",
    "places": "locations",
    "resolved": "settled",
    "rides": "piggybacks",
    "riding": "piggyback",
    "room": "capacity",
    "seal": "signature",
    "sealed": "signed",
    "sections": "spans",
    "stirred": "newly_ready",
    "stock": "buffer",
    "stocked": "buffered",
    "survey": "replica_list",
    "suspected": "moved",
    "tallied": "counted",
    "tally": "count, backlog",
    "unasked": "unreachable",
    "unheard": "awaited, unreported",
    "vouch": "trusted",
    "vouched": "trusted",
    "vouchers": "confirmed_by",
    "vouching": "trust",
}
"""Parts of identifiers that the project has given up, with the words that replace them."""

_FIRST: Final = "what|who|whom|whose|where|which|whether|how|of|as|from"
_VARIABLES: Final = frozenset(("found", "what", "this", "some", "told", "wanted", "left", "begun", "things"))
_FOREIGN: Final = frozenset((
    "get_origin", "ascii_letters", "__origin__", "ExitStack", "max_leaves",
    "on_leave",  # a line of the history: LEAVE
))  # fmt: skip
_LIBRARIES: Final = frozenset(("math", "F", "np", "typing", "pc", "pa"))

_OPENER: Final = re.compile(rf"(?:{_FIRST})\b", re.I)
_FIELD: Final = re.compile(r"^ {4,}\*{0,2}(\w+): (?:what|who|whom|whose|where|which|how|of|by|since)\b", re.I)
_COMMENT: Final = re.compile(r"#:? (?:what|who|whom|whose|which|of|likewise|so many)\b", re.I)
_COMMENT_OF_LINE: Final = re.compile(r"(?:^ *|\S  )(#:? .*)")
_LIST_OF_FIELDS: Final = re.compile(r"\w+ (?:bool|bytes|float|int|text|[A-Z]\w*)(?:,|$)")  # no prose
_TEST_NAME: Final = re.compile(rf"test_(?:{_FIRST})_")
_TEST_IMPORT: Final = re.compile(r"^\s*(?:from|import) tests(?:\.\w+)*\.test_\w+", re.M)

_PHRASES: Final = {
    "pronoun": re.compile(
        r"\b(?:(?:no|some|any|every)body|whoever|whatever|of theirs|of ours|likewise)\b", re.I
    ),
    "is told": re.compile(
        r"\b(?:is|are|was|were|be|been|being) told\b(?! (?:apart|by)\b)|\btold (?:of|so|what|who)\b", re.I
    ),
    "of which": re.compile(
        r"\bof (?:which|whom)\b|\bthat (?:of|which) (?:it|they)\b"
        r"|\b(?:than|as) (?:that|those) (?:does|do|did|has|is)\b",
        re.I,
    ),
    "where for if": re.compile(
        r"\bwhere (?:there (?:is|are|was|were)|it (?:has|had|can|cannot|knows|is (?:not|one|the|a|known|on)\b)"
        r"|they have|nobody|somebody|nothing|something|none|no |not |one (?:is|has)|all (?:is|are)"
        r"|that (?:is|was|has))",
        re.I,
    ),
    "so many": re.compile(r"\bso (?:many|much|long|often)\b(?! (?:as|that)\b)", re.I),
}
_RETIRED_PROSE: Final = re.compile(
    r"\b(?:letters?|origins?|vouch(?:es|ed|ing)?|offers?|stirred|askers?|doors?"
    r"|badges?|rides? on|riding|the floor|seals?|sealed|census|surveys?|browse[sd]?|tall(?:y|ies|ied)|judges?"
    r"|(?:event )?heap|hedg(?:e|ed|ing))\b",
    re.I,
)
_NOT_RETIRED: Final = re.compile(
    r"dead[\s-]+letters?|letters, digits|replication origin|door to door|heapq|min-heap|https?://\S+|`[^`]*`",
    re.I,
)

RATES: Final = {
    "what": r"what",
    "where": r"where",
    "vague": r"told|tells?|comes?|came|coming|(?:no|some|any|every)body|whoever",
    "if": r"if|when",
}
"""Words counted per 1,000 words of docstrings (docs: of pages). The vague ones hide the action, or the subject."""


class Hit(NamedTuple):
    """One place that a check names."""

    check: str
    path: str
    line: int
    text: str


def package_of(path: str) -> str:
    return next((name for name in PACKAGES if path.startswith(name + "/")), "docs")


def all_hits(prefix: str = "") -> tuple[list[Hit], dict[str, Counter[str]]]:
    """Every hit of every check below a prefix of paths, and the words of each package's docstrings or pages."""
    hits: list[Hit] = []
    words: dict[str, Counter[str]] = {name: Counter() for name in PACKAGES}
    for top in ("quorumq", "sim", "spark", "tests"):
        for file in sorted((ROOT / top).rglob("*.py")):
            path = file.relative_to(ROOT).as_posix()
            if not path.startswith(prefix):
                continue
            hits += _of_module(path, file.read_text(), words[package_of(path)])
    for file in sorted([*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")]):
        path = file.relative_to(ROOT).as_posix()
        if path not in MADE and path.startswith(prefix):
            hits += _of_page(path, file.read_text(), words["docs"])
    for file in sorted(file for top in PROSE_IN for file in (ROOT / top).rglob("*") if file.suffix in OTHER):
        path = file.relative_to(ROOT).as_posix()
        if path.startswith(prefix):
            hits += _phrases(path, 1, file.read_text(errors="replace"), quoting=False, checks={})
    return hits, words


def _of_module(path: str, text: str, words: Counter[str]) -> Iterator[Hit]:
    nodes = list(ast.walk(ast.parse(text)))
    quoting = path.startswith(QUOTING)
    for line, doc in _docstrings(nodes):
        words.update(re.findall(r"[a-z'-]+", doc.lower()))
        if _OPENER.match(doc.strip()):
            yield Hit("opener", path, line, doc.strip().split("\n")[0])
        for offset, row in enumerate(doc.split("\n")):
            if _FIELD.match(row):
                yield Hit("entry", path, line + offset, row.strip())
        yield from _phrases(path, line, doc, quoting)
    for line, name in _stored(nodes):
        if name in _VARIABLES:
            yield Hit("variable", path, line, name)
    for node in nodes:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and _TEST_NAME.match(node.name):
            yield Hit("test name", path, node.lineno, node.name)
    for number, row in enumerate(text.split("\n"), start=1):
        comment = _COMMENT_OF_LINE.search(row) if "#" in row else None
        if comment is not None:
            if _COMMENT.match(comment[1]):
                yield Hit("comment", path, number, comment[1])
            yield from (
                Hit(check, path, number, comment[1])
                for check, it in _PHRASES.items()
                if it.search(comment[1])
            )
            if not quoting and _RETIRED_PROSE.search(_NOT_RETIRED.sub("~", comment[1])):
                yield Hit("old word", path, number, comment[1])
    for line, name in sorted(set(_identifiers(nodes))):
        for part in _parts(name) if name not in _FOREIGN and not quoting else ():
            if part in RETIRED:
                yield Hit("old name", path, line, f"{name}: write {RETIRED[part]}")
    for match in _TEST_IMPORT.finditer(text):
        yield Hit("test import", path, text.count("\n", 0, match.start() + 1) + 1, match[0].strip())


def _phrases(
    path: str, line: int, text: str, quoting: bool, checks: Mapping[str, re.Pattern[str]] = _PHRASES
) -> Iterator[Hit]:
    for check, pattern in checks.items():
        for match in pattern.finditer(text):
            yield Hit(check, path, line + text.count("\n", 0, match.start()), _around(text, match))
    plain = _NOT_RETIRED.sub(lambda match: "~" * len(match[0]), text)
    for match in () if quoting else _RETIRED_PROSE.finditer(plain):
        yield Hit("old word", path, line + text.count("\n", 0, match.start()), _around(text, match))


def _around(text: str, match: re.Match[str]) -> str:
    return " ".join(text[max(0, match.start() - 40) : match.end() + 40].split())


def _docstrings(nodes: list[ast.AST]) -> Iterator[tuple[int, str]]:
    """Strings that stand as statements: below a module, class, function, constant or field."""
    for node in nodes:
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            yield node.lineno, node.value.value


def _stored(nodes: list[ast.AST]) -> Iterator[tuple[int, str]]:
    """Names of variables, arguments, fields and attributes. A tuple of `left` and `right` is skipped."""
    paired = {
        id(each)
        for node in nodes
        if isinstance(node, (ast.Tuple, ast.arguments))
        and {"left", "right"} <= {getattr(each, "id", getattr(each, "arg", "")) for each in ast.walk(node)}
        for each in ast.walk(node)
    }
    for node in nodes:
        if id(node) in paired:
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr.lstrip("_")


def _identifiers(nodes: list[ast.AST]) -> Iterator[tuple[int, str]]:
    for node in nodes:
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Name):
            yield line, node.id
        elif isinstance(node, ast.Attribute):
            if not (isinstance(node.value, ast.Name) and node.value.id in _LIBRARIES):
                yield line, node.attr
        elif isinstance(node, (ast.arg, ast.keyword)):
            yield line, node.arg or ""
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield line, node.name
        elif isinstance(node, ast.alias):
            yield from ((line, name) for name in (*node.name.split("."), node.asname or ""))
        elif isinstance(node, ast.ImportFrom):
            yield from ((line, name) for name in (node.module or "").split("."))


@cache
def _parts(identifier: str) -> list[str]:
    plain = re.sub(r"dead_?letter(?:s|ing|ed)?", "", identifier, flags=re.I)  # the user's word
    return [part.lower() for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", plain)]


def _of_page(path: str, text: str, words: Counter[str]) -> Iterator[Hit]:
    quoting = path.startswith(QUOTING)
    for line, row in _outside_fences(text):
        if len(row) > LINE_MAX and row.lstrip()[0] not in "|#<!":
            yield Hit("long line", path, line, f"{len(row)} characters: {row[:80]}")
    for line, block in _paragraphs(text):
        plain = re.sub(r"\]\([^)]*\)", "]", block)
        words.update(re.findall(r"[a-z'-]+", plain.lower()))
        if len(plain.split()) > 60 and not _LIST_OF_FIELDS.match(plain):
            yield Hit("paragraph", path, line, f"{len(plain.split())} words: {plain[:80]}")
        yield from _phrases(path, line, plain, quoting)


def _paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Prose outside of fences, headings and HTML. Each item of a list and each cell of a table is one paragraph."""
    block: list[str] = []
    start = 0
    for number, line in [*_outside_fences(text), (0, "")]:
        stripped = line.strip()
        ends = not stripped or stripped[0] in "|#<" or re.match(r"(?:[-*+]|\d+\.) ", stripped)
        if ends and block:
            yield start, " ".join(block)
            block = []
        if stripped.startswith("|"):
            yield from ((number, cell) for cell in stripped.split(" | "))
        elif stripped and stripped[0] not in "#<":
            start = start if block else number
            block.append(stripped)


def _outside_fences(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines that are no code, by number, and an empty one for the beginning of each fence."""
    fence = ""
    for number, line in enumerate(text.split("\n"), start=1):
        stripped = line.strip()
        opens = re.match(r"(```+|~~~+)", stripped)
        if fence:
            fence = "" if stripped.startswith(fence) else fence
        elif opens:
            fence = opens[1]
            yield number, ""
        else:
            yield number, line
