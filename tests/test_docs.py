"""Pages of the protocol can be cited; pictures are new; paths and links lead somewhere; patterns are their programs."""

from __future__ import annotations

import ast
import inspect
import re
import runpy
import textwrap
import tomllib
from pathlib import Path

import click
import pytest

from quorumq.cli.main import main
from quorumq.client import Client, Consumer, Message, Producer
from quorumq.testing import Message as FakeMessage
from sim.__main__ import main as sim_main

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pictures"
RULES = {name: (ROOT / "docs" / f"{name}.md").read_text() for name in ("protocol", "registers", "layouts")}
"""Pages of the protocol, by name."""
WORDS_MAX = 60
"""Words of one paragraph, one item of a list, or one cell of a table."""

EXAMPLES = ROOT / "docs" / "examples"
PATTERNS = sorted(path.name.removesuffix("_trio.py") for path in EXAMPLES.glob("*_trio.py"))
LINK = re.compile(r"\]\(((?!https?:)[^)\s#]*)(?:#([^)\s]+))?\)")

NAME = r"section \d+|G\d|\"[^\"]+\"|[A-Z]{3,}(?:-[A-Z]+)?(?: [A-Z]{3,})?"
CITATION = re.compile(
    rf"({'|'.join(RULES)})\.md\)?,? (?:promise |and )?((?:{NAME})(?:(?:, | and )(?:promise )?(?:{NAME}))*)"
)


def locations(page: str) -> set[str]:
    """Return the citable texts of a page: headings, terms in bold, and the first cell of each row, in lower case."""
    text = RULES[page]
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    bold = re.findall(r"\*\*([^*]+?)\.?\*\*", text)
    rows = re.findall(r"^\| ([^|]+) \|", text, re.MULTILINE)
    return {text.lower() for text in (*headings, *bold, *rows)}


