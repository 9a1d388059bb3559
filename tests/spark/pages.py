"""Checks of a report's page: its elements, and its view in a browser."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from tests.browser import Browser

SHOWN = "</script></style></svg>--><img src=x onerror="
HOSTILE = SHOWN + "\"document.title='pwned'\">$\\frac{1}{2}$ &amp; ' \x00\x1b[31m\u202e"


class Elements(HTMLParser):
    """Elements, links, text and ids of a page, as a browser reads them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes += attrs
        if tag not in ("meta", "input"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes something else"

    def handle_data(self, data: str) -> None:
        self.text += data


PROBE = """
(() => {
  const box = document.querySelectorAll('.table')[TABLE], input = box.querySelector('input');
  box.querySelectorAll('th button')[1].click();
  input.value = 'nothing has this';
  input.dispatchEvent(new Event('input'));
  const clipped = [...document.querySelectorAll('svg text')].filter((text) => {
    const a = text.getBoundingClientRect(), b = text.closest('svg').getBoundingClientRect();
    return a.left < b.left - 2 || a.right > b.right + 2 || a.top < b.top - 2 || a.bottom > b.bottom + 2;
  }).length;
  return {title: document.title, wide: document.documentElement.scrollWidth, clipped,
    sorted: box.querySelector('th[aria-sort]').textContent, shown: box.querySelector('[data-shown]').textContent,
    plots: document.querySelectorAll('figure svg').length, images: document.images.length};
})()
"""


def browsed(browser: Browser, page: str, table: int, width: int, folder: Path) -> dict[str, Any]:
    """Return the observations of a browser that sorts the table of that number by its second column, and filters all
    away."""
    file = folder / "report.html"
    file.write_text(page)
    for scheme in ("dark", "light"):
        browser.open(file.as_uri(), width, scheme)
        assert browser.pale() == []
    seen: dict[str, Any] = browser.run(PROBE.replace("TABLE", str(table)))
    assert browser.complaints == []
    return seen
