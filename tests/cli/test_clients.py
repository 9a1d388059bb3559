"""`quorumq clients`: the file that it keeps is the one that nodes read."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner, Result

from quorumq.cli.main import main
from quorumq.node.clients import Clients
from quorumq.wire.rights import Client
from sim.shell.memory import Log


def clients(path: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["clients", *arguments, "--file", str(path)])


def test_a_client_is_added_with_its_rights_listed_and_revoked(tmp_path: Path) -> None:
    path = tmp_path / "clients.toml"
    added = clients(path, "add", "shop", "--publish", "orders.*", "--consume", "mail", "g", "--json")
    token = json.loads(added.output)["token"]
    assert clients(path, "add", "boss", "--admin", "*").exit_code == 0
    loaded = Clients(str(path), Log())
    assert loaded.find(token) == Client("shop", ("orders.*",), (("mail", "g"),))
    assert token.partition(".")[2] not in path.read_text()
    listed = clients(path, "list").output
    assert "orders.*" in listed
    assert "mail as g" in listed
    assert [json.loads(line)["client"] for line in clients(path, "list", "--json").output.splitlines()] == [
        "shop",
        "boss",
    ]
    assert clients(path, "revoke", "shop").exit_code == 0
    assert [loaded.refresh(), loaded.refresh()] == [False, True], "a change counts when two looks are equal"
    assert loaded.find(token) is None


def test_impossible_requests_name_their_reason(tmp_path: Path) -> None:
    path = tmp_path / "clients.toml"
    for arguments, code, words in (
        (("add", "a b", "--admin", "*"), 64, "1 to 64 characters"),
        (("add", "shop"), 64, "may do nothing"),
        (("list",), 64, "cannot be read (No such file or directory)"),
        (("revoke", "shop"), 64, "cannot be read"),
    ):
        result = clients(path, *arguments)
        assert (result.exit_code, words in result.output) == (code, True), result.output
    clients(path, "add", "shop", "--admin", "*")
    assert "revoke it first" in clients(path, "add", "shop", "--admin", "*").output
    assert clients(path, "revoke", "nobody").exit_code == 66
    gone = clients(tmp_path / "away" / "clients.toml", "add", "shop", "--admin", "*")
    assert (gone.exit_code, "cannot be written" in gone.output) == (74, True)
