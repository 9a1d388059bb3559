"""``python -m quorumq.node --config node.toml``: a node as `quorumq serve` runs it, without imports for a terminal."""

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
    try:
        file = ConfigFile(parser.parse_args().config)
    except ConfigError as error:
        print(f"quorumq: {error}", file=sys.stderr)
        return error.exit_code
    return run(file)


if __name__ == "__main__":
    sys.exit(main())
