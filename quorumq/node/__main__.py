"""``python -m quorumq.node --config node.toml``: run one node."""

from __future__ import annotations

import argparse
import sys

from quorumq.node.config import ConfigError
from quorumq.node.reread import ConfigFile
from quorumq.node.serve import run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m quorumq.node", description="Run one quorumq node.")
    parser.add_argument(
        "--config", required=True, metavar="FILE", help="the node's TOML file (docs/operations.md)"
    )
    parser.add_argument(
        "--directory-is-newest",
        action="store_true",
        help="trust a data directory that was copied or restored, without asking the other nodes (docs/operations.md)",
    )
    arguments = parser.parse_args()
    try:
        file = ConfigFile(arguments.config)
    except ConfigError as error:
        print(f"quorumq: {error}", file=sys.stderr)
        return error.exit_code
    return run(file, arguments.directory_is_newest)


if __name__ == "__main__":
    sys.exit(main())
