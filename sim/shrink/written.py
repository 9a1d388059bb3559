"""A shrunk schedule as a regression test."""

from __future__ import annotations

from sim.schedule import Schedule
from sim.shrink.shrinker import Found, checker_of

TEMPLATE = '''"""{says}

Made by: python -m sim shrink {command}
"""

from __future__ import annotations

from sim.replay import replay
from sim.schedule import Schedule

SCHEDULE = Schedule.from_json(
    r"""
{schedule}
"""
)


def test_every_promise_is_kept() -> None:
    assert not replay(SCHEDULE).violations
'''

WITHOUT = """

def test_without_the_rule_a_promise_breaks() -> None:
    seen = replay(SCHEDULE, "{rule}").violations
    assert any("{checker}" in violation for violation in seen), seen
"""

WIDTH = 100


def as_test(result: Found, command: str, rule: str | None) -> str:
    """Return the text of a test file that replays the schedule.

    Args:
        rule: rule that was left out, or None: with it the test passes, without it the same checker sees it fail.
    """
    size = result.size
    says = (
        f"{checker_of(result.violation)}: {plural(size.faults, 'fault')}, {plural(size.special, 'packet')} that "
        f"{'is' if size.special == 1 else 'are'} not on time, {plural(size.messages, 'message')}."
    )
    text = TEMPLATE.format(says=says, command=command, schedule=wrapped(result.schedule))
    if rule is not None:
        text += WITHOUT.format(rule=rule, checker=checker_of(result.violation).removeprefix("raised "))
    return text


def plural(count: int, noun: str) -> str:
    """Return a number with its noun, in words."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def wrapped(schedule: Schedule) -> str:
    """Return the schedule's JSON in short lines, broken at places that JSON allows."""
    lines, line = [], ""
    for part in schedule.to_json().replace(",", ",\n").split("\n"):
        if line and len(line) + len(part) > WIDTH:
            lines.append(line)
            line = ""
        line += part
    return "\n".join([*lines, line])
