# spark/errors.py: from a stack of two languages back to the one sentence that was meant.
#
# What our data source raises in a Python process of Spark comes back through Java, as text within one of Spark's
# exceptions. The name of the class and the sentence are still in it.
"""Errors of quorumq that went through Spark."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from quorumq.core import errors
from quorumq.core.errors import QuorumqError

_OURS: Final = re.compile(r"^(?:\w+: )?quorumq\.core\.errors\.(\w+): (.*?)$", re.MULTILINE)


def meant(error: BaseException) -> QuorumqError | None:
    """The error of quorumq that an exception of Spark tells of, or None."""
    found = _OURS.findall(str(error))
    if not found:
        return None
    name, text = found[-1]
    kind = getattr(errors, name, QuorumqError)
    return kind(text) if isinstance(kind, type) and issubclass(kind, QuorumqError) else QuorumqError(text)


@contextmanager
def plainly() -> Iterator[None]:
    """Whatever Spark raises on behalf of quorumq within is raised as what it was."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        said = meant(error)
        if said is None:
            raise
        raise said from error
