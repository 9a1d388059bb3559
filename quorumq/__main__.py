"""`quorumq`, also as `python -m quorumq` of this very Python."""

import sys
from typing import Final

from quorumq.core.values.errors import UsageError

REMEDY: Final = "is not installed: pip install 'quorumq[server]'"


def main(name: str | None = None) -> None:
    """Run the command line; ``name`` is that of the program in its texts.

    If click is missing, it names the extra quorumq[server] and exits with 64.
    """
    try:
        from quorumq.cli.main import main as command
    except ModuleNotFoundError as error:
        if error.name != "click":
            raise
        print(f"quorumq: click {REMEDY}", file=sys.stderr)
        sys.exit(UsageError.exit_code)
    command(prog_name=name)


if __name__ == "__main__":
    main("python -m quorumq")
