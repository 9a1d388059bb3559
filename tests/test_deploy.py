"""Files in docs/deploy and the Containerfile: commands, ports and paths are those of quorumq."""

from __future__ import annotations

import configparser
import re
import runpy
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click
import pytest
import yaml
from click.testing import CliRunner

from quorumq.cli.main import COMMANDS, main
from quorumq.node.config import ConfigError, ServeConfig, load_config
from quorumq.wire.address import NODES_VARIABLE
from quorumq.wire.hello import TOKEN_VARIABLE
from quorumq.wire.tls import CA_VARIABLE
from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "docs" / "deploy"
UNITS = sorted(DEPLOY.glob("*.service"))
CLIENT: Final = {NODES_VARIABLE, TOKEN_VARIABLE, CA_VARIABLE}
GATEWAY_GRACE_S: Final = 10.0
"""Equal to quorumq.gateway.serve.GRACE_S, whose module needs an extra."""
CONTAINERFILE = (ROOT / "Containerfile").read_text()


def parsed(arguments: list[str]) -> dict[str, Any]:
    """Return the options of a command line of `quorumq`, by name.

    Raises:
        click.UsageError: there is no such command or option.
    """
    name, *rest = arguments
    assert name in COMMANDS, f"there is no command {name}"
    command = main.get_command(click.Context(main), name)
    assert command is not None
    if isinstance(command, click.Group):
        name, *rest = rest
        command = command.commands[name]
    options, _, _ = command.make_parser(click.Context(command)).parse_args(rest)
    return dict(options)


def initialised(directory: Path, arguments: list[str]) -> dict[str, ServeConfig]:
    """Run `quorumq init` into a directory; return the nodes' configurations by path."""
    assert arguments[0] == "init"
    done = CliRunner().invoke(main, ["init", str(directory), *arguments[2:]])
    assert done.exit_code == 0, done.output
    files = [path for path in sorted(directory.glob("*.toml")) if path.name != "clients.toml"]
    return {f"/etc/quorumq/{path.name}": load_config(path) for path in files}


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


# ------------------------------------------------------------------------------------ compose


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return dict(yaml.safe_load((DEPLOY / "compose.yaml").read_text()))


def test_compose_starts_the_nodes_that_it_initialises(compose: dict[str, Any], tmp_path: Path) -> None:
    services = compose["services"]
    configs = initialised(tmp_path, services["init"]["command"])
    nodes = {
        name: service for name, service in services.items() if service.get("command", [""])[0] == "serve"
    }
    assert {parsed(node["command"])["config"] for node in nodes.values()} == {*configs}
    for name, node in nodes.items():
        config = configs[parsed(node["command"])["config"]]
        assert (config.node, port_of(config.listen)) == (name, 7401)
        assert not config.exposed
        assert f"{name}:{config.data_dir}" in node["volumes"]
        assert f"http://{config.http_listen}/ready" in node["healthcheck"]["test"][-1]
        assert float(node["stop_grace_period"].rstrip("s")) > config.stop_timeout
    (addresses,) = {tuple(config.nodes.values()) for config in configs.values()}
    assert compose["x-client"][NODES_VARIABLE] == ",".join(addresses)
    assert {*compose["x-client"]} == CLIENT
    named = {volume.split(":")[0] for service in services.values() for volume in service["volumes"]}
    assert named - {"./tasks.py"} == {*compose["volumes"]}


def test_compose_gives_its_worker_time_to_end(compose: dict[str, Any]) -> None:
    worker = compose["services"]["worker"]
    options = parsed(worker["command"])
    assert float(worker["stop_grace_period"].rstrip("s")) > float(options["grace"])
    gateway = compose["services"]["gateway"]
    options = parsed(gateway["command"])
    assert {options["listen"].replace("0.0.0.0", "127.0.0.1") + ":7480"} == {*gateway["ports"]}
    assert {*gateway["environment"]} == CLIENT
    assert callable(runpy.run_path(str(DEPLOY / "tasks.py"))["resize"])


# --------------------------------------------------------------------------------- Kubernetes


@pytest.fixture(scope="module")
def kubernetes() -> dict[tuple[str, str], dict[str, Any]]:
    parts = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
    return {(part["kind"], part["metadata"]["name"]): part for part in parts}


def commented(name: str) -> list[list[str]]:
    """Return the commands of `quorumq` in a file's comments."""
    comments = re.findall(r"^#   (.*)$", (DEPLOY / name).read_text(), re.MULTILINE)
    lines = "\n".join(comments).replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("quorumq ")]


