"""A fault at each call to the system in turn: the result is right, or the error is typed and names the place,
and the remedy where it is an OSError; and nothing is left over: no file that sweeps do not remove, no memory,
descriptor or thread.

What is done is in `fault_scenarios`, what a fault is in `faults`. Each run is a process of its own.
"""

from __future__ import annotations

import os
import queue
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path

import pytest
from engine import read_pair
from fault_host import FaultHost, Report
from fault_scenarios import KNOWN, PREPARED, store_url
from faults import ERRORS, KILL, SHORT, SLOW, Fault, Site, all_faults
from s3_server import S3Server, running_s3_server
from stores import Store

from sortshuffle import calls
from sortshuffle.homes import janitor, lifetime
from sortshuffle.homes.home_failures import MARKER_FILE
from sortshuffle.homes.owner import HOME_ROOT, OWNER_FILE, Owner
from sortshuffle.storage.files import spare_files
from sortshuffle.storage.files.partitioned_file import PARTIAL_SUFFIX, PartitionedFile
from sortshuffle.storage.stored.stored_cleaning import remove_remains

HOSTS = 2  # that fork side by side
# Where threads race, a call that was made in the first run may not be made in another
THREADED = {"read", "merge", "service", "killed service", "manager"}
LEAST_MET = 0.8  # of all faults, also there: most are met each time
# Scenarios whose error is not one of the package's, and which it is
EXCUSED = {
    ("service", "new_selector"): "OSError",  # a service that cannot start says why, and is started again
    ("service", "socketpair"): "OSError",
    ("manager", "mmap"): "MemoryError",  # it names the option that mends it
}
# One of these is in the text of each error of the package that is an OSError
REMEDIES = {
    "MissingDataError": ("must run again",),
    "OutOfDiskError": ("name directories on other disks with spark.sortshuffle.dir",),
    "ServiceUnavailableError": ("See that it runs, or wait longer with spark.sortshuffle.service.timeout",),
    "FileAccessError": ("(ulimit -n)", "look at the disk, or name directories on others"),
}
WAITING = {
    "service": {
        "getaddrinfo",
        "create_connection",
        "accept",
        "recv",
        "recv_into",
        "send",
        "sendall",
        "sendmsg",
        "pread",
        "preadv",
    },
    "manager": {"flock", "accept", "recv_into", "sendmsg", "pread", "preadv", "writev", "open_file.write"},
}
"""By scenario: calls that wait for a disk or a peer, and are made there."""
HELD_FOR_LIFE = janitor.LOCK_FILE  # by a janitor, so that there is one
# What the error of a store must tell: it is of the kind that the store gives it, and so of many classes
REMEDY_OF_STORES = "See that this host reaches the store"


class Hosts:
    """Some hosts, each used by one thread at a time."""

    def __init__(self, hosts: list[FaultHost]) -> None:
        self._free: queue.SimpleQueue[FaultHost] = queue.SimpleQueue()
        for host in hosts:
            self._free.put(host)

    @contextmanager
    def one(self) -> Iterator[FaultHost]:
        host = self._free.get()
        try:
            yield host
        finally:
            self._free.put(host)


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with running_s3_server() as server:
        yield server


@pytest.fixture(scope="module")
def hosts(s3: S3Server) -> Iterator[Hosts]:
    with ExitStack() as stack:
        yield Hosts([stack.enter_context(FaultHost(s3.environment)) for _ in range(HOSTS)])


Left = Callable[[Path, bool], list[str]]
"""What is wrong with what a run has left in its directory, and whether it ended well."""


