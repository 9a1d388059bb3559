"""Errors of quorumq, found again in the stack of two languages that Spark makes of them.

An exception that our data source raises in a Python process of Spark is passed through Java, as text within one of
Spark's exceptions. The name of the class and the sentence are still in it. Java itself may end at any moment, for want
of memory above all: then the next call to it finds no process at the other end.
"""

from __future__ import annotations

import os
import re
from typing import Final

from quorumq.core.values.errors import QuorumqError, StorageError, error_classes, error_from

MEMORY_VARIABLE: Final = "QUORUMQ_SPARK_MEMORY"
"""Variable with the memory that Spark's Java may take, as `512m` or `4g`, if no argument says it."""

_OURS: Final = re.compile(rf"{re.escape(QuorumqError.__module__)}\.(\w+): (.+)")
_JAVA: Final = re.compile(r"^(?:: |Caused by: )(?:[\w$]+\.)+[\w$]+: (.*\S.*)$", re.MULTILINE)
"""The lines of a Py4JJavaError with the texts of Java's exceptions, each caused by the next."""


_PYTHON: Final = re.compile(r"Traceback \(most recent call last\):\n(?: .*\n)+(\w[\w.]*: .*\S)")
"""The end of a traceback of a worker's Python, as when it lacks a package, or if it is of another version."""


class SparkFailed(QuorumqError):
    """Spark could not do it: for want of memory, because its Java was ended, or for a reason of its own."""

    code = "spark-failed"
    exit_code = 70


def told(error: BaseException) -> QuorumqError | None:
    """Return an exception that Spark passed on as our own error; None for any other."""
    gone = isinstance(error, ConnectionError)  # the socket to Java; a client's own are errors of quorumq
    if not gone and not type(error).__module__.startswith(("pyspark.", "py4j.")):
        return None
    try:
        text = str(error)
    except Exception:  # py4j asks Java for the text of its exception, and Java has ended meanwhile
        text, gone = "", True
    codes = {cls.__name__: code for code, cls in error_classes().items()}
    for name, said in reversed(_OURS.findall(text)):
        if name in codes:
            return error_from(codes[name], said.strip())
    if "No space left on device" in text:
        return StorageError(
            "the disk is full: Spark works in SPARK_LOCAL_DIRS (else /tmp) and beside OUT, and takes about as much as "
            "its input"
        )
    if gone or type(error).__name__ == "Py4JNetworkError" or "OutOfMemoryError" in text:
        had = os.environ.get(MEMORY_VARIABLE, "1g")
        return SparkFailed(
            f"Spark's Java ran out of memory ({had}), or was ended from outside: give it more with "
            f"{MEMORY_VARIABLE}=4g, or free some"
        )
    lines = (
        _PYTHON.findall(text)[-1:]
        or _JAVA.findall(text)[-1:]
        or text.strip().splitlines()[:1]
        or [type(error).__name__]
    )
    return SparkFailed(f"Spark failed: {lines[0]} (QUORUMQ_SPARK_LOG=error shows all that Spark says of it)")
