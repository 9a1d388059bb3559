"""`quorumq audit`: histories of nodes and clients against every guarantee."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from quorumq.cli.common import json_option, print_json, print_table, say


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="HISTORY...")
@click.option("--strict", is_flag=True, help="End with 3 if something is not decidable or was not read.")
@click.option(
    "--drained", is_flag=True, help="Treat every run as over: a message that is not settled is lost."
)
@json_option
def audit(paths: tuple[str, ...], strict: bool, drained: bool, as_json: bool) -> None:
    """Check every guarantee against what nodes and clients wrote (docs/history.md).

    Takes files, or directories with *.jsonl or *.jsonl.gz below them. Each guarantee holds, is broken, is not decidable
    or was not checked. Findings are shown by cause, with the story of the first message; --json has the first 50
    of each guarantee. `python -m quorumq.spark audit` checks histories of any size, and writes tables and a page.

    Needs the extra quorumq[audit]. Exits with 1 if a guarantee is broken.
    """
    from quorumq.core.values.errors import UsageError
    from quorumq.core.values.printable import plural
    from quorumq.history.reader import histories_of

    try:
        from quorumq.audit import files
        from quorumq.audit.audit import audit as judged
        from quorumq.audit.audit import exit_code, summarised
        from quorumq.audit.words import lines_of, rows_of
    except ModuleNotFoundError as error:
        raise UsageError(f"{error.name} is not installed: pip install 'quorumq[audit]'") from None

    result = histories_of(paths)
    with files.temporary() as folder:
        summary_of_lines, parts = files.read(result, Path(folder))
        summary = summarised(judged(summary_of_lines, parts, drained=drained), paths)
    files.check_not_empty(summary["lines"], summary["unread"], paths)
    if as_json:
        print_json(summary)
    else:
        columns, rows = rows_of(summary)
        print_table(columns, rows, f"{plural(summary['runs'], 'run')}, {plural(summary['lines'], 'line')}")
        for line in lines_of(summary):
            say(line)
    sys.exit(exit_code(summary, strict=strict))
