"""The layers of the package: a module imports from its own row of the table and the rows above it, never from
below, nor what its row knows nothing of; imports go in no circle; and what must start small imports nothing
heavy."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from engine import ROOT, printed

PACKAGE = ROOT / "sortshuffle"
ROWS = [
    {"version", "errors", "options", "metrics", "calls", "html_page"},
    {"memory"},
    {"format"},
    {"storage"},
    {"homes"},
    {"payload"},
    {"partitioner"},
    {"writing"},
    {"reading"},
    {"service"},
    {"engine"},
    {"compute"},
    {"report"},
    {"spark"},
    {"cli"},
]
ROW_OF = {name: number for number, row in enumerate(ROWS) for name in row}
# without the package's own `__init__`: its lazy names lead to any row (a test below keeps them lazy)
MODULES = sorted(set(PACKAGE.rglob("*.py")) - {PACKAGE / "__init__.py"})
HEAVY = {"numpy", "pandas", "pyarrow", "pyspark", "py4j", "fsspec", "xxhash", "rich"}
OUTSIDE = HEAVY | {"click", "psutil"}
ARROW = {"numpy", "pyarrow"}
# Libraries from outside the standard library that a package may import
LIBRARIES = {
    "version": set(),
    "calls": set(),
    "html_page": set(),
    "errors": set(),
    "options": set(),
    "metrics": set(),
    "memory": ARROW,
    "format": {"numpy", "xxhash"},
    "storage": {"xxhash", "fsspec", *ARROW},
    "homes": {"fsspec"},
    "payload": ARROW,
    "partitioner": {"xxhash", *ARROW},
    "writing": ARROW,
    "reading": ARROW,
    "service": {"xxhash", "fsspec", "prometheus_client", *ARROW},
    "engine": ARROW,
    "compute": {"pandas", *ARROW},
    "report": ARROW,
}
SEAM = "sortshuffle.calls"
NETWORK = {"socket", "socketserver", "ssl", "http", "urllib", "asyncio", "selectors"}
INPUT_OUTPUT = {"os", "io", "pathlib", "tempfile", "shutil", "mmap", "threading", "subprocess", *NETWORK}
# Standard modules that a package "knows nothing of"
FORBIDDEN = {
    "memory": INPUT_OUTPUT - {"threading", "mmap", "os"},  # os: one environment variable
    "format": INPUT_OUTPUT,
    "payload": INPUT_OUTPUT,
    "partitioner": INPUT_OUTPUT,
    "writing": NETWORK,
    "reading": NETWORK,
    "compute": INPUT_OUTPUT,
}


def package_of(module: Path) -> str:
    """The name in the table that a module's file belongs to."""
    return module.relative_to(PACKAGE).with_suffix("").parts[0]


def import_statements(tree: ast.AST, module: Path) -> Iterator[tuple[str, list[str]]]:
    """What a module imports, wherever in it the import stands: a full name, and what is taken out of that."""
    here = ["sortshuffle", *module.relative_to(PACKAGE).parent.parts]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, []) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = here[: len(here) + 1 - node.level] if node.level else []
            source = ".".join([*above, *filter(None, [node.module])])
            yield source, [f"{source}.{alias.name}" for alias in node.names]


def imported(tree: ast.AST, module: Path) -> Iterator[str]:
    """Full names of everything that a module imports."""
    for source, names in import_statements(tree, module):
        yield from (source, *names)


def imports_of(module: Path) -> set[str]:
    return set(imported(ast.parse(module.read_text()), module))


def packages_in(names: set[str]) -> set[str]:
    """The names in the table that are imported."""
    return {name.split(".")[1] for name in names if name.startswith("sortshuffle.")} & set(ROW_OF)


def wrong_imports(package: str, names: set[str]) -> set[str]:
    return {each for each in packages_in(names) if ROW_OF[each] > ROW_OF[package]}


IMPORTS = {str(module.relative_to(ROOT)): imports_of(module) for module in MODULES}
PACKAGES = {str(module.relative_to(ROOT)): package_of(module) for module in MODULES}