def citations() -> list[tuple[str, str, str]]:
    """(file, page, name) of each citation of the pages in the tree, across line breaks and comment signs."""
    cited: dict[tuple[str, str, str], None] = {}
    for folder in ("quorumq", "sim", "spark", "tests", "docs"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix not in (".py", ".md") or path == Path(__file__):
                continue
            text = re.sub(r"\s*\n\s*#?\s*", " ", path.read_text())
            for page, names in CITATION.findall(text):
                for name in re.findall(NAME, names):
                    cited[str(path.relative_to(ROOT)), page, name.strip('"')] = None
    return list(cited)


@pytest.mark.parametrize(("path", "page", "name"), citations())
def test_every_cited_test_exists(path: str, page: str, name: str) -> None:
    if name.startswith("section "):
        assert f"\n## {name.removeprefix('section ')}. " in RULES[page], (
            f"{path} cites {name} of docs/{page}.md"
        )
        return
    assert any(re.search(rf"\b{re.escape(name.lower())}\b", location) for location in locations(page)), (
        f"{path} cites {name!r} of docs/{page}.md, which has no such heading, term or row"
    )


def test_citations_are_found() -> None:
    assert len(citations()) > 80


def test_no_paragraph_is_long() -> None:
    for block in re.split(r"\n\s*\n", "\n\n".join(RULES.values())):
        for item in re.split(r"\n(?=\s*(?:\d+\. |- |\|))", block):
            for cell in item.split(" | ") if item.lstrip().startswith("|") else [item]:
                words = len(cell.split())
                assert words <= WORDS_MAX, f"{words} words in one go: {cell[:200]}"


def test_pictures_are_what_their_text_makes() -> None:
    svg_of = runpy.run_path(str(PICTURES / "draw.py"))["svg_of"]
    made = sorted(PICTURES.glob("*.txt"))
    assert {path.stem for path in made} == {path.stem for path in PICTURES.glob("*.svg")}
    for path in made:
        assert path.with_suffix(".svg").read_text() == svg_of(path), "run python docs/pictures/draw.py"
        assert f"](pictures/{path.stem}.svg)" in RULES["protocol"], (
            f"docs/protocol.md does not show {path.stem}.svg"
        )


def test_every_path_in_architecture_is_there() -> None:
    """Whole paths, paths below quorumq/, and names of files alone, which some package must have."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    files = {path.name for top in ("quorumq", "sim", "spark", "tests") for path in (ROOT / top).rglob("*.py")}
    named = re.findall(r"`([\w./-]+(?:\.(?:py|md)|/))`|`((?:quorumq|sim|spark|tests|docs)/[\w./-]+)`", text)
    paths = [one or other for one, other in named]
    assert len(paths) > 100
    missing = [
        path
        for path in paths
        if path not in files
        and not any((ROOT / base / path).exists() for base in ("", "quorumq", "quorumq/core"))
    ]
    assert not missing, f"docs/architecture.md names {missing}"


def pages() -> list[Path]:
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", pages(), ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """To a file that is there, and to a heading that it has."""
    for path, heading in LINK.findall(page.read_text()):
        target = page.parent / path if path else page
        assert target.exists(), f"{page} links to {path}"
        if heading:
            titles = re.findall(r"^#+ (.+)$", target.read_text(), re.MULTILINE)
            anchors = [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles]
            assert heading in anchors, f"{page} links to {path}#{heading}"


@pytest.mark.parametrize("name", ["tutorial", "client", "patterns", "operations", "names"])
def test_calls_that_a_page_names_are_there(name: str) -> None:
    text = (ROOT / "docs" / f"{name}.md").read_text()
    kinds = {"client": Client, "message": Message, "consumer": Consumer, "producer": Producer}
    for thing, attribute in re.findall(r"(?<![.\w])(client|message|consumer|producer)\.([a-z]\w+)", text):
        made = inspect.getsource(kinds[thing].__init__) if "__init__" in vars(kinds[thing]) else ""
        fake = dir(FakeMessage) if thing == "message" else ()
        known = {*dir(kinds[thing]), *fake, *re.findall(r"self\.(\w+)", made), "md", "jsonl"}
        assert attribute in known, f"{name}.md names {thing}.{attribute}"


PROGRAMS: dict[str, click.Group] = {"quorumq": main, "python -m sim": sim_main}
OTHERS = ("rivals.md", "wire-format.md")
"""Pages that name commands of an earlier commit, or keys of a digest that look like a command."""


@pytest.mark.parametrize("page", pages(), ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_that_a_page_names_are_there(page: Path) -> None:
    if page.name in OTHERS:
        return
    lines = page.read_text().replace('", "', " ")  # the list form of a command
    for program, group in PROGRAMS.items():
        for word, inner, rest in re.findall(
            rf"[`\n/\"] *(?:\$ )?{program} ([a-z]+)(?: ([a-z][a-z-]*))?([^`\n|;&]*)", lines
        ):
            command = group.get_command(click.Context(group), word)
            if isinstance(command, click.Group) and inner:
                command = command.commands.get(inner)
            assert command is not None, f"{page.name} names {program} {word} {inner}"
            options = {option for parameter in command.params for option in parameter.opts}
            for option in re.findall(r"(?<!\S)--[a-z-]+", rest):
                assert option in options, f"{page.name} names {option} of {program} {word} {inner}"


def test_the_readme_has_the_two_commands_that_set_up_all() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    for target in ("demo", "test"):
        assert any(line.startswith(f"make {target} ") for line in lines), (
            f"README.md has no line: make {target}"
        )
        assert f"\n{target}:" in (ROOT / "Makefile").read_text()


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    for path in (ROOT / "docs").iterdir():
        if path.suffix == ".md" and path.name != "README.md":
            assert f"({path.name})" in index, f"docs/README.md does not list {path.name}"


def without_style(program: str) -> str:
    """A program without the differences of trio and threads."""
    program = re.sub(r"quorumq_(trio|threads)", "quorumq", program)
    for word in ("async ", "await ", "trio.run", "trio.", "time."):
        program = program.replace(word, "")
    tree = ast.parse(program.replace("(main())", "main()").replace("(main)", "main()"))
    del tree.body[0]  # its docstring
    tree.body = [node for node in tree.body if not isinstance(node, ast.Import | ast.ImportFrom)]
    return ast.unparse(tree)


@pytest.mark.parametrize("name", PATTERNS)
def test_a_pattern_is_shown_as_it_is_in_its_programs_which_differ_in_style_alone(name: str) -> None:
    paths = [EXAMPLES / f"{name}_{style}.py" for style in ("trio", "blocking")]
    programs = {path: path.read_text() for path in paths}
    assert len({without_style(program) for program in programs.values()}) == 1
    (section,) = [
        part
        for part in (ROOT / "docs" / "patterns.md").read_text().split("\n## ")
        if f"(examples/{name}_trio.py)" in part
    ]
    assert all(f"(examples/{path.name})" in section for path in programs)
    snippets = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    assert snippets
    for snippet in snippets:
        whole = [textwrap.indent(snippet, " " * depth) for depth in (0, 4, 8, 12)]
        assert any(text in programs[paths[0]] for text in whole), f"{name}_trio.py has no\n{snippet}"


def test_the_page_says_of_every_dependency_what_it_is_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [line for extra in project["optional-dependencies"].values() for line in extra]
    names = {re.split(r"[<>=\[]", line)[0] for line in (*project["dependencies"], *extras)} - {"quorumq"}
    table = (ROOT / "CONTRIBUTING.md").read_text().split("| package |")[1]
    cells = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]
    assert set(re.findall(r"`([a-z0-9-]+)`", " ".join(cells))) == names
