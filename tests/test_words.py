"""Wording that the project avoids does not appear, and some words are rarer than the rates below, which may only fall.

Run ``python -m tests.test_words`` to print today's rates as a table to paste here, and
``python -m tests.test_words CHECK [PREFIX]`` to list the places of one check.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from typing import Final

import pytest

from tests.words import RATES, Hit, all_hits

REMEDIES: Final = {
    "opener": "open the docstring with a verb or a noun: what it does, not 'What …' or 'Whether …'",
    "entry": "describe the argument with a noun and its unit",
    "comment": "write a sentence with a noun as its subject",
    "variable": "name the variable after its type or its content",
    "old name": "use the word that replaces it",
    "old word": "use the word that replaces it (tests/words.py, RETIRED)",
    "pronoun": "name the client, node or operator that is meant",
    "is told": "write 'learns', 'gets' or 'receives', with a subject",
    "of which": "split the sentence",
    "where for if": "write 'if' or 'when' for a condition",
    "so many": "write the number or the unit",
    "paragraph": "split the paragraph: at most 60 words",
    "long line": "wrap prose of pages at 120 characters",
    "test name": "name subject, condition and result",
    "test import": "move what is shared to a module that is no test",
}
"""Remedies by check."""

ALLOWED_RATES: Final[dict[str, dict[str, float]]] = {
    "what": {
        "quorumq/core": 2.6,
        "quorumq/client": 0.7,
        "quorumq/node": 0.3,
        "quorumq/storage": 0.2,
        "quorumq/wire": 0.2,
        "quorumq/cli": 0.6,
        "quorumq/lab": 0.2,
        "quorumq/history": 1.2,
        "quorumq/audit": 0.8,
        "quorumq/testing": 0.7,
        "quorumq/brokers": 0.2,
        "quorumq/gateway": 1.3,
        "quorumq": 0.2,
        "sim": 1.4,
        "spark": 2.7,
        "tests": 1.6,
        "docs": 0.6,
    },
    "where": {
        "quorumq/core": 0.5,
        "quorumq/client": 0.5,
        "quorumq/node": 0.3,
        "quorumq/storage": 0.2,
        "quorumq/wire": 0.4,
        "quorumq/cli": 0.6,
        "quorumq/lab": 0.4,
        "quorumq/history": 0.2,
        "quorumq/audit": 0.2,
        "quorumq/testing": 0.2,
        "quorumq/brokers": 0.2,
        "quorumq/gateway": 0.3,
        "quorumq": 0.2,
        "sim": 0.5,
        "spark": 0.7,
        "tests": 0.5,
        "docs": 0.3,
    },
    "vague": {
        "quorumq/core": 0.5,
        "quorumq/client": 0.5,
        "quorumq/node": 0.5,
        "quorumq/storage": 0.5,
        "quorumq/wire": 0.5,
        "quorumq/cli": 0.5,
        "quorumq/lab": 0.5,
        "quorumq/history": 1.0,
        "quorumq/audit": 0.5,
        "quorumq/testing": 0.6,
        "quorumq/brokers": 0.5,
        "quorumq/gateway": 0.5,
        "quorumq": 1.1,
        "sim": 0.5,
        "spark": 0.5,
        "tests": 0.5,
        "docs": 0.5,
    },
    "if": {
        "quorumq/core": 13.2,
        "quorumq/client": 14.5,
        "quorumq/node": 22.5,
        "quorumq/storage": 28.0,
        "quorumq/wire": 20.2,
        "quorumq/cli": 19.7,
        "quorumq/lab": 17.1,
        "quorumq/history": 12.5,
        "quorumq/audit": 21.1,
        "quorumq/testing": 12.0,
        "quorumq/brokers": 24.2,
        "quorumq/gateway": 17.4,
        "quorumq": 16.7,
        "sim": 13.0,
        "spark": 11.2,
        "tests": 4.6,
        "docs": 12.3,
    },
}
"""Uses per 1,000 words of docstrings (docs: of pages): the most of each word, but the least of `if`."""


@pytest.fixture(scope="module")
def measured() -> tuple[list[Hit], dict[str, Counter[str]]]:
    return all_hits()


@pytest.mark.parametrize("check", REMEDIES)
def test_a_check_has_no_hits(check: str, measured: tuple[list[Hit], dict[str, Counter[str]]]) -> None:
    places = [f"{hit.path}:{hit.line}: {hit.text}" for hit in measured[0] if hit.check == check]
    assert not places, f"{check}: {REMEDIES[check]}. Places:\n" + "\n".join(places)


@pytest.mark.parametrize("word", RATES)
def test_a_word_is_as_frequent_as_allowed(
    word: str, measured: tuple[list[Hit], dict[str, Counter[str]]]
) -> None:
    for package, rate in rates(measured[1], word).items():
        allowed = ALLOWED_RATES[word][package]
        if word == "if":
            assert rate >= allowed, (
                f"{package}: {rate} per 1,000 words are 'if' or 'when', {allowed} at least"
            )
        else:
            assert rate <= allowed, f"{package}: {rate} per 1,000 words are {word!r}, {allowed} at most"


def rates(words: dict[str, Counter[str]], word: str) -> dict[str, float]:
    """Uses of a word per 1,000 words, by package, with one decimal."""
    pattern = re.compile(RATES[word])
    return {
        package: round(
            1000 * sum(n for it, n in counts.items() if pattern.fullmatch(it)) / max(1, sum(counts.values())),
            1,
        )
        for package, counts in words.items()
    }


def main(arguments: list[str]) -> None:
    """Print the table of rates, or the places of one check."""
    prefix = arguments[1] if arguments[1:] else ""
    hits, words = all_hits(prefix)
    if arguments:
        for hit in hits:
            if hit.check == arguments[0]:
                print(f"{hit.path}:{hit.line}: {hit.text}")
        return
    for word in RATES:
        slack = -0.2 if word == "if" else 0.2
        print(
            f"    {word!r}: { ({it: round(rate + slack, 1) for it, rate in rates(words, word).items()})!r},"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
