"""Commands of docs/operations.md, as they stand there, for tests that run them on a cluster of real nodes."""

from __future__ import annotations

import re
from pathlib import Path

from click.testing import CliRunner, Result

from quorumq.cli.main import main
from quorumq.lab.local import LocalCluster

PAGE = Path(__file__).parents[2].joinpath("docs", "operations.md").read_text()


def run(cluster: LocalCluster, *arguments: str) -> Result:
    """Run a command of `quorumq` on a cluster."""
    return CliRunner().invoke(main, list(arguments), env={"QUORUMQ_NODES": ",".join(cluster.addresses)})


def commands(first: str, after: str, *names: str) -> list[list[str]]:
    """Return the words of the commands between two headings of the page, each without `quorumq`.

    Args:
        first: the heading before them.
        after: beginning of the heading after them.
        names: the commands of `quorumq` that count.
    """
    section = re.search(rf"^### {first}\n(.*?)(?=^{after})", PAGE, re.S | re.M)
    assert section, f"docs/operations.md has no section {first!r}"
    return [line.split() for line in re.findall(rf"^quorumq ((?:{'|'.join(names)}) .*)$", section[1], re.M)]