def test_every_module_is_in_the_table_of_layers() -> None:
    assert {module: package for module, package in PACKAGES.items() if package not in ROW_OF} == {}


def test_a_module_imports_from_its_row_and_the_rows_above() -> None:
    wrong = {module: wrong_imports(PACKAGES[module], names) for module, names in IMPORTS.items()}
    assert {module: names for module, names in wrong.items() if names} == {}


def test_a_module_does_not_import_what_its_row_knows_nothing_of() -> None:
    wrong = {module: unknown_imports(PACKAGES[module], names) for module, names in IMPORTS.items()}
    assert {module: names for module, names in wrong.items() if names} == {}


def unknown_imports(package: str, names: set[str]) -> set[str]:
    used = {name.split(".")[0] for name in names}
    libraries = LIBRARIES.get(package, OUTSIDE)
    forbidden = FORBIDDEN.get(package, set())
    seam = {SEAM} & names if "os" in forbidden else set()
    return seam | used & (forbidden | (OUTSIDE - libraries))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("from sortshuffle.spark.frame.shuffle_frame import ShuffleFrame", {"spark"}),
        ("import sortshuffle.reading.gate", {"reading"}),
        ("from sortshuffle import cli", {"cli"}),
        ("if TYPE_CHECKING:\n    from sortshuffle.writing.encoders import Encoder", {"writing"}),
        ("def f():\n    import sortshuffle.compute.groups.groups as groups", {"compute"}),
        ("from ..payload import arrow", {"payload"}),
        ("from .. import partitioner", {"partitioner"}),
        ("from sortshuffle.errors import UsageError\nfrom .reader import Extent\nimport os", set()),
    ],
)
def test_the_control_imports_from_below_are_found_wherever_they_stand(text: str, found: set[str]) -> None:
    names = set(imported(ast.parse(text), PACKAGE / "storage" / "reader.py"))
    assert wrong_imports("storage", names) == found


# ---- circles ----------------------------------------------------------------------------------------------


def module_name(module: Path) -> str:
    name = ".".join(["sortshuffle", *module.relative_to(PACKAGE).with_suffix("").parts])
    return name.removesuffix(".__init__")


def packages_of(module: str) -> set[str]:
    """The packages below sortshuffle that a module is in."""
    parts = module.split(".")
    return {".".join(parts[:count]) for count in range(2, len(parts))}


def circle_in(trees: Mapping[Path, ast.AST]) -> list[str]:
    """A circle of modules, each of which imports the one before it; empty if there is none. Imports in
    functions and for types alone count, too. To import a module is to import the packages that it is in, but
    for those of the importer, and for the package itself, whose names are loaded when they are used."""
    modules = {module_name(module) for module in trees}
    graph: dict[str, set[str]] = {}
    for module, tree in trees.items():
        statements = import_statements(tree, module)
        wanted = {
            name if name in modules else source for source, names in statements for name in names or [source]
        }
        own = module_name(module)
        wanted |= {above for name in wanted for above in packages_of(name)} - {own, *packages_of(own)}
        graph[own] = wanted & modules
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


@pytest.mark.parametrize(
    "package",
    [each for each in MODULES if each.name == "__init__.py" and each.parent.name != "engine"],
    ids=lambda each: each.parent.name,
)
def test_the_opening_block_of_a_package_lists_its_modules(package: Path) -> None:
    """`engine` lists its classes instead: it is the public interface."""
    block = ast.get_docstring(ast.parse(package.read_text())) or ""
    within = {each.stem for each in package.parent.glob("*.py")} - {"__init__"}
    within |= {each.parent.name for each in package.parent.glob("*/__init__.py")}
    assert within - set(re.findall(r"\w+", block)) == set()


def test_imports_go_in_no_circle() -> None:
    assert circle_in({module: ast.parse(module.read_text()) for module in PACKAGE.rglob("*.py")}) == []


