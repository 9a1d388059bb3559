"""`quorumq`, also as `python -m quorumq` of this very Python."""

import sys


def main(name: str | None = None) -> None:
    """Run the command line; ``name`` is that of the program in its texts.

    If click is missing, it names the extra quorumq[server] and exits with 64. If Ctrl-C interrupts the imports, it
    exits with 130.
    """
    try:
        from quorumq.cli.main import main as command
    except KeyboardInterrupt:
        sys.exit(130)
    except ModuleNotFoundError as error:
        from quorumq.core.values.errors import UsageError

        if error.name != "click":
            raise
        print("quorumq: click is not installed: pip install 'quorumq[server]'", file=sys.stderr)
        sys.exit(UsageError.exit_code)
    command(prog_name=name)


if __name__ == "__main__":
    main("python -m quorumq")
