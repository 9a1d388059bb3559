"""docs/protocol.md can be cited and read, its pictures are new; every path in docs/architecture.md is there."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pictures"
PROTOCOL = (ROOT / "docs" / "protocol.md").read_text()
WORDS_MAX = 60
"""Of one paragraph, one item of a list, or one cell of a table."""

NAME = r"section \d+|G\d|\"[^\"]+\"|[A-Z]{3,}(?:-[A-Z]+)?(?: [A-Z]{3,})?"
CITATION = re.compile(
    rf"protocol\.md\)?,? (?:promise |and )?((?:{NAME})(?:(?:, | and )(?:promise )?(?:{NAME}))*)"
)


def places() -> set[str]:
    """What may be cited: headings, terms in bold, and the first cell of each row, in lower case."""
    headings = re.findall(r"^#+ (.+)$", PROTOCOL, re.MULTILINE)
    bold = re.findall(r"\*\*([^*]+?)\.?\*\*", PROTOCOL)
    rows = re.findall(r"^\| ([^|]+) \|", PROTOCOL, re.MULTILINE)
    return {text.lower() for text in (*headings, *bold, *rows)}


def citations() -> list[tuple[str, str]]:
    """(file, name) of each citation of the page in the tree, whatever the line breaks and comment signs."""
    cited: dict[tuple[str, str], None] = {}
    for folder in ("quorumq", "sim", "spark", "tests", "docs"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix not in (".py", ".md") or path == Path(__file__):
                continue
            text = re.sub(r"\s*\n\s*#?\s*", " ", path.read_text())
            for names in CITATION.findall(text):
                for name in re.findall(NAME, names):
                    cited[str(path.relative_to(ROOT)), name.strip('"')] = None
    return list(cited)


@pytest.mark.parametrize(("path", "name"), citations())
def test_what_is_cited_is_there(path: str, name: str) -> None:
    if name.startswith("section "):
        assert f"\n## {name.removeprefix('section ')}. " in PROTOCOL, (
            f"{path} cites {name} of docs/protocol.md"
        )
        return
    assert any(re.search(rf"\b{re.escape(name.lower())}\b", place) for place in places()), (
        f"{path} cites {name!r} of docs/protocol.md, which has no such heading, term or row"
    )


def test_citations_are_found() -> None:
    assert len(citations()) > 80


def test_no_paragraph_is_long() -> None:
    for block in re.split(r"\n\s*\n", PROTOCOL):
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
        assert f"](pictures/{path.stem}.svg)" in PROTOCOL, f"docs/protocol.md does not show {path.stem}.svg"


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
