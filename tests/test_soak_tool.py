"""`tools/soak`: its plan comes from its seed, its arithmetic and its report are right, it sees what is left.
The soak itself needs a cluster, and is run by hand."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner
from cluster import Cluster
from engine import ROOT, eventually
from soak import checks, plan, report, run, work
from soak.__main__ import main
from soak.administrator import Administrator
from soak.faults import Faults, connections, map_outputs
from soak.run import CONTROL, OURS, Soak, astray, rerun_tasks

from sortshuffle.homes.processes import process_start
from sortshuffle.service.host.rendezvous_directory import socket_path

# ---- the plan ----------------------------------------------------------------------------------------------


def test_a_seed_gives_one_plan() -> None:
    first = [plan.application(7, number) for number in range(30)]
    assert first == [plan.application(7, number) for number in range(30)]
    assert first[5] == plan.application(7, 5)  # whatever came before
    assert first != [plan.application(8, number) for number in range(30)]


def test_a_plan_has_every_kind_of_everything() -> None:
    found = [plan.application(1, number) for number in range(200)]
    jobs = [job for each in found for job in each.jobs]
    assert {each.kind for each in found} == set(plan.KINDS)
    assert {each.is_killed for each in found} == {True, False}
    assert {each.is_encrypted for each in found} == {True, False}
    assert {each.is_collected for each in found} == {True, False}
    assert {(each.kind, each.executors) for each in found} == {
        (name, executors) for name, kind in plan.KINDS.items() for executors in kind.executors
    }
    assert {job.work for job in jobs} == set(work.works)
    assert {job.shape for job in jobs} == set(work.SHAPES)
    faults = [fault for job in jobs for fault in job.faults]
    assert {fault.what for fault in faults} == {name for kind in plan.KINDS.values() for name in kind.faults}
    assert {fault.host for fault in faults} == set(plan.HOSTS)
    assert {fault.delay is None for fault in faults} == {True, False}


def test_an_application_has_only_jobs_and_faults_of_its_kind() -> None:
    for number in range(200):
        found = plan.application(2, number)
        kind = plan.KINDS[found.kind]
        assert found.executors in kind.executors
        for job in found.jobs:
            assert kind.has_manager or work.works[job.work][0] != "manager"
            assert {fault.what for fault in job.faults} <= set(kind.faults)


def test_the_command_shows_a_plan() -> None:
    shown = CliRunner().invoke(main, ["--plan", "--seed", "1"])
    assert shown.exit_code == 0
    lines = [line for line in shown.output.splitlines() if line.startswith("application ")]
    kinds = [plan.application(1, number).kind for number in range(20)]
    assert [line.split()[2].rstrip(",") for line in lines] == kinds


def test_executors_that_go_are_not_for_unmodified_jobs() -> None:
    """Spark's external shuffle service does not go with the shuffle manager."""
    assert [name for name, kind in plan.KINDS.items() if len(kind.executors) > 1 and kind.has_manager] == []


@pytest.mark.parametrize("arguments", [["--minutes", "0"], ["--seed", "-1"], ["--minutes", "long"]])
def test_arguments_that_cannot_be_meant(arguments: list[str]) -> None:
    assert CliRunner().invoke(main, arguments).exit_code == 2


# ---- results -----------------------------------------------------------------------------------------------


def test_a_digest_tells_rows_apart_but_not_their_order() -> None:
    one = pa.table({"a": pa.array([1, 2, 3], pa.int64()), "s": ["x", "y", "z"]})
    hashes = work.row_hashes(one.columns)
    assert len(set(hashes.tolist())) == 3
    assert work.row_hashes(one.take([2, 0, 1]).columns).tolist() == hashes[[2, 0, 1]].tolist()
    swapped = pa.table({"a": pa.array([1, 2, 3], pa.int64()), "s": ["y", "x", "z"]})
    with np.errstate(over="ignore"):
        assert work.row_hashes(swapped.columns).sum() != hashes.sum()


def test_rows_are_made_of_their_numbers() -> None:
    shape = work.SHAPES["small"]
    ids = np.arange(100)
    keys, values = work.values_of(ids, shape)
    again = work.values_of(ids[50:], shape)
    assert keys[50:].tolist() == again[0].tolist() and values[50:].tolist() == again[1].tolist()
    assert keys.min() >= 0 and keys.max() < shape.keys


def test_a_heavy_key_has_its_share() -> None:
    shape = work.SHAPES["skewed"]
    keys, _ = work.values_of(np.arange(shape.rows), shape)
    counts = np.bincount(keys)
    assert abs(counts[0] / shape.rows - shape.heavy) < 0.01
    assert counts[1:].max() < shape.rows / 1000