@pytest.mark.parametrize(
    ("text", "is_circle"),
    [
        ("from sortshuffle.storage.reader import Extent", True),
        ("import sortshuffle.storage.reader as reader", True),
        ("from sortshuffle.storage import reader", True),
        ("from .reader import Extent", True),
        ("from sortshuffle.storage.ranges import Extent", True),
        ("def f():\n    from sortshuffle.storage import reader", True),
        ("if TYPE_CHECKING:\n    from sortshuffle.storage.reader import Extent", True),
        ("from sortshuffle.storage import Writer", True),
        ("from sortshuffle.partitioner import hash\nimport os", False),
        ("from sortshuffle.payload.arrow import Batch", True),
    ],
)
def test_the_control_circles_are_found(text: str, is_circle: bool) -> None:
    texts = {
        "writer": text,
        "reader": "from sortshuffle.storage import writer",
        "ranges": "import sortshuffle.storage.reader",
        "__init__": "from sortshuffle.storage.writer import Writer",
    }
    trees = {PACKAGE / "storage" / f"{name}.py": ast.parse(each) for name, each in texts.items()}
    trees[PACKAGE / "payload" / "__init__.py"] = ast.parse("from sortshuffle.storage.ranges import Range")
    trees[PACKAGE / "payload" / "arrow.py"] = ast.parse("")
    assert bool(circle_in(trees)) == is_circle


def room_of(module: str) -> str:
    """The room that a module stands in: `service.client`, or its package where that has no rooms."""
    return ".".join(module.split(".")[1:-1][:2])