class Everywhere:
    """One scenario."""

    def __init__(self, hosts: Hosts, scenario: str, directory: Path, left: Left) -> None:
        self._hosts = hosts
        self._scenario = scenario
        self._directory = directory
        self._left = left
        self._prepared = directory / "prepared"
        self._prepared.mkdir()
        with hosts.one() as host:
            if scenario in PREPARED:
                host.prepare(scenario, str(self._prepared))
        self._files = sorted(os.listdir(self._prepared))
        report = self._run("without a fault", None)
        assert not report.error, report.output
        self._expected = report.result
        self.sites: tuple[Site, ...] = report.sites
        assert self._complaints(None, report, directory / "without a fault") == []

    def wrong(self, faults: list[Fault]) -> list[str]:
        """What is wrong after each of these."""
        with ThreadPoolExecutor(HOSTS) as pool:
            found = list(pool.map(self._wrong, range(len(faults)), faults))
        met = sum(is_met for _, is_met in found)
        few = [] if met >= LEAST_MET * len(faults) else [f"only {met} of {len(faults)} faults were met"]
        return few + [
            f"{fault}: {each}" for fault, (every, _) in zip(faults, found, strict=True) for each in every
        ]

    def _wrong(self, number: int, fault: Fault) -> tuple[list[str], bool]:
        """And whether the fault was met."""
        report = self._run(str(number), fault)
        return self._complaints(fault, report, self._directory / str(number)), report.happened

    def _run(self, name: str, fault: Fault | None) -> Report:
        directory = self._directory / name
        directory.mkdir()
        with self._hosts.one() as host:
            return host.run(self._scenario, str(directory), str(self._prepared), fault)

    def _complaints(self, fault: Fault | None, report: Report, directory: Path) -> list[str]:
        found = [f"left over: {each}" for each in report.left if HELD_FOR_LIFE not in each]
        ended_well = not report.killed and not report.error
        if ended_well and report.output:
            found.append(f"died: {report.output}")
        elif ended_well and report.result != (self._expected if fault else report.result):
            found.append("the result is another one")
        elif report.error:
            found += self._of_error(fault, report, directory)
        elif report.killed and (fault is None or fault.what != KILL):
            found.append("killed, by no fault")
        if fault and not report.happened and self._scenario not in THREADED:
            found.append("it was not met")
        if sorted(os.listdir(self._prepared)) != self._files:
            found.append(f"files that were read are {os.listdir(self._prepared)}")
        return found + self._left(directory, ended_well)

    def _of_error(self, fault: Fault | None, report: Report, directory: Path) -> list[str]:
        excused = EXCUSED.get((self._scenario, fault.site.name)) if fault else None
        if excused:
            return [] if report.error[0] == excused else [f"{report.error[0]}, no {excused}: {report.output}"]
        if fault is None or fault.what in (SHORT, SLOW):
            return [f"an error for what was only short, or slow: {report.output}"]
        of_store = "s3://" in report.text and REMEDY_OF_STORES in report.text
        if "SortShuffleError" not in report.error and not of_store:
            return [f"an untyped error: {report.output}"]
        if not of_store and "OSError" in report.error:
            remedies = REMEDIES.get(report.error[0], ())
            if not any(remedy in report.text for remedy in remedies):
                return [f"names no remedy: {report.output}"]
        places = (str(directory), str(self._prepared), "127.0.0.1:")
        return [] if any(place in report.text for place in places) else [f"names no place: {report.text}"]


def files_left(directory: Path, ended_well: bool) -> list[str]:
    """What janitors and `clean` leave of a run, some hours later."""
    root = directory / HOME_ROOT
    if not root.exists():
        return []
    found: list[str] = []
    later = time.time() + 86_400
    owner = Owner.of_process(os.getpid(), "app-1", (str(directory / "forgotten"),), 1.0, False)
    for home in root.glob("*/*"):
        lifetime.sweep_partials(str(home), later)
        for file in lifetime.dead_outputs(str(home), owner, later):
            file.delete()
        spare_files.trim(str(home), later)
        with suppress(OSError):  # it is left if it is not empty
            os.rmdir(home / spare_files.DIRECTORY)
        # these are the home's own, and go with it; so does an owner's file that was not yet in place
        own = (OWNER_FILE, MARKER_FILE, janitor.LOCK_FILE)
        names = {name for name in os.listdir(home) if not name.startswith(own)}
        found += [f"the janitor leaves {name}" for name in sorted(names)]
        lifetime.remove_home(str(home))
    # an application's directory may stay where it could not be removed: it is empty
    files = [str(path) for path in root.rglob("*") if not path.is_dir()]
    return found + ([f"clean leaves {files}"] if files else [])


def written(directory: Path, ended_well: bool) -> list[str]:
    """The same, of a run that writes a map output, which is whole or not there."""
    bases = {path.with_suffix("") for path in directory.rglob("*.index")}
    found = [] if bases or not ended_well else ["there is no map output"]
    whole = _payloads_without_a_fault(directory.parent)
    found += ["the map output is another one" for base in bases if _payloads(base) != whole]
    return found + files_left(directory, ended_well)


def _payloads(base: Path) -> list[list[bytes]]:
    found = read_pair(PartitionedFile(str(base)))
    assert all(found), "each subpartition has some"
    return found


@cache
def _payloads_without_a_fault(directory: Path) -> list[list[bytes]]:
    """Of the first run."""
    [index] = (directory / "without a fault").rglob("*.index")
    return _payloads(index.with_suffix(""))


