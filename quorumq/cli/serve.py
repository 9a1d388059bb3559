"""`quorumq serve`: one node in the foreground."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.option(
    "--config",
    "config",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The node's configuration file, node.toml.",
)
def serve(config: Path) -> None:
    """Run one node until SIGTERM or Ctrl-C, which stop it cleanly.

    The configuration names this node, all nodes of the cluster with their addresses, the cluster's secret and the
    data directory; docs/operations.md describes every setting. A node that was stopped cleanly takes part again
    at once after its next start. One that crashed waits until every hold it may have granted has run out: one
    hold_time_max, which `quorumq status` counts down.

    The exit code is 0 after a clean stop, and otherwise that of the reason, which is the last line of the log.
    """
    from quorumq.node.config import load_config
    from quorumq.node.serve import run

    raise click.exceptions.Exit(run(load_config(config)))
