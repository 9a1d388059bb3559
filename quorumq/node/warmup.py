"""Work that a node does ahead of need, when it serves."""

from __future__ import annotations

from typing import Final

import trio

from quorumq.wire.codec import compile_all

AFTER_S: Final = 2.0
"""Seconds from the start until it begins, so that it is not slower when a command waits for the start."""

PAUSE_S: Final = 0.25
"""Pause in seconds between parts of some 2 ms each: below 1 % of a core, for a minute."""


async def warm_up() -> None:
    """Compile the codecs of all messages, with pauses in which requests are served."""
    await trio.sleep(AFTER_S)
    for _ in compile_all():
        await trio.sleep(PAUSE_S)
