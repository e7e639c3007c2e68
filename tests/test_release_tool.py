"""`tools/release`: the archives are the same bytes wherever and whenever they are built, and the wheel works
where nothing else is installed than what it asks for.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from engine import ROOT
from spark_home import users_environment

import sortshuffle

JAR = "sortshuffle/spark/manager/sortshuffle-manager.jar"
PATIENCE = 280  # seconds; one build takes 10, an installation from pip's cache 20
RELEASED = 1_700_000_000  # seconds since 1970: 2023-11-14 22:13:20 UTC
TOOL = Path("tools", "lib", "release.py")

SMALL_PROJECT = {
    "pyproject.toml": """
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "small"
version = "1"

[tool.setuptools]
py-modules = ["small"]
""",
    "small.py": "NUMBER = 1\n",
    "sortshuffle/version.py": '__version__ = "1"\n',
    "tests/written_by/1/kept": "",
    ".gitignore": ".venv\ndist\nignored\n",
    "tools/jar": "#!/usr/bin/env bash\n",
}
CHANGING = '#!/usr/bin/env bash\ndate +%N >>"${0%/tools/jar}/small.py"\n'
"""A `tools/jar` that makes something else each time."""

JOB = """
import json, sys
from pyspark.sql import SparkSession, functions as F
import sortshuffle
from sortshuffle.spark.manager.jar import jar_path

builder = (
    SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.sortshuffle.manager", "on")
    .config("spark.sortshuffle.dir", sys.argv[1])
    .config("spark.sortshuffle.keep", "true")
)
spark = sortshuffle.session(builder)
rows = spark.range(1000).withColumn("k", F.col("id") % 3)
sums = rows.groupBy("k").agg(F.sum("id").alias("s")).orderBy("k")  # its shuffles go when nothing refers to it
counts = rows.groupBy("k").applyInPandas(
    lambda group: group.groupby("k").agg(n=("id", "size")).reset_index(), "k long, n long"
)
print(json.dumps({
    "package": sortshuffle.__file__,
    "jar": str(jar_path()),
    "sums": [list(row) for row in sums.collect()],
    "counts": sorted(list(row) for row in counts.collect()),
    "decisions": dict(spark.sparkContext._jvm.org.sortshuffle.SortMergeShuffleManager.decisions()),
}))
spark.stop()
"""


def run(*command: object, cwd: Path, **how: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        **how,
    )


def commit(checkout: Path) -> None:
    """All files, into a new repository."""
    author = {
        f"GIT_{who}_{what}": text
        for who in ("AUTHOR", "COMMITTER")
        for what, text in (("NAME", "A"), ("EMAIL", "a@example.org"), ("DATE", f"{RELEASED} +0000"))
    }
    for words in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "--message", "all"]):
        done = run("git", *words, cwd=checkout, env={**os.environ, **author})
        assert done.returncode == 0, done.stderr


def status(checkout: Path) -> str:
    return run("git", "status", "--porcelain", cwd=checkout).stdout


def release(checkout: Path, *arguments: object, **how: object) -> subprocess.CompletedProcess[str]:
    return run(sys.executable, checkout / TOOL, *arguments, cwd=checkout, **how)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This checkout's files as they are, committed."""
    copy = tmp_path_factory.mktemp("checkout")
    listed = run("git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", cwd=ROOT).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name)
    commit(copy)
    return copy


@dataclass(frozen=True, slots=True)
class Released:
    """What the tool made, and what it printed."""

    sdist: Path
    wheel: Path
    said: str


@pytest.fixture(scope="module")
def released(checkout: Path) -> Released:
    done = release(checkout, umask=0o022)
    assert done.returncode == 0, done.stderr[-4000:]
    name = f"sortshuffle-{sortshuffle.__version__}"
    dist = checkout / "dist"
    return Released(dist / f"{name}.tar.gz", dist / f"{name}-py3-none-any.whl", done.stdout)


def sha256(path: Path) -> str:
    return run("sha256sum", path.name, cwd=path.parent).stdout.split()[0]


def test_it_prints_what_it_made(released: Released) -> None:
    assert released.said.splitlines() == [
        f"{sha256(path)}  {path.stat().st_size:>9,} bytes  {path.name}"
        for path in (released.sdist, released.wheel)
    ]
    assert sorted(released.sdist.parent.iterdir()) == [released.wheel, released.sdist]


