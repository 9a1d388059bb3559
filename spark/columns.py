"""`python -m spark columns`."""

from __future__ import annotations

import click

from .schemas import TABLES


@click.command("columns")
@click.argument("tables", nargs=-1, type=click.Choice(list(TABLES)), metavar="[TABLE]...")
def columns(tables: tuple[str, ...]) -> None:
    """Print the columns of the data source's tables, with types and meanings.

    All tables if none is named: messages, deadletters, problems.
    """
    for table in tables or TABLES:
        click.echo(table)
        for column in TABLES[table]:
            click.echo(f"  {column.name} ({column.type.simpleString()}): {column.meaning}")