def test_jobs_with_a_heavy_key_divide_large_partitions() -> None:
    jobs = [job for number in range(200) for job in plan.application(1, number).jobs]
    divide = [job.shape for job in jobs if "spark.sortshuffle.skew.factor" in dict(job.settings)]
    heavy = [job.shape for job in jobs if work.SHAPES[job.shape].heavy]
    assert divide.count("skewed") > len(heavy) / 2


# ---- how a job may fail ------------------------------------------------------------------------------------

NO_SERVICE = "Job aborted: ... ServiceUnavailableError: host 127.0.0.3 ..."
LOST = "ExecutorLostFailure (executor 3 exited) ... MissingDataError"


@pytest.mark.parametrize(
    ("error", "kinds", "reason"),
    [
        (NO_SERVICE, ["both"], "a service that did not answer"),
        (NO_SERVICE, ["cut", "host"], "a service that did not answer"),
        (NO_SERVICE, ["outputs", "full"], None),
        (LOST, ["damage"], "a lost map output"),
        (LOST, [], None),
        ("... CorruptDataError", ["outputs"], "a lost map output"),
        ("OSError: [Errno 28] No space left on device", ["full"], "a full disk"),
        ("OSError: [Errno 28] No space left on device", ["host"], None),
        ("KeyError: 'x'", ["both", "host", "outputs", "damage", "full"], None),
    ],
)
def test_why_a_job_may_fail(error: str, kinds: list[str], reason: str | None) -> None:
    assert report.why(error, kinds) == reason


def test_most_faults_must_not_fail_a_job() -> None:
    """The rest does not, says the soak's table in docs/testing.md."""
    kinds = {name for kind in plan.KINDS.values() for name in kind.faults}
    everything = " ".join(["ServiceUnavailableError", "OutOfDiskError", "MissingDataError"])
    may = {kind for kind in kinds if report.why(everything, [kind])}
    assert may == {"both", "host", "outputs", "damage", "full"} == set(report.ALLOWED)


# ---- faults ------------------------------------------------------------------------------------------------


def test_map_outputs_of_the_running_job(tmp_path: Path) -> None:
    application = tmp_path / "sortshuffle" / "app-1"
    times = {"1-map-0": 100, "2-map-0": 300}
    for home in ("127.0.0.2-7-abc", "127.0.0.3-8-abc", "shared-1-abc"):
        (application / home).mkdir(parents=True)
        for name, finished in times.items():
            for suffix in ("data", "index"):
                path = application / home / f"exchange-{name}-attempt-0.{suffix}"
                path.touch()
                os.utime(path, (finished, finished))
        (application / home / "exchange-3-map-0-attempt-0.data").touch()  # without an index: it is written
    found = map_outputs([tmp_path], "127.0.0.2", 200.0)
    assert set(found) == {
        application / home / "exchange-2-map-0-attempt-0.data" for home in ("127.0.0.2-7-abc", "shared-1-abc")
    }


