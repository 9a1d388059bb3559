"""Dead letters: fields, their limits, and fingerprints of equal failures."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumq.client.base.dead_letters import (
    class_name,
    clean,
    cut,
    fingerprint,
    make_death,
    normalised,
    top_frame,
)
from quorumq.core.values.limits import DEATH_TEXT_MAX
from quorumq.core.values.types import Death
from quorumq.wire import cbor
from quorumq.wire.values import decode_value, encode_value


class Odd(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def fail(text: str) -> None:
    raise KeyError(text)


def caught(text: str) -> KeyError:
    with pytest.raises(KeyError) as info:
        fail(text)
    return info.value


def test_a_dead_letter_says_what_happened() -> None:
    death = make_death(
        caught("order 17"), reason="no such order", attempt=1, published_ms=5, delivered_ms=9, consumer="c", host="h",
        consumer_version="2",
    )  # fmt: skip
    assert (death.reason, death.error_class) == ("rejected", "KeyError")
    assert death.message == "no such order: 'order 17'"
    assert "test_deaths.py" in death.stack
    assert death.stack.rstrip().endswith("KeyError: 'order 17'")
    assert (death.attempts, death.published_ms, death.first_delivered_ms, death.last_delivered_ms) == (
        1,
        5,
        9,
        9,
    )
    assert (death.consumer, death.consumer_version, death.host) == ("c", "2", "h")


def test_a_later_delivery_does_not_pretend_to_be_the_first() -> None:
    death = make_death(None, reason="why", attempt=3, delivered_ms=9)
    assert (death.first_delivered_ms, death.last_delivered_ms) == (0, 9)
    assert (death.error_class, death.stack, death.message) == ("", "", "why")
    assert death.fingerprint


def test_equal_failures_have_one_fingerprint_and_others_another() -> None:
    one = make_death(caught("order 17 of 0xdeadbeef01 at 3f2b8c1e-1111-2222-3333-444455556666")).fingerprint
    same = make_death(caught("order 123 of 0x0 at 00000000-aaaa-bbbb-cccc-dddddddddddd")).fingerprint
    assert (one, len(one)) == (same, 16)
    assert make_death(caught("customer 17")).fingerprint != one
    assert make_death(ValueError("order 17")).fingerprint != one
    assert fingerprint("E", "x", "m:f") != fingerprint("E", "x", "m:g")


def test_the_frame_is_the_innermost_without_its_line() -> None:
    assert top_frame(caught("x")) == "tests.client.test_deaths:fail"
    assert top_frame(ValueError()) == ""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("row 12 of 3,400", "row <n> of <n>"),
        ("id 3F2B8C1E-1111-2222-3333-444455556666!", "id <uuid>!"),
        ("at 0x7f3a and deadbeef12", "at <hex> and <hex>"),
        ("a  decade\n of facade", "a decade of facade"),
        ("took 1.5s", "took <n>s"),
    ],
)
def test_varying_parts_are_removed_from_a_fingerprint(text: str, expected: str) -> None:
    assert normalised(text) == expected


def test_an_exception_that_cannot_be_described_is_described() -> None:
    death = make_death(Odd())
    assert death.message == "<RuntimeError in __str__>"
    assert death.error_class == f"{Odd.__module__}.Odd" == class_name(Odd())


@given(st.text(max_size=300), st.integers(60, 200))
def test_cut_keeps_both_ends(text: str, most: int) -> None:
    short = cut(text, most)
    assert len(short) <= most
    if len(text) <= most:
        assert short == text
    else:
        assert text.startswith(short[: (most - 40) // 2])
        assert text.endswith(short[-((most - 40) // 2) :])
        assert f"{len(text)} characters" in short


@given(st.text(st.characters(codec=None), max_size=50), st.integers(0, 3))
def test_every_dead_letter_can_be_sent(text: str, size: int) -> None:
    """Lone surrogates, long texts, exceptions that raise in `__str__`."""
    death = make_death(ValueError(text * (10**size)), reason=text, consumer=text * 10, host=text * 10)
    assert decode_value(Death, cbor.load(encode_value(death))) == death
    assert max(len(death.message), len(death.stack)) <= DEATH_TEXT_MAX
    assert clean(death.message) == death.message
