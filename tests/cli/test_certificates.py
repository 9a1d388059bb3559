"""`quorumq init --tls` and `quorumq certificates`: files with which nodes and clients trust each other."""

from __future__ import annotations

import itertools
import ssl
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from quorumq.cli.main import main
from quorumq.node.clients import hashed, read_clients
from quorumq.node.config import load_config
from quorumq.wire.tls import Tunnel, client_context, peer_context, server_context

NODES = ("--node", "a=10.0.0.1:7401", "--node", "b=b.example:7401")


def run(*args: str | Path) -> Result:
    return CliRunner().invoke(main, [*map(str, args)])


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    made = run("init", tmp_path / "orders", *NODES, "--tls")
    assert made.exit_code == 0, made.output
    return tmp_path / "orders"


def trusts(server: Path, client: Path, node: str = "a") -> bool:
    """Return True if a node's files of one directory and another node's of a second one agree, both ways.

    Raises:
        AssertionError: the certificate lacks the node's id.
    """
    ours = server_context(str(server / f"{node}.pem"), str(server / f"{node}.key"), str(server / "ca.pem"))
    theirs = peer_context(str(client / "b.pem"), str(client / "b.key"), str(client / "ca.pem"))
    theirs.verify_flags |= ssl.VERIFY_X509_STRICT
    below, above = Tunnel(ours, server_side=True), Tunnel(theirs)
    done = [False, False]
    try:
        while not all(done):
            done = [tunnel.handshake(other.unsent()) for tunnel, other in ((above, below), (below, above))]
    except ssl.SSLCertVerificationError:
        return False
    assert node in above.names()
    assert "b" in below.names()
    return True


def test_a_new_cluster_has_tls_and_a_client(tmp_path: Path) -> None:
    made = run("init", tmp_path / "orders", *NODES, "--tls")
    for node in ("a", "b"):
        config = load_config(tmp_path / "orders" / f"{node}.toml")
        assert not config.exposed, "it starts as it is"
        assert read_clients(config.clients_file)["operator"].admin == ("*",)
    assert trusts(tmp_path / "orders", tmp_path / "orders")
    token = made.output.split("QUORUMQ_TOKEN=")[1].split()[0]
    secret = token.removeprefix("operator.")
    assert read_clients(config.clients_file)["operator"].token == hashed(secret)
    public = {path.name for path in (tmp_path / "orders").iterdir() if path.stat().st_mode & 0o077}
    assert public == {"ca.pem", "a.pem", "b.pem"}


@pytest.mark.parametrize(("node", "host"), [("a", "10.0.0.1"), ("b", "b.example")])
def test_a_client_finds_the_dialled_address_in_the_certificate(directory: Path, node: str, host: str) -> None:
    context = client_context(str(directory / "ca.pem"))
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    server = server_context(str(directory / f"{node}.pem"), str(directory / f"{node}.key"), "")
    for dialled, is_right in ((host, True), ("c.example", False)):
        below, above = Tunnel(server, server_side=True), Tunnel(context, host=dialled)
        try:
            above.handshake(b"")
            below.handshake(above.unsent())
            assert above.handshake(below.unsent()) is is_right
        except ssl.SSLCertVerificationError:
            assert not is_right


def test_nothing_is_overwritten_by_certificates(tmp_path: Path) -> None:
    (tmp_path / "ca.key").write_text("mine")
    made = run("init", tmp_path, *NODES, "--tls")
    assert (made.exit_code, [path.name for path in tmp_path.iterdir()]) == (64, ["ca.key"])


def copied(directory: Path, name: str) -> Path:
    """Return a copy of a directory's files, as a node has them that was not given newer ones."""
    copy = directory.with_name(name)
    copy.mkdir()
    for path in directory.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    return copy


def test_a_node_is_trusted_at_each_step_of_a_rotation(directory: Path) -> None:
    """Nodes get the files of a step one after the other, so each step trusts the one before and after it."""
    steps = [copied(directory, "0")]
    for number, command in enumerate(("add-authority", "renew", "drop-authorities"), 1):
        done = run("certificates", command, directory)
        assert done.exit_code == 0, done.output
        steps.append(copied(directory, str(number)))
    for before, after in itertools.pairwise(steps):
        assert trusts(before, after), (before, after)
        assert trusts(after, before), (before, after)
    assert not trusts(steps[0], steps[3]), "the old authority is gone"
    assert not trusts(steps[3], steps[0])


def test_renewed_certificates_name_every_address(directory: Path) -> None:
    path = directory / "a.toml"
    path.write_text(path.read_text() + 'advertise = "a.public.example:7401"\n')
    before = (directory / "a.pem").read_bytes()
    done = run("certificates", "renew", directory, "--days", "30")
    assert done.exit_code == 0, done.output
    assert (directory / "a.pem").read_bytes() != before
    assert reaches(directory, "a", "a.public.example")


