"""Three voters of real nodes become five by the commands of docs/operations.md."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trio

from quorumq.lab.local import LocalCluster
from tests.e2e.added import Members
from tests.e2e.groups import through
from tests.e2e.manual import commands, run
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.soak


@pytest.mark.parametrize("own", [3], indirect=True)
def test_three_voters_become_five_and_two_may_be_away(own: LocalCluster, tmp_path: Path) -> None:
    dry, real = commands("More voters", "#", "nodes voters")
    assert "--dry-run" in dry
    members = Members(own, tmp_path)

    async def grows() -> None:
        with members.joining("de"):
            refused = await trio.to_thread.run_sync(lambda: run(own, *real, "--yes"))
            assert refused.exit_code == 64
            assert "and none can become one" in refused.stderr
            for name in "de":
                await members.add(name)
            plan = json.loads((await members.run(*dry)).stdout)
            assert (plan["more"], plan["outcome"]) == (2, "would be raised")
            asked = await trio.to_thread.run_sync(lambda: run(own, *real))
            assert asked.exit_code == 64
            assert "standard input has no answer: give --yes" in asked.stderr
            assert "have 5 voters, instead of 3, for good? [y/N]" in asked.stderr
            for _ in range(2):
                raised = json.loads((await members.run(*real, "--yes")).stdout)
                assert raised == {"voters": ["n1", "n2", "n3", "d", "e"], "outcome": "raised"}
            rows = (await members.run("nodes", "voters")).stdout.splitlines()
            assert [json.loads(row)["node"] for row in rows] == raised["voters"]
            own.kill("n1")
            own.kill("n2")
            with trio.fail_after(PATIENCE_S):
                async with through(own, "n3") as client:
                    await client.create_topic("jobs", rf=1)

    trio.run(grows)
