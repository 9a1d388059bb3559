"""Every command explains itself, is found without being imported, and fails in words."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from quorumq.cli.main import COMMANDS, main
from quorumq.core.values.errors import (
    HoldLost,
    NotFound,
    OutcomeUnknown,
    QuorumqError,
    StorageError,
    error_classes,
)
from tests.cli.tree import commands

OURS = [name for name in COMMANDS if name != "demo"]  # the demo's own tests look at its help


@pytest.mark.parametrize("name", OURS)
def test_every_command_explains_itself(name: str) -> None:
    root = main.get_command(click.Context(main), name)
    assert root is not None
    for path, command in commands(root, (name,)):
        explains_itself(path, command)


def explains_itself(path: tuple[str, ...], command: click.Command) -> None:
    text = (command.help or "").strip()
    first, _, rest = text.partition("\n\n")
    assert first.endswith("."), f"{' '.join(path)}: the help begins with a sentence"
    assert len(rest.split()) >= 8 or isinstance(command, click.Group), (
        f"{' '.join(path)}: the help says only {text!r}"
    )
    for option in command.params:
        if isinstance(option, click.Option):
            said = (option.help or "").strip()
            assert said.endswith((".", "]")), f"{' '.join(path)} {option.opts[0]}: help is {said!r}"
    result = CliRunner().invoke(main, [*path, "--help"])
    assert result.exit_code == 0, result.output
    assert result.output.startswith(f"Usage: quorumq {' '.join(path)}")


@pytest.mark.parametrize("name", OURS)
def test_the_summary_that_stands_in_for_a_command_is_there(name: str) -> None:
    result = CliRunner().invoke(main, ["--help"])
    assert result.exit_code == 0
    assert COMMANDS[name][1] in " ".join(result.output.split())


def imported(args: list[str], exit_code: int) -> list[str]:
    """The modules that a command imports, without those that only a test would."""
    code = (
        "import sys\n"
        "from quorumq.cli.main import main\n"
        "try:\n"
        f"    main({args!r})\n"
        "except SystemExit as ended:\n"
        f"    assert ended.code == {exit_code}, ended.code\n"
        "print()\n"
        "print(*sorted(sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1].split()


def test_help_imports_no_command_and_nothing_heavy() -> None:
    """The time that `quorumq --help` takes is the time of its imports."""
    modules = imported(["--help"], 0)
    assert not {"trio", "rich", "cbor2", "msgspec", "sortedcontainers", "subprocess"} & set(modules)
    assert [name for name in modules if name.split(".")[0] == "quorumq"] == [
        "quorumq", "quorumq.cli", "quorumq.cli.main", "quorumq.commands", "quorumq.core",
        "quorumq.core.values", "quorumq.core.values.errors", "quorumq.core.values.printable",
    ]  # fmt: skip


def test_publishing_imports_the_client_and_nothing_beside_it() -> None:
    """Nine tenths of the time of one `quorumq publish` are its imports."""
    modules = imported(["publish", "jobs", "x", "--node", "127.0.0.1:1", "--timeout", "0.2"], 69)
    assert not {"rich", "msgspec", "asyncio", "concurrent.futures"} & set(modules)
    ours = [name for name in modules if name.startswith("quorumq.")]
    beside = [name for name in ours if name.split(".")[1] not in ("cli", "client", "core", "history", "wire")]
    assert beside == ["quorumq.commands"]
    of_cli = [name for name in ours if name.startswith("quorumq.cli.")]
    # `probe` reports that no node answers. It is not imported if one does
    assert of_cli == [f"quorumq.cli.{name}" for name in ("common", "main", "probe", "progress", "publish")]
    assert len(ours) <= 90, "what publishing needs has grown: is it needed?"


def test_a_misspelt_command_is_answered_with_those_there_are() -> None:
    result = CliRunner().invoke(main, ["publsh"])
    assert result.exit_code == 2
    assert "'publsh'" in result.output
    assert "publish" in result.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["publish", "jobs"], "--lines"),
        (["publish", "jobs", "--lines", "--file", "-"], "standard input"),
        (["publish", "jobs", "x", "--header", "novalue"], "NAME=VALUE"),
        (["publish", "jobs", "x", "--partition", "-1"], "--partition"),
        (["publish", "jobs", "x", "--node", "localhost"], "host:port"),
        (["publish", "jobs", "--file", "/nonexistent"], "/nonexistent"),
        (["status", "--node", "127.0.0.1:70000"], "host:port"),
        (["topics", "create"], "NAME"),
        (["topics", "create", "x", "--partitions", "0"], "--partitions"),
        (["dev", "--nodes", "10"], "--nodes"),
        (["serve"], "--config"),
        (["bench", "drain", "--size", "3"], "--size"),
        (["topics", "set", "x", "--rf", "3"], "and `quorumq topics alter` have it"),
        (["topics", "alter", "x", "--backoff", "1"], "and `quorumq topics set` have it"),
        (["--node", "127.0.0.1:7401", "status"], "stand behind its name"),
        (["groups", "rewind", "x", "--to", "latest"], "Missing argument 'GROUP'"),
        (["groups", "describe", "x", "g", "h"], "unexpected extra argument (h)"),
    ],
)
def test_a_wrong_flag_ends_with_2_and_names_what_was_wrong(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2, result.output
    assert said in result.output


def test_a_wrong_address_of_the_environment_names_the_variable() -> None:
    result = CliRunner().invoke(main, ["status"], env={"QUORUMQ_NODES": "127.0.0.1:7401,localhost"})
    assert "Invalid value for QUORUMQ_NODES: address = 'localhost'" in result.output


def raising(error: BaseException) -> click.Command:
    @click.command("fails")
    def fails() -> None:
        raise error

    return fails


def fail_with(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> tuple[int, str]:
    monkeypatch.setattr(type(main), "get_command", lambda self, ctx, name: raising(error))
    result = CliRunner().invoke(main, ["fails"])
    return result.exit_code, result.output


@pytest.mark.parametrize("cls", list(error_classes().values()), ids=lambda cls: cls.__name__)
def test_every_error_is_one_line_and_its_own_exit_code(
    cls: type[QuorumqError], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, output = fail_with(cls("the cause; the remedy"), monkeypatch)
    assert code == cls.exit_code
    assert output == "quorumq: the cause; the remedy\n"


def test_an_error_without_text_still_says_something(monkeypatch: pytest.MonkeyPatch) -> None:
    _, output = fail_with(HoldLost(), monkeypatch)
    assert "hold-lost" in output


def test_errors_out_of_a_nursery_are_told_as_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    group = ExceptionGroup(
        "nursery", [ExceptionGroup("inner", [OutcomeUnknown("ask again", needed=2, answered=1)])]
    )
    assert fail_with(group, monkeypatch) == (75, "quorumq: needed 2 replicas, 1 answered; ask again\n")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (KeyboardInterrupt(), 130),
        (BaseExceptionGroup("nursery", [NotFound("x"), KeyboardInterrupt()]), 130),
        (KeyboardInterrupt(signal.SIGTERM), 143),
    ],
    ids=["alone", "in a group", "by SIGTERM"],
)
def test_interrupted_ends_as_shells_have_it(
    error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fail_with(error, monkeypatch)[0] == code


def test_a_bug_is_not_dressed_up_as_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(main), "get_command", lambda self, ctx, name: raising(ZeroDivisionError()))
    assert isinstance(CliRunner().invoke(main, ["fails"]).exception, ZeroDivisionError)


@pytest.mark.parametrize("arguments", [["init", "FILE/new"], ["demo", "--keep", "FILE/new"]])
def test_an_unusable_path_is_named_without_a_traceback(arguments: list[str], tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    result = CliRunner().invoke(main, [argument.replace("FILE", str(file)) for argument in arguments])
    assert (
        result.output == f"quorumq: {file}/new: Not a directory: name another path, or make this one usable\n"
    )
    assert result.exit_code == StorageError.exit_code


def test_no_one_there_says_where_it_was_tried_and_what_to_do() -> None:
    result = CliRunner().invoke(main, ["topics", "list", "--node", "127.0.0.1:1", "--timeout", "0.5"])
    assert result.exit_code == 69
    assert "127.0.0.1:1" in result.output
    assert "quorumq dev" in result.output


@pytest.mark.parametrize(
    ("option", "text", "said"),
    [
        ("--wait", "-1", "'-1' is not a time: say 30, 30s, 5m, 2h or 7d"),
        ("--hold-time", "0s", "0.0 is not in the range x>=0.1"),
        ("--reject", "soon", "'soon' is not a time"),
        ("--backoff", "2m", "120.0 is not in the range 0<=x<=60.0"),
    ],
)
def test_times_are_written_as_for_other_commands(option: str, text: str, said: str) -> None:
    result = CliRunner().invoke(main, ["consume", "jobs", "--group", "g", option, text])
    assert result.exit_code == 2
    assert said in result.output
