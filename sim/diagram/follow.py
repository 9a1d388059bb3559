"""One message's story in words."""

from __future__ import annotations

from collections.abc import Iterator

from sim.diagram.story import Story

AROUND = ("fault", "down", "broken")
"""Kinds of items that stay beside those that concern the message."""


def follow(story: Story, message: str) -> Iterator[str]:
    """Yield the events of a message, one line each, with the faults of the cluster meanwhile.

    Raises:
        ValueError: it is not in the story.
    """
    producer_id, number = story.find(message)
    mine = [item for item in story.items if item.concerns(producer_id, number)]
    first, last = min(item.at for item in mine), max(item.at for item in mine)
    yield f"{message}, from {first:.4f} to {last:.4f} s:"
    for item in sorted(story.items, key=lambda item: item.at):
        about = item.concerns(producer_id, number)
        if about or (item.kind in AROUND and first - 1.0 <= item.at <= last + 0.1):
            says = f"BROKEN: {item.says}" if item.kind == "broken" else item.says
            yield f"{item.at:10.4f}  {'' if about else '· '}{says}"
