"""Builds the archives of a release so that the same commit always makes the same bytes.

python tools/lib/release.py [--uncommitted] [DIRECTORY]

Each build has a copy of the checkout of its own, so nothing that lies about gets in. What differs between two
builds all the same, the times, the modes and the order of files, is taken from the commit or fixed. The JDK,
and this Python with its PySpark and setuptools, must be the same: other releases may make other bytes.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import re
import signal
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
UMASK = 0o022  # of what builds: a wheel stores the modes of its files
PLAIN = ("-c", "core.autocrlf=false")  # files as they are in the commit, whatever the user's settings
MODE = 0o644
EXECUTABLE = 0o755  # also of directories


@dataclass(frozen=True, slots=True)
class Source:
    """What is built. ``tree``: a name of git's. ``time``: of the last commit, in seconds since 1970."""

    tree: str
    time: int


def git(*arguments: str, **environment: str) -> str:
    command = ["git", *PLAIN, *arguments]
    environment = {**os.environ, **environment}
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, check=True, stdout=subprocess.PIPE, text=True
        )
    except FileNotFoundError:
        raise SystemExit("tools/release needs git, which is not installed") from None
    except subprocess.CalledProcessError as error:  # git has said why
        raise SystemExit(f"git {arguments[0]} failed: tools/release works in a clone") from error
    return done.stdout.rstrip()


def source(uncommitted: bool) -> Source:
    changes = git("status", "--porcelain", "--untracked-files=normal")
    if changes and not uncommitted:
        raise SystemExit(
            f"Not committed:\n{changes}\nCommit these, or build them as they are: tools/release --uncommitted"
        )
    tree = tree_of_files() if changes else "HEAD"
    return Source(tree, int(git("log", "-1", "--format=%ct")))


def tree_of_files() -> str:
    """Store all files as they are, those that git ignores left out, and leave git's index as it is."""
    with tempfile.TemporaryDirectory() as work:
        index = f"{work}/index"
        git("add", "--all", GIT_INDEX_FILE=index)
        return git("write-tree", GIT_INDEX_FILE=index)


def copy_of(tree: str, directory: Path, in_reverse: bool) -> None:
    """``in_reverse``: make the last file first, so that a directory may list its files in another order."""
    command = ["git", *PLAIN, "archive", tree]
    packed = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        members = archive.getmembers()
        archive.extractall(directory, members[::-1] if in_reverse else members, filter="data")


def build(made_from: Source, work: Path, in_reverse: bool = False) -> list[Path]:
    """Return the sdist and the wheel. ``work``: a directory that does not exist yet."""
    checkout, unpacked, archives = work / "checkout", work / "unpacked", work / "archives"
    copy_of(made_from.tree, checkout, in_reverse)
    build_jar(checkout)
    build_archive("--sdist", checkout, archives, made_from.time)
    (sdist,) = archives.iterdir()
    normalise(sdist, made_from.time)
    with tarfile.open(sdist) as archive:
        archive.extractall(unpacked, filter="data")
    (project,) = unpacked.iterdir()
    build_archive("--wheel", project, archives, made_from.time)
    return sorted(archives.iterdir(), reverse=True)  # the sdist has the shorter name, and a dot


def build_jar(checkout: Path) -> None:
    (checkout / ".venv").symlink_to(sys.prefix)  # tools/jar compiles against the PySpark in there
    if subprocess.run([checkout / "tools" / "jar"], check=False).returncode:
        raise SystemExit("tools/jar has not built the shuffle manager's jar")


def build_archive(kind: str, project: Path, into: Path, time: int) -> None:
    """Without an environment of its own: its setuptools would be whichever is the newest that day."""
    command = [sys.executable, "-m", "build", kind, "--no-isolation", "--outdir", into, project]
    home = into.parent / "home"  # empty: settings of the user's for setuptools must not change a release
    home.mkdir(exist_ok=True)
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(time), "HOME": str(home)}
    environment.pop("DIST_EXTRA_CONFIG", None)
    done = subprocess.run(
        command,
        env=environment,
        umask=UMASK,
        check=False,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    if done.returncode:
        raise SystemExit(done.stdout)


def normalise(sdist: Path, time: int) -> None:
    """Leave out who built it, when, and with which umask: setuptools stores that in an sdist."""
    with tarfile.open(sdist) as archive:
        members = sorted(archive.getmembers(), key=lambda member: member.name)
        files = [(as_of(member, time), archive.extractfile(member)) for member in members]
        with (
            open(f"{sdist}.new", "wb") as opened,
            gzip.GzipFile(filename="", mode="wb", fileobj=opened, mtime=time) as zipped,
            tarfile.open(fileobj=zipped, mode="w") as normal,
        ):
            for member, content in files:
                normal.addfile(member, content)
    os.replace(f"{sdist}.new", sdist)


def as_of(member: tarfile.TarInfo, time: int) -> tarfile.TarInfo:
    """A member of that name and content. Nobody owns it."""
    made = tarfile.TarInfo(member.name)
    made.type, made.size, made.mtime = member.type, member.size, time
    made.mode = EXECUTABLE if member.isdir() or member.mode & 0o100 else MODE
    return made


def build_twice(made_from: Source, directory: Path) -> list[Path]:
    """Put the archives into ``directory`` if two builds make the same."""
    with tempfile.TemporaryDirectory() as work:
        built = build(made_from, Path(work, "one"))
        again = build(made_from, Path(work, "another place"), in_reverse=True)
        contents = {path.name: path.read_bytes() for path in built}
        others = {path.name: path.read_bytes() for path in again}
    differing = [name for name in contents if contents[name] != others.get(name)]
    if differing:
        raise SystemExit(f"Two builds of the same files differ: {', '.join(differing)}")
    for name, content in contents.items():
        partial = directory / f"{name}.{os.getpid()}"
        partial.write_bytes(content)
        partial.replace(directory / name)
    return [directory / name for name in contents]


def check_version() -> None:
    """Refuse versions that differ: files, ``--version`` and the archives would name two releases."""
    project = (ROOT / "pyproject.toml").read_text()
    named = re.search(r'^version = "(.*)"$', project, re.MULTILINE)
    code = (ROOT / "sortshuffle" / "version.py").read_text()
    if named is None or f'"{named[1]}"' not in code:
        raise SystemExit("pyproject.toml and sortshuffle/version.py name different versions")
    if not (ROOT / "tests" / "written_by" / named[1]).is_dir():
        raise SystemExit(
            f"tests/written_by/{named[1]} is missing: CONTRIBUTING.md says which scripts make it"
        )


def described(archive: Path) -> str:
    content = archive.read_bytes()
    return f"{hashlib.sha256(content).hexdigest()}  {len(content):>9,} bytes  {archive.name}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="tools/release")
    parser.add_argument("directory", nargs="?", type=Path, default=ROOT / "dist")
    parser.add_argument("--uncommitted", action="store_true", help="build the files as they are")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # removes what is temporary
    made_from = source(asked.uncommitted)
    check_version()
    try:
        asked.directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SystemExit(f"nothing can be written to {asked.directory}: {error}") from None
    for archive in build_twice(made_from, asked.directory):
        print(described(archive))


if __name__ == "__main__":
    main()
