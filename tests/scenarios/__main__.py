"""`python -m tests.scenarios`: write into each scenario what happens now. Read the difference before you commit it."""

from __future__ import annotations

from tests.scenarios.transcript import FILES, played

for path in FILES:
    before = path.read_text()
    after = played(before)
    if after != before:
        path.write_text(after)
        print(f"{path.name}: changed")