def test_pods_start_with_the_files_of_the_comment(
    kubernetes: dict[tuple[str, str], dict[str, Any]], tmp_path: Path
) -> None:
    command, *access = commented("kubernetes.yaml")
    for arguments in access:
        assert parsed(arguments)["path"] == "orders/clients.toml"
    configs = initialised(tmp_path, command)
    state = kubernetes["StatefulSet", "quorumq"]["spec"]
    service = kubernetes["Service", "quorumq"]["spec"]
    (container,) = state["template"]["spec"]["containers"]
    assert {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}} in container["env"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {port["name"]: port["port"] for port in service["ports"]}
    for number in range(state["replicas"]):
        pod = f"quorumq-{number}"
        path = parsed(container["args"])["config"].replace("$(NODE)", pod)
        config = configs.pop(path)
        assert (config.node, config.data_dir) == (pod, mounts["data"])
        assert config.nodes[pod] == f"{pod}.{state['serviceName']}:{ports['quorumq']}"
        assert (port_of(config.listen), port_of(config.http_listen)) == (ports["quorumq"], ports["http"])
        assert not config.exposed
        assert state["template"]["spec"]["terminationGracePeriodSeconds"] > 10 * config.stop_timeout
    assert not configs, "each file has a pod"


def test_pods_keep_a_majority_and_find_each_other(kubernetes: dict[tuple[str, str], dict[str, Any]]) -> None:
    service = kubernetes["Service", "quorumq"]["spec"]
    state = kubernetes["StatefulSet", "quorumq"]["spec"]
    assert (service["clusterIP"], service["publishNotReadyAddresses"]) == ("None", True)
    assert state["podManagementPolicy"] == "Parallel"
    labels = state["template"]["metadata"]["labels"]
    assert labels == service["selector"] == state["selector"]["matchLabels"]
    budget = kubernetes["PodDisruptionBudget", "quorumq"]["spec"]
    assert (budget["maxUnavailable"], budget["selector"]["matchLabels"]) == (1, labels)
    spec = state["template"]["spec"]
    (container,) = spec["containers"]
    probes = {name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
    assert {name: probe["path"] for name, probe in probes.items()} == {
        "startup": "/live", "liveness": "/live", "readiness": "/ready",
    }  # fmt: skip
    assert {probe["port"] for probe in probes.values()} == {"http"}
    (volume,) = spec["volumes"]
    assert volume["secret"]["defaultMode"] & 0o007 == 0, "a node refuses a secret that all users can read"


@pytest.mark.parametrize("name", ["resize", "gateway"])
def test_clients_in_pods_reach_the_nodes(
    kubernetes: dict[tuple[str, str], dict[str, Any]], name: str
) -> None:
    spec = kubernetes["Deployment", name]["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    grace = parsed(container["args"]).get("grace") or GATEWAY_GRACE_S
    assert spec["terminationGracePeriodSeconds"] > float(grace)
    values = {entry["name"]: entry.get("value", "") for entry in container["env"]}
    assert {*values} == CLIENT
    addresses = [f"quorumq-{number}.quorumq:7401" for number in range(3)]
    assert values[NODES_VARIABLE].split(",") == addresses
    assert values[CA_VARIABLE] == f"{container['volumeMounts'][0]['mountPath']}/ca.pem"


# -------------------------------------------------------------------------------------- systemd


def unit(path: Path) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=True, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(path.read_text())
    return parser


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_runs_a_command_that_is_there(path: Path) -> None:
    service = unit(path)["Service"]
    program, *arguments = shlex.split(service["ExecStart"].replace("\\\n", " "))
    assert Path(program).name == "quorumq"
    options = parsed(arguments)
    assert float(service["TimeoutStopSec"]) > float(options.get("grace") or GATEWAY_GRACE_S)
    assert unit(path)["Unit"]["StartLimitIntervalSec"] == "0"


def test_the_unit_of_a_node_ends_where_a_restart_cannot_help() -> None:
    service = unit(DEPLOY / "quorumq.service")["Service"]
    assert service["RestartPreventExitStatus"] == str(ConfigError.exit_code)
    assert service["StateDirectory"] == "quorumq", "the page's --data-dir /var/lib/quorumq"


@pytest.mark.soak
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_systemd_accepts_a_unit(path: Path, tmp_path: Path) -> None:
    """systemd names keys that it does not know, and ends with 0."""
    text = re.sub(r"(?m)^ExecStart=\S+", "ExecStart=/bin/true", path.read_text())
    (tmp_path / path.name).write_text(text)
    command = ["systemd-analyze", "verify", "--man=no", str(tmp_path / path.name.replace("@", "@1"))]
    if "@" in path.name:
        (tmp_path / path.name.replace("@", "@1")).symlink_to(path.name)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    except FileNotFoundError:
        pytest.skip("needs systemd-analyze")
    ours = [line for line in done.stderr.splitlines() if "quorumq" in line]
    assert (done.returncode, ours) == (0, [])


# ---------------------------------------------------------------------------------------- image


def words(instruction: str) -> Iterator[list[str]]:
    for line in re.findall(rf"^{instruction} (.*)$", CONTAINERFILE, re.MULTILINE):
        yield line.split()


def test_the_image_is_made_of_files_that_are_there() -> None:
    for *sources, _ in words("COPY"):
        for source in sources:
            assert source.startswith(("--from=", "/opt/")) or (ROOT / source).exists(), source
    assert list(words("USER")) == [["65532:65532"]]
    assert list(words("EXPOSE")) == [["7401", "7480", "7481"]]
    assert 'ENTRYPOINT ["quorumq"]' in CONTAINERFILE, "no shell gets the signal in its place"
    assert {word for line in words("RUN") for word in line if word.endswith(".txt")} == {".ci/image.txt"}
