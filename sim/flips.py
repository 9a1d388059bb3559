"""Bits of quorumq's own store that a failing medium turns over, so that the format can detect it.

A flip in the last write looks like a torn write (docs/file-format.md), so it is left out.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

from quorumq.storage.disk import Disk
from quorumq.storage.records import SegmentStart, decode_record
from quorumq.storage.scan import Frame, Gap, Scan
from quorumq.storage.segment import NAME_SUFFIX, salt_of

Flip = Callable[[str, int, int], None]
"""Turns over one bit: the name of the file, the byte, the bit."""


def flip_bodies(disk: Disk, flip: Flip, rng: random.Random) -> int:
    """Flip bits of some batches' bodies. Return the number of flips."""
    frames = [item for item in durable_frames(disk) if item[1].body_length and item[1].body_ok]
    hit = [item for item in frames if rng.random() < 0.5]
    for name, frame in hit:
        flip(name, rng.randrange(frame.body_offset, frame.end), rng.randrange(8))
    return len(hit)


def flip_records(disk: Disk, flip: Flip, rng: random.Random, last: int) -> int:
    """Flip bits of other records, of a node that does not run. Return the number of flips.

    If ``last`` is not 0, that many of the last records it is instead.
    """
    frames = durable_frames(disk)
    hit: list[tuple[str, Frame]] = []
    for _ in range(1 if last else rng.choice((1, 1, 3))):
        at = max(0, len(frames) - last) if last else rng.randrange(len(frames) or 1)
        for name, frame in frames[at : at + (last or rng.choice((1, 1, 10, 1000)))]:
            flip(name, rng.randrange(frame.offset, frame.body_offset), rng.randrange(8))
            hit.append((name, frame))
    return len(hit)


def durable_frames(disk: Disk) -> list[tuple[str, Frame]]:
    """Return the records of all segments, the oldest first, that a reader cannot take for torn if they are damaged."""
    result: list[tuple[str, Frame]] = []
    names = [name for name in disk.list() if name.endswith(NAME_SUFFIX)]
    for name in names:
        scan = Scan(partial(disk.read, name), disk.size(name), check_bodies=True)
        first = scan.frame(0)
        if not isinstance(first, Frame):
            continue
        start = decode_record(first.fields)
        assert isinstance(start, SegmentStart)
        scan.salt = salt_of(start.directory, start.segment)
        frames: list[Frame] = []
        for item in scan.records():
            frame = item.frame if isinstance(item, Gap) else item
            frames += [] if frame is None else [frame]
            if isinstance(item, Gap):
                break
        durable = max(frame.durable for frame in frames) if name == names[-1] else scan.size
        result += [(name, frame) for frame in frames if frame.end <= durable]
    return result
