"""A short share of every generator, always the same one; `make soak` runs each on new cases, `--fuzz-seconds` long."""

from __future__ import annotations

import json
import time

import pytest
from click.testing import CliRunner

from tests.fuzz import FUZZERS
from tests.fuzz.__main__ import main
from tests.fuzz.run import FAILURES_MAX, Fuzzer, run

SHORT = {"frames": 6_000, "shapes": 4_000, "requests": 25, "directories": 80}

every = pytest.mark.parametrize("name", sorted(FUZZERS))


@every
def test_a_short_share(name: str) -> None:
    report = run(FUZZERS[name], 1, count=SHORT[name])
    assert not report.failures, report.failures
    assert len(report.outcomes) >= 3, f"they do not get far: {report.outcomes}"


@pytest.mark.soak
@every
def test_new_cases(name: str, pytestconfig: pytest.Config) -> None:
    seed = int(time.time())
    report = run(FUZZERS[name], seed, seconds=pytestconfig.getoption("fuzz_seconds"), say=print)
    print(json.dumps(report._asdict()))
    assert not report.failures, report.failures


def test_a_failure_is_named_by_a_command_that_runs_it_alone() -> None:
    def case(seed: int, n: int) -> tuple[str]:
        if n % 5 == 3:
            raise ValueError(f"{seed} and {n}")
        return ("fine",)

    report = run(Fuzzer("odd", "", case, "numbers"), 7, first=1, count=10)
    assert report.outcomes == {"FAILED": 2, "fine": 8}
    assert [failure["n"] for failure in report.failures] == [3, 8]
    assert report.failures[0]["again"] == "python -m tests.fuzz odd --seed 7 --first 3 --count 1"
    assert run(Fuzzer("odd", "", case, ""), 7, count=1000).cases == 5 * (FAILURES_MAX - 1) + 4

    done = CliRunner().invoke(main, ["frames", "--count", "5", "--json"])
    assert done.exit_code == 0
    assert json.loads(done.stdout)["cases"] == 5
