"""A node whose time of day was set while it was down says so, and ages nothing by it."""

from __future__ import annotations

import pytest
import trio

from quorumq.node import serve
from quorumq.node.serve import boot_number
from tests.node.memory import World, fetch, payloads, publish, world


async def stored_and_restarted(cluster: World) -> list[bytes]:
    """A message that expires in 60 s is published, the node killed, and its time of day set an hour ahead."""
    client = await cluster.client("a")
    topic = await client.topic(rf=1)
    await client.ask(publish(topic, await client.session(), 0, b"x"))
    cluster.kill("a")
    cluster.ahead_ms = 3_600_000  # type: ignore[attr-defined]
    cluster.start("a")
    await cluster.ready()
    await trio.sleep(6)
    return payloads(await (await cluster.client("a")).ask(fetch()))


@pytest.mark.parametrize(("boots", "lines"), [(("b1", "b1"), 1), (("b1", "b2"), 0), (("", ""), 0)])
async def test_a_start_says_that_the_time_of_day_moved_within_a_boot(
    monkeypatch: pytest.MonkeyPatch, boots: tuple[str, str], lines: int
) -> None:
    following = iter(boots)
    monkeypatch.setattr(serve, "boot", lambda: next(following))
    clock = World.clock
    monkeypatch.setattr(
        World,
        "clock",
        lambda self, name: (now := clock(self, name))._replace(
            wall_ms=now.wall_ms + getattr(self, "ahead_ms", 0)
        ),
    )
    async with world("a") as cluster:
        assert await stored_and_restarted(cluster) == [b"x"]
        said = cluster.logs["a"].of("time_of_day_moved")
        assert len(said) == lines
        assert all(abs(line["seconds"] - 3600) < 1 for line in said)


def test_a_boot_s_number_is_its_own_and_none_is_none() -> None:
    assert boot_number("") == 0
    assert 0 < boot_number("b1") < 1 << 60
    assert boot_number("b1") != boot_number("b2")
