"""`python -m tests.scenarios`: write the present events into each scenario. Read the difference before a commit."""

from __future__ import annotations

from tests.scenarios.transcript import FILES, played

for path in FILES:
    before = path.read_text()
    after = played(before)
    if after != before:
        path.write_text(after)
        print(f"{path.name}: changed")
