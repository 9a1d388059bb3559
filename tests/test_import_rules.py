"""Imports point one way: core <- wire <- storage <- node; wire <- client; cli on top (docs/architecture.md)."""

from __future__ import annotations

import ast
import functools
import graphlib
import importlib
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

OURS = {
    "quorumq.core": {"quorumq.core"},
    "quorumq.driver": {"quorumq.driver", "quorumq.core"},
    "quorumq.history": {"quorumq.core", "quorumq.history"},
    "quorumq.audit": {"quorumq.core", "quorumq.history", "quorumq.audit"},
    "quorumq.commands": {"quorumq.core"},
    "quorumq.wire": {"quorumq.core", "quorumq.wire"},
    "quorumq.storage": {"quorumq.core", "quorumq.wire", "quorumq.storage"},
    "quorumq.node": {
        "quorumq.core", "quorumq.driver", "quorumq.wire", "quorumq.storage", "quorumq.history", "quorumq.node",
    },
    "quorumq.client": {"quorumq.core", "quorumq.wire", "quorumq.history", "quorumq.client"},
    "quorumq.brokers": {"quorumq.core", "quorumq.client", "quorumq.brokers"},
    "quorumq.gateway": {"quorumq.core", "quorumq.wire", "quorumq.node", "quorumq.client", "quorumq.gateway"},
    "quorumq.testing": {"quorumq.core", "quorumq.driver", "quorumq.wire", "quorumq.client", "quorumq.testing"},
    "quorumq.cli": {
        "quorumq.core", "quorumq.wire", "quorumq.storage", "quorumq.node", "quorumq.client", "quorumq.history",
        "quorumq.commands", "quorumq.cli", "quorumq.audit", "quorumq.gateway",
    },
    "quorumq.lab": {"quorumq"},
    "sim": {
        "sim", "quorumq.core", "quorumq.driver", "quorumq.wire", "quorumq.storage", "quorumq.history", "quorumq.node",
        "quorumq.client", "quorumq.commands", "quorumq.lab",
    },
    "spark": {
        "spark", "quorumq.core", "quorumq.wire", "quorumq.storage", "quorumq.history", "quorumq.client",
        "quorumq.commands", "quorumq.audit",
    },
    "spark.transforms": {"spark"},
}  # fmt: skip
"""Packages of this project that each package may import."""

CORE_MAY_USE = {
    "__future__", "abc", "array", "bisect", "collections", "contextlib", "dataclasses", "difflib", "enum", "functools",
    "hashlib", "heapq", "itertools", "operator", "random", "sortedcontainers", "struct", "typing",
    "fnmatch",
    "math",
}  # fmt: skip
"""Outside of itself the core imports only modules that neither read a clock nor touch the world; so does the driver."""

PURE = ("quorumq.core", "quorumq.driver")

REMEDY = {
    "time": "take `now` as an argument",
    "random": "take `rng` as an argument",
    "os": "return an effect, and let the node's shell do it",
    "trio": "return an effect, and let the node's shell do it",
    "uuid": "let the driver pass random bits in",
    "cbor2": "leave bytes to quorumq/wire",
}

WITHOUT_CIRCLES = [
    "quorumq.core", "quorumq.wire", "quorumq.storage", "quorumq.node", "quorumq.history", "quorumq.audit",
    "quorumq.client", "quorumq.gateway", "quorumq.testing", "quorumq.cli", "quorumq.lab", "sim",
]  # fmt: skip
"""Packages whose files can be read from the bottom up: none of them imports one that imports it, directly or not."""

FLOORS = {
    "quorumq.core": ["values", "messages", "cluster", "partition", "requests", "recovery", "node"],
    "quorumq.client": ["transport", "base", "produce", "consume", "admin"],
}
"""Packages within a package, from the bottom up: each imports itself and those before it."""

HEAVY = {"pyspark", "pyarrow", "pandas", "matplotlib"}
FRAMEWORKS = {"celery", "kombu", "dramatiq", "taskiq"}
SERVERS = {"starlette", "hypercorn", "jinja2", "multipart", "anyio"}


def modules(package: str) -> Iterator[Path]:
    path = ROOT.joinpath(*package.split("."))
    yield from sorted(path.rglob("*.py")) if path.is_dir() else [path.with_suffix(".py")]


@functools.cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """Return all nodes of a file. Most tests below read the same files."""
    return tuple(ast.walk(ast.parse(path.read_text())))