def test_the_certificate_of_a_node_that_joins_names_the_address_it_listens_on(directory: Path) -> None:
    path = directory / "d.toml"
    path.write_text('node = "d"\nlisten = "10.0.0.4:7401"\njoin = ["10.0.0.1:7401"]\n')
    assert run("certificates", "renew", directory).exit_code == 0
    assert reaches(directory, "d", "10.0.0.4")

    path.write_text('node = "d"\nlisten = "0.0.0.0:7401"\njoin = ["10.0.0.1:7401"]\n')
    refused = run("certificates", "renew", directory)
    assert refused.exit_code == 64
    assert "listen = '0.0.0.0:7401' names no address" in refused.output
    assert "add advertise" in refused.output


def reaches(directory: Path, node: str, host: str) -> bool:
    """Return True if a client that dials ``host`` accepts the node's certificate.

    Raises:
        ssl.SSLCertVerificationError: the certificate is not for that host.
    """
    cert, key = (str(directory / f"{node}{end}") for end in (".pem", ".key"))
    below = Tunnel(server_context(cert, key, ""), server_side=True)
    above = Tunnel(client_context(str(directory / "ca.pem")), host=host)
    above.handshake(b"")
    below.handshake(above.unsent())
    return above.handshake(below.unsent())


def test_no_certificate_outlives_its_authority(directory: Path) -> None:
    before = (directory / "a.pem").read_bytes()
    refused = run("certificates", "renew", directory, "--days", "3650")
    assert refused.exit_code == 64
    assert (
        "give --days 3649 at most, or make a new one by `quorumq certificates add-authority`"
        in refused.output
    )
    assert (directory / "a.pem").read_bytes() == before
    assert run("certificates", "renew", directory, "--days", "3649").exit_code == 0


def test_files_that_do_not_belong_together_are_refused(directory: Path, tmp_path: Path) -> None:
    assert "quorumq init --tls" in run("certificates", "renew", tmp_path).output
    other = copied(directory, "other")
    assert run("certificates", "add-authority", other).exit_code == 0
    (directory / "ca.key").write_bytes((other / "ca.key").read_bytes())
    refused = run("certificates", "renew", directory)
    assert (refused.exit_code, "not the key of the first certificate" in refused.output) == (64, True)
    for path in other.glob("*.toml"):
        path.unlink()
    assert "no node's configuration" in run("certificates", "renew", other).output


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    for command in (("init", tmp_path / "new", "--tls"), ("certificates", "renew", tmp_path)):
        refused = run(*command)
        assert (refused.exit_code, "pip install 'quorumq[tls]'" in refused.output) == (64, True)
    assert not (tmp_path / "new").exists()


def test_other_keys_are_set_in_every_file(tmp_path: Path) -> None:
    settings = ("--set", "http_listen=127.0.0.1:7481", "--set", "hold_time_max=30", "--set", "insecure=true")
    assert run("init", tmp_path / "new", *settings).exit_code == 0
    config = load_config(tmp_path / "new" / "n2.toml")
    assert (config.http_listen, config.hold_time_max, config.insecure) == ("127.0.0.1:7481", 30.0, True)
    for wrong in ("hold_time", "node=x", "hold_time_maxx=3", "hold_time_max=long"):
        refused = run("init", tmp_path / "wrong", "--set", wrong)
        assert refused.exit_code in (64, 78)
        assert wrong.partition("=")[0] in refused.output
    assert not (tmp_path / "wrong").exists()


def test_a_gateway_refuses_a_certificate_with_another_key_by_the_names_of_the_files(directory: Path) -> None:
    """It said that it could not listen at its address, and named no file."""
    pytest.importorskip("hypercorn", reason="the extra quorumq[gateway] is not installed")
    for key in ("b.key", "clients.toml"):
        files = ("--tls-cert", directory / "a.pem", "--tls-key", directory / key)
        refused = run("gateway", "--listen", "127.0.0.1:0", *files)
        assert refused.exit_code == 64
        assert all(str(directory / name) in refused.output for name in ("a.pem", key))


def test_a_gateway_does_not_start_without_the_authorities_of_its_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It started, and answered each request by 400 with a path of its machine."""
    pytest.importorskip("hypercorn", reason="the extra quorumq[gateway] is not installed")
    monkeypatch.setenv("QUORUMQ_TLS_CA", str(tmp_path / "none.pem"))
    refused = run("gateway", "--listen", "127.0.0.1:0")
    assert refused.exit_code == 64
    assert "none.pem" in refused.output
