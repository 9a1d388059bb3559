"""Codecs are compiled ahead of need (quorumq/node/warmup.py)."""

from __future__ import annotations

import trio

from quorumq.node.warmup import AFTER_S, warm_up
from quorumq.wire import codec


async def test_each_codec_is_compiled_soon_after_start(autojump_clock: trio.testing.MockClock) -> None:
    for table in (codec._ENCODERS, codec._DECODERS):
        table.clear()
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(warm_up)
        await trio.sleep(AFTER_S - 0.1)
        assert not codec._ENCODERS
    assert trio.current_time() - began > AFTER_S + 0.01 * len(codec.TYPES)
    assert [*codec._ENCODERS] == [*codec.TYPES.values()]
    assert [*codec._DECODERS] == [*codec.TYPES]