def swept(directory: Path, ended_well: bool) -> list[str]:
    """The same, of a run that sweeps: what Spark knows is kept, unless its executor has ended."""
    home = directory / HOME_ROOT / "app-1" / "home"
    owner = Owner.read(str(home))
    kept = (
        [path.name for path in home.glob(f"*-attempt-{KNOWN}.*")] if owner and owner.is_live() else ["", ""]
    )
    found = [] if len(kept) == 2 else [f"of what Spark knows there is {kept}"]
    return found + files_left(directory, ended_well)


def test_each_call_has_its_faults() -> None:
    asked = {name for name, each in vars(calls).items() if callable(each) and not name.startswith("_")}
    assert asked - {"Any", "Iterable"} == {name for name in ERRORS if "." not in name}


def names_of(sites: tuple[Site, ...]) -> set[str]:
    return {site.name for site in sites}


@pytest.mark.parametrize(
    ("scenario", "left", "calls"),
    [
        ("write", written, {"open", "flock", "writev", "rename", "close"}),
        (
            "write over",
            written,
            {"open", "flock", "rename", "writev", "lseek", "ftruncate", "write", "close"},
        ),
        ("abandon", files_left, {"open", "flock", "writev", "unlink", "close"}),
        ("read", files_left, {"open", "pread", "preadv", "fstat", "close"}),
        ("merge", files_left, {"open", "writev", "preadv", "rename", "unlink", "close"}),
        ("sweep", swept, {"listdir", "lstat", "open", "flock", "close", "unlink"}),
        ("drop", files_left, {"mkdir", "rename", "open", "fstat", "fcntl", "statvfs", "unlink", "listdir"}),
        ("janitor", swept, {"open_file", "listdir", "flock", "unlink", "rmtree", "rmdir"}),
        ("service", files_left, {"accept", "recv", "sendmsg", "recv_into", "sendall", "preadv", "listdir"}),
        ("manager", files_left, {"accept", "recv_into", "sendmsg", "memfd_create", "writev", "rename"}),
    ],
)
def test_a_fault_at_each_call(
    hosts: Hosts, tmp_path: Path, scenario: str, left: Left, calls: set[str]
) -> None:
    everywhere = Everywhere(hosts, scenario, tmp_path, left)
    assert calls <= names_of(everywhere.sites)
    assert everywhere.wrong(list(all_faults(everywhere.sites))) == []


@pytest.mark.parametrize("scenario", WAITING)
def test_a_call_that_is_slow_changes_nothing(hosts: Hosts, tmp_path: Path, scenario: str) -> None:
    """At each place that waits for a disk or a peer: others wait for that in other threads and processes."""
    everywhere = Everywhere(hosts, scenario, tmp_path, files_left)
    waiting = tuple(site for site in everywhere.sites if site.name in WAITING[scenario])
    assert names_of(waiting) == WAITING[scenario]
    assert everywhere.wrong(list(all_faults(waiting, [SLOW]))) == []


def test_a_service_that_is_killed_at_each_call_and_started_again(hosts: Hosts, tmp_path: Path) -> None:
    """Its clients get everything all the same."""
    sites = Everywhere(hosts, "service", _made(tmp_path / "sites"), files_left).sites
    everywhere = Everywhere(hosts, "killed service", _made(tmp_path / "kills"), files_left)
    of_server = sorted(set(sites) - set(everywhere.sites))
    assert {"accept", "recv", "sendmsg", "preadv"} <= names_of(tuple(of_server))
    assert everywhere.wrong(list(all_faults(of_server, [KILL]))) == []


@pytest.mark.parametrize(
    ("scenario", "calls"),
    [
        ("mounted", {"mkdir", "open", "writev", "rename", "close"}),
        ("s3", {"store.open", "store.write", "store.close", "store.commit", "store.pipe_file"}),
    ],
)
def test_a_fault_at_each_call_of_a_commit_to_a_store(
    hosts: Hosts, tmp_path: Path, s3: S3Server, scenario: str, calls: set[str]
) -> None:
    def left(directory: Path, ended_well: bool) -> list[str]:
        store = Store(store_url(scenario, str(directory)), s3 if scenario == "s3" else None)
        finished = [name for name in store.names() if not name.endswith(PARTIAL_SUFFIX)]
        found = [] if len(finished) == 2 or not ended_well else [f"there is {finished}"]
        found += [
            f"an index without data: {name}" for name in finished if finished == [name] and "index" in name
        ]
        remove_remains(store.root, "app-1")
        uploads = [name for name in store.uploads() if directory.name in name.split("/")]
        return found + [f"clean leaves {name}" for name in [*store.names(), *uploads]]

    everywhere = Everywhere(hosts, scenario, tmp_path, left)
    assert calls <= names_of(everywhere.sites)
    assert everywhere.wrong(list(all_faults(everywhere.sites))) == []


def _made(directory: Path) -> Path:
    directory.mkdir()
    return directory
