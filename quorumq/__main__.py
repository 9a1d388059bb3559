"""`python -m quorumq`: the command `quorumq`, of this very Python."""

from quorumq.cli.main import main

if __name__ == "__main__":
    main(prog_name="python -m quorumq")