def test_another_build_makes_the_same_bytes(checkout: Path, released: Released, tmp_path: Path) -> None:
    """In another directory, later, with other times of files, another umask, time zone and language."""
    clone = tmp_path / "a clone" / "with a longer path"
    assert run("git", "clone", "--quiet", checkout, clone, cwd=tmp_path).returncode == 0
    environment = {**os.environ, "TZ": "Asia/Tokyo", "LC_ALL": "C", "SOURCE_DATE_EPOCH": "1"}
    build = "import release, pathlib; release.build(release.source(False), pathlib.Path('work'), True)"
    done = run(sys.executable, "-c", build, cwd=clone / TOOL.parent, umask=0o077, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    for archive in (released.sdist, released.wheel):
        assert (clone / TOOL.parent / "work" / "archives" / archive.name).read_bytes() == archive.read_bytes()


def test_the_times_are_those_of_the_commit(released: Released) -> None:
    with zipfile.ZipFile(released.wheel) as archive:
        assert {member.date_time for member in archive.infolist()} == {(2023, 11, 14, 22, 13, 20)}
        assert {oct(member.external_attr >> 16) for member in archive.infolist()} == {"0o100644", "0o100664"}
    listed = run(
        "tar", "--list", "--verbose", "--utc", "--numeric-owner", "-f", released.sdist, cwd=ROOT
    ).stdout
    words = [line.split() for line in listed.splitlines()]
    assert {tuple(each[1:2] + each[3:5]) for each in words} == {("0/0", "2023-11-14", "22:13")}
    assert {each[0] for each in words} == {"drwxr-xr-x", "-rw-r--r--"}
    names = [each[5] for each in words]
    assert f"sortshuffle-{sortshuffle.__version__}/{JAR}" in names
    assert [name for name in names if "/tests/" in name] == []


def test_the_wheel_works_where_nothing_else_is_installed(released: Released, tmp_path: Path) -> None:
    """With the newest dependencies that it allows, from pip's cache or an index of packages."""
    environment = {name: value for name, value in users_environment().items() if name != "PYTHONPATH"}
    installed = tmp_path / "installed"
    python, command = installed / "bin" / "python", installed / "bin" / "sortshuffle"
    for words in (
        [sys.executable, "-m", "venv", installed],
        [python, "-m", "pip", "install", "--quiet", released.wheel],
    ):
        done = run(*words, cwd=tmp_path, env=environment)
        assert done.returncode == 0, done.stderr[-4000:]

    said = run(command, "--version", cwd=tmp_path, env=environment)
    assert said.stdout == f"sortshuffle {sortshuffle.__version__}\n"

    done = run(python, "-c", JOB, tmp_path / "kept", cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["package"].startswith(f"{installed}/")
    assert found["jar"] == str(Path(found["package"]).parents[1] / JAR)
    assert found["sums"] == [[0, 166_833], [1, 166_167], [2, 166_500]]
    assert found["counts"] == [[0, 334], [1, 333], [2, 333]]
    assert found["decisions"]["sortshuffle"] >= 1

    done = run(command, "dump", tmp_path / "kept", "--json", cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    pairs = json.loads(done.stdout)["pairs"]
    assert {pair["state"] for pair in pairs} == {"complete"}
    assert {pair["header"]["payload"] for pair in pairs} == {"record_bytes", "arrow"}
    assert {pair["writer"]["software"] for pair in pairs} == {f"sortshuffle {sortshuffle.__version__}"}
    assert sum(pair["totals"]["rows"] for pair in pairs if pair["header"]["payload"] == "arrow") == 1000


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A project with the tool, that is built in a second or two."""
    made = tmp_path / "small"
    for name, text in SMALL_PROJECT.items():
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_text(text)
    (made / "tools" / "jar").chmod(0o755)
    (made / TOOL).parent.mkdir()
    shutil.copy(ROOT / TOOL, made / TOOL)
    commit(made)
    return made


def test_what_is_not_committed_is_refused(small: Path) -> None:
    (small / "small.py").write_text("NUMBER = 2\n")
    done = release(small)
    assert done.returncode == 1
    assert done.stderr == (
        "Not committed:\n M small.py\nCommit these, or build them as they are: tools/release --uncommitted\n"
    )
    assert not (small / "dist").exists()


def test_what_is_not_committed_is_built_if_asked_for(small: Path) -> None:
    (small / "small.py").write_text("NUMBER = 2\n")
    (small / "MANIFEST.in").write_text("include new ignored\n")
    for name in ("new", "ignored"):
        (small / name).write_text("")
    before = status(small)
    done = release(small, "--uncommitted", small / "dist")
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(small / "dist" / "small-1-py3-none-any.whl") as archive:
        assert archive.read("small.py") == b"NUMBER = 2\n"
    listed = run("tar", "--list", "-f", small / "dist" / "small-1.tar.gz", cwd=small).stdout.splitlines()
    assert {"small-1/new", "small-1/small.py"} <= set(listed)
    assert "small-1/ignored" not in listed
    assert status(small) == before == " M small.py\n?? MANIFEST.in\n?? new\n"


def test_two_builds_that_differ_are_an_error(small: Path) -> None:
    (small / "tools" / "jar").write_text(CHANGING)
    done = release(small, "--uncommitted")
    assert done.returncode == 1
    assert done.stderr == ("Two builds of the same files differ: small-1.tar.gz, small-1-py3-none-any.whl\n")
    assert list((small / "dist").iterdir()) == []


def test_settings_of_the_user_do_not_change_a_release(small: Path, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / ".pydistutils.cfg").write_text("[egg_info]\ntag_build=.dev7\n")
    done = release(small, env={**os.environ, "HOME": str(tmp_path / "home")})
    assert done.returncode == 0, done.stdout + done.stderr
    assert {path.name for path in (small / "dist").iterdir()} == {
        "small-1.tar.gz",
        "small-1-py3-none-any.whl",
    }


def test_two_versions_are_refused(small: Path) -> None:
    (small / "sortshuffle" / "version.py").write_text('__version__ = "2"\n')
    commit(small)
    done = release(small)
    assert done.returncode == 1
    assert done.stderr == "pyproject.toml and sortshuffle/version.py name different versions\n"


def test_a_version_of_which_nothing_is_kept_is_refused(small: Path) -> None:
    shutil.rmtree(small / "tests")
    commit(small)
    done = release(small)
    assert done.returncode == 1
    assert done.stderr.startswith("tests/written_by/1 is missing: ")


def test_a_directory_that_cannot_be_made_is_said_at_once(small: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = release(small, tmp_path / "file" / "dist")
    assert done.returncode == 1
    assert done.stderr.startswith(f"nothing can be written to {tmp_path}/file/dist: ")


def test_it_works_in_a_clone_alone(small: Path) -> None:
    shutil.rmtree(small / ".git")
    done = release(small, env={**os.environ, "GIT_CEILING_DIRECTORIES": str(small.parent)})
    assert done.returncode == 1
    assert done.stderr.endswith("git status failed: tools/release works in a clone\n")
