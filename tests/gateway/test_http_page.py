"""The examples of docs/http.md, and the OpenAPI document, against a gateway process beside real nodes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("hypercorn")

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "http.md").read_text()

pytestmark = [pytest.mark.e2e, pytest.mark.soak]


def examples(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def run(command: list[str], url: str, where: Path) -> str:
    done = subprocess.run(
        command, env={**os.environ, "Q": url}, cwd=where, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_examples_in_curl_run(gateway_url: str, tmp_path: Path) -> None:
    script = tmp_path / "examples.sh"
    script.write_text("set -e\n" + "\n".join(examples("sh")))
    out = run(["bash", str(script)], gateway_url + "/v1", tmp_path)
    assert '"outcome":"acked"' in out
    assert '"dry_run":true' in out


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_the_example_in_javascript_runs(gateway_url: str, tmp_path: Path) -> None:
    script = tmp_path / "example.mjs"
    script.write_text("".join(examples("js")))
    assert run(["node", str(script)], gateway_url + "/v1", tmp_path).strip() == "a@example.org"


@pytest.mark.skipif(shutil.which("go") is None, reason="go is not installed")
def test_the_example_in_go_runs(gateway_url: str, tmp_path: Path) -> None:
    script = tmp_path / "example.go"
    script.write_text("".join(examples("go")))
    assert run(["go", "run", str(script)], gateway_url + "/v1", tmp_path).strip() == "from Go"


def test_answers_are_as_the_document_says_for_drawn_requests(gateway_url: str) -> None:
    schemathesis = pytest.importorskip("schemathesis")
    from hypothesis import HealthCheck, given, settings
    from schemathesis.specs.openapi.checks import ignored_auth, positive_data_acceptance

    # These nodes have no clients file, and a schema does not say which names and receipts there are.
    excluded = [ignored_auth, positive_data_acceptance]
    url = gateway_url + "/v1"
    schema = schemathesis.openapi.from_url(url + "/openapi.json")
    for operation in schema.get_all_operations():
        call = operation.ok()
        if call.path.endswith("/tail"):
            continue

        @settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
        @given(case=call.as_strategy())
        def check(case: Any) -> None:
            case.call_and_validate(base_url=url, excluded_checks=excluded)

        check()