def imports(path: Path) -> Iterator[tuple[int, str]]:
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, source_of(node, path)


def source_of(node: ast.ImportFrom, path: Path) -> str:
    """The module that names are imported from. Spark's files name each other relatively, all others by full names."""
    within_spark = path.relative_to(ROOT).parts[0] == "spark"
    if not node.level:
        assert not (within_spark and is_within(node.module or "", {"spark"})), (
            f"{path}:{node.lineno}: write a relative import: installed, this is quorumq.spark (docs/decisions/0012)"
        )
        return node.module or ""
    assert within_spark, f"{path}:{node.lineno}: relative import; write the full name"
    package = path.relative_to(ROOT).parts[: -node.level]
    return ".".join([*package, *([node.module] if node.module else [])])


def is_within(name: str, packages: set[str]) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


@pytest.mark.parametrize("package", OURS)
def test_imports_point_one_way(package: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}: {package} may use {', '.join(sorted(OURS[package]))}"
        for path in modules(package)
        for line, name in imports(path)
        if is_within(name, {"quorumq", "sim", "spark", "tests"}) and not is_within(name, OURS[package])
    ]
    assert not wrong, "\n".join(wrong)


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@pytest.mark.parametrize("package", WITHOUT_CIRCLES)
def test_no_file_imports_one_that_imports_it(package: str) -> None:
    """Nor by way of others, nor for types alone, nor inside of a function. A circle over several packages cannot be:
    imports between those point one way."""
    graph: dict[str, set[str]] = {module_of(path): set() for path in modules(package)}
    for path in modules(package):
        for node in nodes_of(path):
            if isinstance(node, ast.ImportFrom):
                named = {f"{node.module}.{alias.name}" for alias in node.names} & set(graph)
                graph[module_of(path)] |= named or {node.module or ""} & set(graph)
            elif isinstance(node, ast.Import):
                graph[module_of(path)] |= {alias.name for alias in node.names} & set(graph)
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        pytest.fail("a circle: " + " is imported by ".join(error.args[1]))


@pytest.mark.parametrize("package", FLOORS)
def test_packages_import_downwards(package: str) -> None:
    floors = FLOORS[package]
    folders = {
        path.name for path in ROOT.joinpath(*package.split(".")).iterdir() if (path / "__init__.py").exists()
    }
    assert folders == set(floors), (
        f"{package}: give each of its packages a floor, here and in docs/architecture.md"
    )
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}: move the name down to {lowest} or below it"
        for number, lowest in enumerate(floors)
        for path in modules(f"{package}.{lowest}")
        for line, name in imports(path)
        if is_within(name, {package})
        and name != package
        and not is_within(name, {f"{package}.{one}" for one in floors[: number + 1]})
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("package", PURE)
def test_the_core_touches_nothing_outside(package: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}: {REMEDY.get(name.split('.')[0], 'the core is pure')}"
        for path in modules(package)
        for line, name in imports(path)
        if not name.startswith("quorumq.") and name.split(".")[0] not in CORE_MAY_USE
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("package", PURE)
def test_the_core_draws_no_randomness_of_its_own(package: str) -> None:
    """`random` is imported for the type of `rng`; calling the module's functions would be hidden randomness."""
    for path in modules(package):
        for node in nodes_of(path):
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id == "random"
            ):
                assert node.attr == "Random", f"{path.name}:{node.lineno} uses random.{node.attr}: take `rng`"


@pytest.mark.parametrize("package", PURE)
def test_the_core_never_iterates_over_a_set(package: str) -> None:
    """The order of a set is not the order of anything: one seed would give two traces."""
    for path in modules(package):
        for node in nodes_of(path):
            loops = [node.iter] if isinstance(node, ast.For | ast.comprehension) else []
            for loop in loops:
                named = (
                    isinstance(loop, ast.Call) and isinstance(loop.func, ast.Name) and loop.func.id == "set"
                )
                if named or isinstance(loop, ast.Set | ast.SetComp):
                    pytest.fail(f"{path.name}:{loop.lineno} iterates over a set: use dict.fromkeys or sorted")