def test_only_a_connection_that_is_gone_was_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that cannot close connections lets `ss -K` say nothing, and exit 0."""
    administrator = Administrator(Cluster(tmp_path / "c"), tmp_path, tmp_path)
    monkeypatch.setattr(administrator, "pids", lambda host=None: {os.getpid()})
    faults = Faults(Cluster(tmp_path / "c"), administrator, tmp_path, ())
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        path = tmp_path / "ss"
        real = shutil.which("ss")
        path.write_text(f'#!/bin/sh\n[ "$1" = -K ] || exec {real} "$@"\n')
        path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
        assert not faults.inflict("cut", "127.0.0.2", 0.0)


def test_map_tasks_that_ran_again_are_counted() -> None:
    def stage(number: int, rdds: str, tasks: int, failed: int = 0, written: int = 1) -> dict[str, Any]:
        counts = {"tasks": tasks, "complete": tasks, "failed": failed, "killed": 0, "written": written}
        return {"stage": number, "rdds": rdds, **counts}

    first = [stage(4, "7,8", 9), stage(5, "9", 6, failed=2)]
    assert rerun_tasks(first) == 2
    again_for_the_next_job = stage(6, "7,8", 3)
    reduces = stage(7, "10", 9, failed=4, written=0)
    assert rerun_tasks([*first, again_for_the_next_job, reduces]) == 5


# ---- what is left ------------------------------------------------------------------------------------------


def test_what_is_left_is_seen(tmp_path: Path) -> None:
    disk, temporary = tmp_path / "disk", tmp_path / "t"
    home = disk / "sortshuffle" / "app-1" / "127.0.0.2-7-abc"
    home.mkdir(parents=True)
    (home / "exchange-1-map-0-attempt-0.data").touch()
    stored = Soak(1, tmp_path, tmp_path / "kept", print).mount.removeprefix("file://")
    object_path = Path(stored) / "app-1-abc" / "exchange-1" / "x.data"
    object_path.parent.mkdir(parents=True)
    object_path.touch()
    other = disk / "sortshuffle" / "app-2"
    other.mkdir()
    meeting = temporary / "sortshuffle-0" / "app-1-127.0.0.2-abc"
    meeting.mkdir(parents=True)
    everybody = checks.Survivors(
        frozenset(), frozenset({os.getsid(int(name)) for name in os.listdir("/proc") if name.isdecimal()})
    )
    with socket.socket(socket.AF_UNIX) as bound, open(home / "gone", "w"):
        (home / "gone").unlink()
        bound.bind(str(temporary / "sortshuffle-0" / "x.socket"))
        found = checks.left("app-1", everybody, (disk, tmp_path / "mount"), temporary)
    assert set(found.files) == {
        str(object_path.parent.parent),
        str(object_path.parent),
        str(object_path),
        str(home.parent),
        str(home),
        str(home / "exchange-1-map-0-attempt-0.data"),
        str(meeting.parent),
        str(meeting),
        str(temporary / "sortshuffle-0" / "x.socket"),
    }
    assert found.sockets == (str(temporary / "sortshuffle-0" / "x.socket"),)
    assert found.descriptors == (f"{os.getpid()} has {home / 'gone'} (deleted)",)
    assert found.processes == ()


def test_a_meeting_whose_supervisor_was_killed_may_stay(tmp_path: Path) -> None:
    own = tmp_path / "sortshuffle-0"
    killed, living, other = (
        own / f"app-{name}-abc" for name in ("1-127.0.0.2", "1-127.0.0.3", "2-127.0.0.2")
    )
    started = {killed: 0, living: process_start(os.getpid()), other: 0}
    for meeting, at in started.items():
        (meeting / "roots").mkdir(parents=True)
        (meeting / "service.json").write_text(json.dumps({"pid": os.getpid(), "started": at}))
    bound = Path(socket_path(str(killed)))  # beside it; in /tmp where that would be too long
    bound.parent.mkdir(mode=0o700, exist_ok=True)
    bound.touch()
    assert checks.unattended(tmp_path, "app-1", "127.0.0.2") == [killed]
    assert checks.unattended(tmp_path, "app-1", "127.0.0.3") == []
    everybody = checks.Survivors(
        frozenset(), frozenset({os.getsid(int(name)) for name in os.listdir("/proc") if name.isdecimal()})
    )
    found = checks.left("app-1", everybody, (), tmp_path, [killed])
    bound.unlink()
    assert set(found.files) == {
        str(path)
        for meeting in (living, other)
        for path in (meeting, meeting / "roots", meeting / "service.json")
    }


def test_processes_that_are_left_are_seen(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)", "marked"]
    with subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            sessions = {os.getsid(int(name)) for name in os.listdir("/proc") if name.isdecimal()}
            most = frozenset(sessions - {process.pid})
            seen = checks.left("app-1", checks.Survivors(frozenset(), most), (), tmp_path)
            spared = checks.left("app-1", checks.Survivors(frozenset({process.pid}), most), (), tmp_path)
        finally:
            process.kill()
    assert [line.split()[0] for line in seen.processes if "marked" in line] == [str(process.pid)]
    assert not [line for line in spared.processes if "marked" in line]


def test_connections_of_a_process() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        with socket.create_connection(server.getsockname()) as client:
            here, there = (f"127.0.0.1:{at.getsockname()[1]}" for at in (client, server))
            assert (here, there) in set(connections({os.getpid()}))
        assert list(connections({1 << 22})) == []


def test_memory_and_threads_of_a_process() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            found = checks.footprint(process.pid)
        finally:
            process.kill()
    assert found.threads == 1
    assert 0 < found.resident < 64 << 20


# ---- what ran ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("decisions", "is_used", "found"),
    [
        ({OURS: 3, CONTROL: 5}, True, {}),
        ({CONTROL: 5}, False, {}),
        ({}, False, {}),
        ({CONTROL: 5}, True, f"none through the manager, {{{CONTROL!r}: 5}}"),
        ({OURS: 3, "its rows are not known": 1}, True, {"its rows are not known": 1}),
    ],
)
def test_shuffles_that_went_past_the_manager(
    decisions: dict[str, int], is_used: bool, found: dict[str, int] | str
) -> None:
    assert astray(decisions, is_used) == found


def test_the_time_of_a_soak_begins_when_its_cluster_is_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]

    def later(*_: Any, **__: Any) -> None:
        now[0] += 50

    monkeypatch.setattr(run, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(run, "mount_disk", lambda *_: None)
    monkeypatch.setattr(Cluster, "up", later)
    monkeypatch.setattr(Soak, "_repair", lambda _: None)
    numbers: list[int] = []

    def do(_: Soak, what: plan.Application, deadline: float) -> None:
        assert deadline == 160
        numbers.append(what.number)
        later()

    monkeypatch.setattr(Soak, "_application", do)
    Soak(1, tmp_path, tmp_path / "kept", print).run(110)
    assert numbers == [0, 1, 2]


# ---- the report --------------------------------------------------------------------------------------------


def filled() -> report.Tally:
    tally = report.Tally(applications=3, killed_drivers=1, rerun_tasks=7)
    tally.jobs.update(frame=5, rdd=4, manager=2)
    tally.faults.update(service=3, executor=1)
    tally.missed.update(executor=6)
    tally.futile.update(executor=5, cut=4)
    tally.garbage_checks, tally.checks_with_garbage = 3, 2
    tally.service_memory, tally.service_threads = 130 << 20, 6
    tally.failed["a full disk"] += 1
    return tally


def test_the_table() -> None:
    assert report.table(filled(), 60.4) == [
        "| | |",
        "|---|---|",
        "| minutes | 60 |",
        "| applications | 3, of which 1 drivers were killed |",
        "| jobs | 11 (frame 5, manager 2, rdd 4) |",
        "| faults | 4 (executor 1, service 3) |",
        "| faults whose moment did not come | 6 (executor 6) |",
        "| faults that found nothing to break | 9 (cut 4, executor 5) |",
        "| attempts of map tasks beyond the first | 7 |",
        "| checks that garbage goes | 3, of which 2 had any |",
        "| memory of an administrator's service, at most | 130 MiB, 6 threads |",
        "| jobs that failed as documented, and were right when run again | 1 (a full disk 1) |",
        "| jobs that failed otherwise | 0 |",
        "| jobs that hung | 0 |",
        "| wrong results | 0 |",
        "| leftovers | 0 |",
    ]


def test_a_record_is_one_line_more(tmp_path: Path) -> None:
    path = tmp_path / "soak.jsonl"
    for seed in (1, 2):
        report.append(report.record(filled(), seed, 60.0), path)
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert [each["seed"] for each in records] == [1, 2]
    assert (records[0]["wrong"], records[0]["faults"]) == (0, {"service": 3, "executor": 1})
    assert (records[0]["service_memory"], records[0]["service_threads"]) == (130 << 20, 6)
    assert (records[0]["garbage_checks"], records[0]["checks_with_garbage"]) == (3, 2)
    assert {"time", "commit", "spark", "pyarrow", "python", "software"} <= set(records[0])


def test_a_problem_makes_a_soak_bad() -> None:
    tally = filled()
    assert tally.is_good()
    tally.problems.append("application 1 (auto): wrong")
    assert not tally.is_good()


def test_a_soak_that_did_nothing_is_bad() -> None:
    assert report.Tally().gaps() == ["no job has run"]
    assert not report.Tally(applications=1).is_good()


@pytest.mark.parametrize("came_to_nothing", ["futile", "missed"])
def test_a_kind_of_fault_that_never_strikes_makes_a_soak_bad(came_to_nothing: str) -> None:
    tally = filled()
    assert tally.without_effect() == []
    getattr(tally, came_to_nothing)["cut"] += 1
    assert tally.without_effect() == ["cut"]
    assert tally.gaps() == ["cut: 5 of these faults, and none had an effect"]
    assert not tally.is_good()
    tally.faults["cut"] += 1
    assert tally.is_good()


# ---- its end -----------------------------------------------------------------------------------------------


def test_an_interrupt_ends_everything(tmp_path: Path) -> None:
    """Also of a shell's background job, which is started with SIGINT ignored. It comes while the cluster
    starts."""
    if subprocess.run(["unshare", "--pid", "--fork", "true"], check=False).returncode:
        pytest.skip("namespaces are not permitted here")
    paths = os.pathsep.join((str(ROOT), str(ROOT / "tools" / "lib")))
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        soak = subprocess.Popen(
            [sys.executable, "-u", "-m", "soak", "--minutes", "1", "--seed", "1"],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": paths, "TMPDIR": str(tmp_path)},
            text=True,
            cwd=tmp_path,
        )
    finally:
        signal.signal(signal.SIGINT, before)
    with soak:
        assert soak.stdout is not None
        assert soak.stdout.readline().startswith("Seed 1,")
        (scratch,) = tmp_path.glob("soak-*")
        eventually((scratch / "c" / "master.log").exists, "the cluster to be started")
        soak.send_signal(signal.SIGTERM)
        assert "interrupted" in soak.stdout.read()
        assert soak.wait() == 1
    assert list(tmp_path.iterdir()) == []
