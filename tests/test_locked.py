"""Requirements of pyproject.toml are in .ci/*.txt, in an allowed version, by hashes: `make` takes nothing else."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PROJECT["project"]["optional-dependencies"]
BASE = [*PROJECT["build-system"]["requires"], *PROJECT["project"]["dependencies"], *EXTRAS.pop("server")]
LISTENERS = [*EXTRAS.pop("tls"), *EXTRAS.pop("gateway")]  # locked with what the tests need
GROUPS = PROJECT["dependency-groups"]
WANTED = {**EXTRAS, **GROUPS, "run": BASE, "image": [*BASE, *LISTENERS], "dev": [*EXTRAS["dev"], *LISTENERS]}
ENTRY = re.compile(r"^([\w.-]+)==(\S+)(?: ; .*?)?((?: \\\n    --hash=sha256:[0-9a-f]{64})+)\n", re.MULTILINE)


def locked(name: str) -> dict[str, str]:
    """Versions by package, of a file that has nothing else in it."""
    text = (ROOT / ".ci" / f"{name}.txt").read_text()
    assert ENTRY.sub("", text) == "", "every line is a package with its hashes"
    return {canonicalize_name(package): version for package, version, _ in ENTRY.findall(text)}


@pytest.mark.parametrize("name", WANTED)
def test_every_requirement_is_locked(name: str) -> None:
    # Packages of Spark are left out of what is installed with them, for the tests.
    versions = {**locked("spark"), **locked("dev")} if name == "dev" else locked(name)
    for text in WANTED[name]:
        requirement = Requirement(text)
        if requirement.name == "quorumq":
            continue  # an extra that needs another one
        assert requirement.specifier.contains(versions[canonicalize_name(requirement.name)]), (
            f"{text}: run .ci/lock"
        )
