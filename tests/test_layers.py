"""The layers of the package: a module imports from its own row of the table and the rows above it, never from
below, nor what its row knows nothing of; and what must start small imports nothing heavy."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine import ROOT, printed

PACKAGE = ROOT / "sortshuffle"
ROWS = [
    {"errors", "options", "metrics"},
    {"memory"},
    {"format"},
    {"storage"},
    {"payload"},
    {"partitioner"},
    {"write"},
    {"read"},
    {"service"},
    {"compute"},
    {"spark"},
    {"cli"},
]
ROW_OF = {name: number for number, row in enumerate(ROWS) for name in row}
# without the package's own `__init__`: its lazy names lead to any row (a test below keeps them lazy)
MODULES = sorted(set(PACKAGE.rglob("*.py")) - {PACKAGE / "__init__.py"})
HEAVY = {"numpy", "pandas", "pyarrow", "pyspark", "py4j", "fsspec", "xxhash", "rich"}
ARROW = {"numpy", "pyarrow"}
# Libraries from outside the standard library that a package may import
LIBRARIES = {
    "errors": set(),
    "options": set(),
    "metrics": set(),
    "memory": ARROW,
    "format": {"numpy", "xxhash"},
    "storage": {"xxhash", "fsspec", *ARROW},
    "payload": ARROW,
    "partitioner": {"xxhash", *ARROW},
    "write": ARROW,
    "read": ARROW,
    "service": {"xxhash", "fsspec", "prometheus_client", *ARROW},
    "compute": {"pandas", *ARROW},
}
NETWORK = {"socket", "socketserver", "ssl", "http", "urllib", "asyncio", "selectors"}
INPUT_OUTPUT = {"os", "io", "pathlib", "tempfile", "shutil", "mmap", "threading", "subprocess", *NETWORK}
# Standard modules that a package "knows nothing of"
FORBIDDEN = {
    "memory": INPUT_OUTPUT - {"threading", "mmap", "os"},  # os: one environment variable
    "format": INPUT_OUTPUT,
    "payload": INPUT_OUTPUT,
    "partitioner": INPUT_OUTPUT,
    "write": NETWORK,
    "read": NETWORK,
    "compute": INPUT_OUTPUT,
}


def package_of(module: Path) -> str:
    """The name in the table that a module's file belongs to."""
    return module.relative_to(PACKAGE).with_suffix("").parts[0]


def imported(tree: ast.AST, module: Path) -> Iterator[str]:
    """Full names of everything that a module imports, wherever in it the import stands."""
    here = ["sortshuffle", *module.relative_to(PACKAGE).parent.parts]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = here[: len(here) + 1 - node.level] if node.level else []
            source = ".".join([*above, *filter(None, [node.module])])
            yield source
            yield from (f"{source}.{alias.name}" for alias in node.names)


def imports_of(module: Path) -> set[str]:
    return set(imported(ast.parse(module.read_text()), module))


def packages_in(names: set[str]) -> set[str]:
    """The names in the table that are imported."""
    return {name.split(".")[1] for name in names if name.startswith("sortshuffle.")} & set(ROW_OF)


def wrong_imports(package: str, names: set[str]) -> set[str]:
    return {each for each in packages_in(names) if ROW_OF[each] > ROW_OF[package]}


@pytest.mark.parametrize("module", MODULES, ids=lambda module: str(module.relative_to(ROOT)))
def test_a_module_imports_from_its_row_and_the_rows_above(module: Path) -> None:
    package = package_of(module)
    assert package in ROW_OF, f"{package} is not in the table of layers: give it a row"
    assert wrong_imports(package, imports_of(module)) == set()


@pytest.mark.parametrize("module", MODULES, ids=lambda module: str(module.relative_to(ROOT)))
def test_a_module_does_not_import_what_its_row_knows_nothing_of(module: Path) -> None:
    package = package_of(module)
    used = {name.split(".")[0] for name in imports_of(module)}
    assert used & FORBIDDEN.get(package, set()) == set()
    if package in LIBRARIES:
        known = HEAVY | {"click", "psutil"}
        assert used & known <= LIBRARIES[package]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("from sortshuffle.spark.frame import ShuffleFrame", {"spark"}),
        ("import sortshuffle.read.gate", {"read"}),
        ("from sortshuffle import cli", {"cli"}),
        ("if TYPE_CHECKING:\n    from sortshuffle.write.encoders import Encoder", {"write"}),
        ("def f():\n    import sortshuffle.compute.groups as groups", {"compute"}),
        ("from ..payload import arrow", {"payload"}),
        ("from .. import partitioner", {"partitioner"}),
        ("from sortshuffle.errors import UsageError\nfrom .reader import Extent\nimport os", set()),
    ],
)
def test_the_control_imports_from_below_are_found_wherever_they_stand(text: str, found: set[str]) -> None:
    names = set(imported(ast.parse(text), PACKAGE / "storage" / "reader.py"))
    assert wrong_imports("storage", names) == found


def test_every_package_is_found() -> None:
    packages = {package_of(module) for module in MODULES}
    assert {"errors", "memory", "format", "storage", "payload", "write", "read", "spark"} <= packages


@pytest.mark.parametrize(
    ("module", "allowed"),
    [
        ("sortshuffle", set()),
        ("sortshuffle.errors", set()),
        ("sortshuffle.options", set()),
        ("sortshuffle.metrics", set()),
        ("sortshuffle.storage.lifetime", set()),
        ("sortshuffle.storage.janitor", set()),
        ("sortshuffle.memory.limit", set()),
        ("sortshuffle.memory.budget", set()),
        ("sortshuffle.memory.shared_budget", set()),
        ("sortshuffle.storage.shared_home", set()),
        ("sortshuffle.service.rendezvous", set()),
        ("sortshuffle.service.supervisor", set()),
        ("sortshuffle.service.jvm.launch", set()),
        ("sortshuffle.service.jvm.protocol", {"numpy"}),
        ("sortshuffle.format.index", {"numpy", "xxhash"}),
        ("sortshuffle.storage.writer", {"numpy", "xxhash"}),
        ("sortshuffle.cli.main", set()),
    ],
)
def test_importing_a_module_does_not_load_what_it_can_do_without(module: str, allowed: set[str]) -> None:
    loaded = printed(f"import sys, {module}; print(*sys.modules)")
    assert module in loaded
    assert {name.split(".")[0] for name in loaded} & HEAVY <= allowed


@pytest.mark.parametrize(
    "module", sorted((PACKAGE / "cli").glob("*.py")), ids=lambda module: f"cli/{module.name}"
)
def test_the_command_line_loads_spark_only_inside_the_commands_that_need_it(module: Path) -> None:
    tree = ast.parse(module.read_text())
    at_import = {
        name.split(".")[0]
        for node in tree.body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in imported(ast.Module([node], []), module)
    }
    assert not at_import & {"pyspark", "py4j"}