def test_the_shell_decides_nothing() -> None:
    """node/ routes; quorums, holds and tombstones are decided in core/."""
    words = (
        "majority", "is_superseded", "GroupView", "merge_records", "Kind.ACKED", "Kind.DEAD", "record_rank",
    )  # fmt: skip
    for path in modules("quorumq.node"):
        tree = ast.parse(path.read_text())
        names = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name)]
        names += [node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
        decided = [word for word in words if word.split(".")[-1] in names]
        assert not decided, (
            f"{path.name} speaks of {', '.join(decided)}: decide that in core/ and route it here"
        )


@pytest.mark.parametrize(
    "package", [package for package in OURS if package.split(".")[0] not in ("sim", "spark")]
)
def test_nothing_heavy_is_imported(package: str) -> None:
    for path in modules(package):
        for line, name in imports(path):
            extras = HEAVY | FRAMEWORKS | SERVERS
            if package == "quorumq.brokers":
                extras -= FRAMEWORKS
            if package == "quorumq.gateway":
                extras -= SERVERS
            assert name.split(".")[0] not in extras, f"{path.name}:{line} imports {name}, which is an extra"


@pytest.mark.parametrize("package", [name for name in OURS if name.startswith("quorumq.")])
def test_only_users_import_brokers_and_testing(package: str) -> None:
    """A server has no framework installed, and no pytest."""
    for path in modules(package):
        for line, name in imports(path):
            for extra in ("quorumq.brokers", "quorumq.testing"):
                assert package == extra or not is_within(name, {extra}), f"{path.name}:{line} imports {name}"


def test_effects_are_carried_out_by_one_module() -> None:
    """The driver alone lets a core step and carries out its effects, so that the proven code is the code that runs."""
    for package in ("quorumq.node", "quorumq.storage", "sim"):
        for path in modules(package):
            for node in nodes_of(path):
                if isinstance(node, ast.Attribute) and node.attr == "step":
                    owner = ast.unparse(node.value)
                    assert not owner.endswith("core"), (
                        f"{path.name}:{node.lineno}: let quorumq/driver.py do that"
                    )


def test_no_two_files_of_messages_define_one_name() -> None:
    """`quorumq.core.messages` has the names of all its files by ``import *``: the later one would hide the other."""
    files: dict[str, str] = {}
    for path in sorted((ROOT / "quorumq/core/messages").glob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                other = files.setdefault(node.name, path.name)
                assert other == path.name, f"{node.name} is defined in {other} and in {path.name}: rename one"


def test_only_what_runs_clusters_for_people_imports_the_command_line_and_nothing_imports_that() -> None:
    for package in OURS:
        runs = {"quorumq.cli": {"quorumq.lab"}, "quorumq.lab": set(), "sim": {"quorumq.cli"}}
        above = runs.get(package, {"quorumq.cli", "quorumq.lab"})
        for path in modules(package):
            for line, name in imports(path):
                assert not is_within(name, above), f"{path.name}:{line} imports {name}"


def imported(path: Path) -> Iterator[str]:
    """The modules of this project that a file imports, for types and inside of functions too."""
    for node in nodes_of(path):
        if isinstance(node, ast.ImportFrom) and is_within(node.module or "", {"quorumq", "sim"}):
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield (
                    whole
                    if ROOT.joinpath(*whole.split(".")).with_suffix(".py").exists()
                    else node.module or ""
                )


@pytest.mark.parametrize("top", ["quorumq", "sim", "spark"])
def test_every_import_finds_what_it_names(top: str) -> None:
    """Also those inside of functions, which fail only when the command runs."""
    for path in modules(top):
        for node in nodes_of(path):
            if isinstance(node, ast.ImportFrom) and is_within(
                source_of(node, path), {"quorumq", "sim", "spark"}
            ):
                try:
                    import_names(source_of(node, path), [alias.name for alias in node.names])
                except ModuleNotFoundError as error:
                    if (error.name or "").split(".")[0] not in FRAMEWORKS | SERVERS:  # `make soak` has them
                        raise AssertionError(f"{path}:{node.lineno}: {error}") from error


def import_names(source: str, names: list[str]) -> None:
    """Import names from a module, or modules from a package."""
    module = importlib.import_module(source)
    for name in names:
        if name != "*" and not hasattr(module, name):  # then it is a module of its own
            importlib.import_module(f"{source}.{name}")


def test_the_wheel_has_every_package_of_ours_and_no_name_that_is_not_ours() -> None:
    said = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert said["package-dir"] == {"quorumq.spark": "spark"}
    packages = [
        path.parent.relative_to(ROOT).parts
        for top in ("quorumq", "spark")
        for path in ROOT.glob(f"{top}/**/__init__.py")
    ]
    assert sorted(said["packages"]) == sorted(
        ".".join(parts).replace("spark", "quorumq.spark", parts[0] == "spark") for parts in packages
    )
