"""Parts that the simulator's pages share: one HTML file that needs nothing else, light or dark as the reader has it."""

from __future__ import annotations

from html import escape

STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:1100px;margin:2rem auto;padding:0 1rem;color:#222;background:#fff}
h1{font-size:1.5rem}h2{font-size:1.05rem;margin:1.6rem 0 .3rem}svg{width:100%;height:auto}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}td,th{padding:.2rem .7rem;text-align:right}
td:first-child,th:first-child{text-align:left}tr:nth-child(even){background:#f4f4f2}
.key span{margin-right:1.2rem;white-space:nowrap}
.key i{display:inline-block;width:.8em;height:.8em;margin-right:.35em}text{font:12px system-ui,sans-serif;fill:#222}
@media(prefers-color-scheme:dark){body{background:#1b1b1b;color:#ddd}
tr:nth-child(even){background:#262626}text{fill:#ddd}}
"""


def document(title: str, body: str, style: str = "") -> str:
    """Return the whole page: its title as a heading, then the body; ``style`` is added to the style."""
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}{style}</style>'
        f"<h1>{escape(title)}</h1>{body}</html>\n"
    )