def rooms_in(imports: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Which rooms each room imports from."""
    graph: dict[str, set[str]] = {}
    for module, names in imports.items():
        below = {room_of(name) for name in names if name in imports}
        graph.setdefault(room_of(module), set()).update(below - {room_of(module), ""})
    return {room: below for room, below in graph.items() if "." in room}


def test_rooms_import_each_other_in_no_circle() -> None:
    rooms = rooms_in({module_name(module): imports_of(module) for module in MODULES})
    assert {"spark.plan", "service.client", "storage.files"} <= rooms.keys()
    list(TopologicalSorter(rooms).static_order())  # raises where there is a circle


def test_the_control_a_circle_of_rooms_is_found() -> None:
    one, other = "sortshuffle.storage.files.writer", "sortshuffle.storage.stored.pair"
    with pytest.raises(CycleError):
        list(TopologicalSorter(rooms_in({one: {other}, other: {one}})).static_order())


def test_each_class_has_a_name_of_its_own() -> None:
    places: dict[str, list[str]] = {}
    for module in MODULES:
        for node in ast.parse(module.read_text()).body:
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(module_name(module))
    assert len(places) > 500
    assert {name: modules for name, modules in places.items() if len(modules) > 1} == {}


def test_every_package_is_found() -> None:
    packages = {package_of(module) for module in MODULES}
    assert {"errors", "memory", "format", "storage", "payload", "writing", "reading", "spark"} <= packages


@pytest.mark.parametrize(
    ("module", "allowed"),
    [
        ("sortshuffle", set()),
        ("sortshuffle.calls", set()),
        ("sortshuffle.errors", set()),
        ("sortshuffle.options", set()),
        ("sortshuffle.metrics", set()),
        ("sortshuffle.homes.lifetime", set()),
        ("sortshuffle.homes.janitor", set()),
        ("sortshuffle.memory.limit", set()),
        ("sortshuffle.memory.budget", set()),
        ("sortshuffle.memory.shared_budget", set()),
        ("sortshuffle.homes.shared_home", set()),
        ("sortshuffle.service.host.rendezvous", set()),
        ("sortshuffle.service.host.supervisor", set()),
        ("sortshuffle.service.host.jvm_launch", set()),
        ("sortshuffle.service.jvm.protocol", {"numpy"}),
        ("sortshuffle.format.index", {"numpy", "xxhash"}),
        ("sortshuffle.storage.writer", {"numpy", "xxhash"}),
        ("sortshuffle.engine", {"numpy", "pyarrow", "xxhash"}),
        ("sortshuffle.cli.main", set()),
        # which each session of PySpark's waits for
        ("sortshuffle.spark.frame.shuffle_session", HEAVY - {"pandas"}),
    ],
)
def test_importing_a_module_does_not_load_what_it_can_do_without(module: str, allowed: set[str]) -> None:
    loaded = printed(f"import sys, {module}; print(*sys.modules)")
    assert module in loaded
    assert {name.split(".")[0] for name in loaded} & HEAVY <= allowed


def test_what_tasks_import_loads_nothing_that_plans() -> None:
    rooms = [PACKAGE / "spark" / room for room in ("worker", "steps")]
    modules = {module_name(module) for room in rooms for module in room.glob("*.py")}
    loaded = set(printed(f"import sys, {', '.join(sorted(modules))}; print(*sys.modules)"))
    assert modules <= loaded
    planning = ("sortshuffle.spark.plan", "sortshuffle.spark.operators", "sortshuffle.spark.frame")
    assert [name for name in sorted(loaded) if name.startswith(planning)] == []
    assert "sortshuffle.spark.session.planner" not in loaded


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


def test_no_two_files_of_tests_have_one_name() -> None:
    # pytest takes them for one module, and collects neither when it meets both in one run
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted({name for name in names if names.count(name) > 1}) == []


# ---- the seam of system calls ------------------------------------------------------------------------------

# What modules of the system may be used for elsewhere, besides constants: nothing of it asks for a file, a
# directory or a socket
HARMLESS = {
    "os": {
        "DirEntry", "PathLike", "_exit", "cpu_count", "environ", "fsencode", "fspath", "getpgid", "getpid",
        "getppid", "geteuid", "getuid", "kill", "major", "minor", "path", "pathsep", "sep", "stat_result",
        "strerror", "sysconf", "register_at_fork", "urandom",
    },
    "os.path": {
        "abspath", "basename", "commonpath", "dirname", "isabs", "join", "normpath", "relpath", "samestat",
    },
    "shutil": set(),
    "fcntl": set(),
    "mmap": set(),
    "select": set(),
    "selectors": {"BaseSelector", "SelectorKey"},
    "socket": {"AddressFamily", "gaierror", "gethostname", "has_dualstack_ipv6", "inet_pton"},
    "subprocess": {"CalledProcessError", "SubprocessError", "TimeoutExpired"},
    "tempfile": {"gettempdir"},
    "glob": {"escape"},
    "pathlib": set(),
    "io": {"BytesIO", "FileIO", "RawIOBase", "StringIO"},
    "builtins": set(),
}  # fmt: skip
# Types, which annotations name; only calling them asks the system
TYPES = {"mmap.mmap", "socket.socket", "subprocess.Popen"}
OF_SOCKETS = {"getpeername", "recv", "recv_into", "recvmsg", "sendall", "sendmsg", "setsockopt"}
ALSO_OF_OTHERS = {"accept", "bind", "connect", "listen", "send", "shutdown"}
A_SOCKET = re.compile(r"(socket|peer|server|client|listening|accepted|connected|probe|wake|waker)$")
# Who makes calls of its own, and why
WITHOUT_SEAM = {
    "calls.py": "is the seam",
    "service/pages/http.py": "the listening socket of the status page is the standard library's",
    "spark/functions/running.py": "asks where the package's own code is",
    "cli/printing.py": "turns the process's own standard output away, when it takes no more",
    "spark/session/application_report.py": "the driver waits for a process of its own, which uses the seam",
    "spark/session/shared_storage.py": "the driver waits for a process of its own, which uses the seam",
}

# An entry of a directory asks the system by itself, and no test can put a fault there: of what is listed, or
# where a file system does not tell the kind of an entry. Who asks one may not take an error for "not there"
OF_ENTRIES = {"inode", "is_dir", "is_file", "is_junction", "is_symlink", "stat"}
WITH_ENTRIES = {"cli/cleaning.py", "service/server/linger.py", "storage/stored/stored_listing.py"}


def calls_of_entries(tree: ast.AST) -> list[str]:
    """Methods of `os.DirEntry` that a module calls."""
    called = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    methods = [node for node in called if isinstance(node, ast.Attribute) and node.attr in OF_ENTRIES]
    return sorted(ast.unparse(node) for node in methods if ast.unparse(node.value) not in ("calls", "os"))


def calls_beside_the_seam(tree: ast.AST) -> list[str]:
    """What a module asks of the system by itself."""
    found: list[str] = []
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id == "open":
            found.append("open")
        elif isinstance(node, ast.Import):
            renamed = [alias for alias in node.names if alias.asname and alias.name in HARMLESS]
            found += [f"import {alias.name} as {alias.asname}" for alias in renamed]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            source = node.module
            allowed = HARMLESS.get(source)
            names = {alias.name for alias in node.names}
            modules = {name for name in names if f"{source}.{name}" in HARMLESS}  # under a shorter name
            if source == SEAM:
                found += [f"from {SEAM} import {name}" for name in names]
            elif allowed is not None:
                found += [
                    f"from {source} import {name}"
                    for name in names - (allowed - modules)
                    if not name.isupper()
                ]
        elif isinstance(node, ast.Attribute):
            found += _asked(node, id(node) in called)
    return sorted(found)


def _asked(node: ast.Attribute, is_called: bool) -> list[str]:
    source = ast.unparse(node.value)
    name = f"{source}.{node.attr}"
    if source in HARMLESS:
        is_constant = node.attr.isupper() or node.attr.startswith(("O_", "MFD_"))
        is_type = name in TYPES and not is_called
        return [] if is_constant or is_type or node.attr in HARMLESS[source] else [name]
    if not is_called or source == "calls":
        return []
    is_of_socket = node.attr in OF_SOCKETS or (node.attr in ALSO_OF_OTHERS and A_SOCKET.search(source))
    return [name] if is_of_socket else []


def test_a_module_asks_the_system_by_the_seam() -> None:
    found = {
        str(module.relative_to(PACKAGE)): calls_beside_the_seam(ast.parse(module.read_text()))
        for module in MODULES
    }
    wrong = {module: names for module, names in found.items() if names and module not in WITHOUT_SEAM}
    assert wrong == {}
    assert {module for module, names in found.items() if names} == set(WITHOUT_SEAM)


def test_the_modules_that_ask_entries_of_directories_are_known() -> None:
    trees = {str(module.relative_to(PACKAGE)): ast.parse(module.read_text()) for module in MODULES}
    assert {module for module, tree in trees.items() if calls_of_entries(tree)} <= WITH_ENTRIES


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("entry.stat(follow_symlinks=False).st_size", ["entry.stat"]),
        ("[one.name for one in calls.scandir(path) if one.is_dir()]", ["one.is_dir"]),
        ("calls.stat(path); one.is_dir", []),
    ],
)
def test_the_control_calls_of_entries_are_found(text: str, found: list[str]) -> None:
    assert calls_of_entries(ast.parse(text)) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("os.pread(f, 1, 0)", ["os.pread"]),
        ("write = os.writev", ["os.writev"]),
        ("from os import pread", ["from os import pread"]),
        ("from pathlib import Path", ["from pathlib import Path"]),
        ("from sortshuffle.calls import pread", ["from sortshuffle.calls import pread"]),
        ("with open(path) as file: pass", ["open"]),
        ("read = open", ["open"]),
        ("builtins.open(path)", ["builtins.open"]),
        ("import os as system", ["import os as system"]),
        ("import os.path as paths, sys as system", ["import os.path as paths"]),
        ("from os import path", ["from os import path"]),
        ("os.path.isdir(path)", ["os.path.isdir"]),
        ("shutil.rmtree(path)", ["shutil.rmtree"]),
        ("one = socket.socket()", ["socket.socket"]),
        ("self._socket.send(data)", ["self._socket.send"]),
        ("self._peer.recv(5)", ["self._peer.recv"]),
        ("subprocess.Popen(command)", ["subprocess.Popen"]),
        (
            "def f(one: socket.socket) -> int: return calls.send(one, os.path.join(a), socket.MSG_OOB)",
            [],
        ),
        ("wire.send(frames); generator.send(None); calls.open(path, os.O_RDONLY | os.O_CLOEXEC)", []),
    ],
)
def test_the_control_calls_beside_the_seam_are_found(text: str, found: list[str]) -> None:
    assert calls_beside_the_seam(ast.parse(text)) == found
