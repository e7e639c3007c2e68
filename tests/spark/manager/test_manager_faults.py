"""What a session survives: files that are lost or damaged between the stages, an engine that is killed at any
time, a full disk, executors and drivers that are killed.

A map output that is lost costs one run of its map task, however many are lost at once; what is not lost does
not run again.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from driver_process import JobError
from engine import eventually, kill, small_disk
from fault_stages import attempts, map_runs, paused
from served_session import EXECUTOR, ON_EXECUTORS, Session

from sortshuffle.format.header import HEADER_BYTES
from sortshuffle.service.host.rendezvous import address_of
from sortshuffle.service.wire.address import split_address

ENGINE, SUPERVISOR = "sortshuffle.service.host.process", "sortshuffle.service.host.supervisor"
PATIENCE = 90.0  # seconds until tasks that are told nothing must have got somewhere
BOUND = 60.0  # seconds in which a job that cannot go on must have failed
MANY_ROWS = 300_000  # 20 MB more than two slots hold, for each of two tasks that wait in the middle
SOON_TRIED_AGAIN = {
    "spark.network.timeout": "6s",
    "spark.executor.heartbeatInterval": "1s",  # it must be shorter
    "spark.rpc.askTimeout": "120s",  # the rest is as without these
    "spark.storage.blockManagerHeartbeatTimeoutMs": "120s",
}
"""A removal that fails is tried again after two network time-outs."""
MAPS, REDUCES = 4, 3  # of the shuffles that `hold_pairs` and `hold_rows` make


# ---- ways to lose a map output -----------------------------------------------------------------------------


def index_of(data: Path) -> Path:
    return data.with_suffix(".index")


def both_deleted(data: Path) -> None:
    data.unlink()
    index_of(data).unlink()


def data_deleted(data: Path) -> None:
    data.unlink()


def index_deleted(data: Path) -> None:
    index_of(data).unlink()


def truncated(data: Path) -> None:
    os.truncate(data, data.stat().st_size // 2)


def emptied(data: Path) -> None:
    os.truncate(data, 0)


def flipped(path: Path, share: float = 0.75) -> None:
    """One bit."""
    at = int(path.stat().st_size * share)
    with open(path, "r+b", buffering=0) as opened:
        byte = os.pread(opened.fileno(), 1, at)[0]
        os.pwrite(opened.fileno(), bytes([byte ^ 4]), at)


def flipped_late(data: Path) -> None:
    """In the last subpartition: what reads the others finds nothing wrong."""
    flipped(data, 0.95)


def flipped_in_the_header(data: Path) -> None:
    flipped(data, 0.0)


def flipped_in_the_index(data: Path) -> None:
    flipped(index_of(data))


WAYS = [
    both_deleted,
    data_deleted,
    index_deleted,
    truncated,
    emptied,
    flipped,
    flipped_in_the_header,
    flipped_in_the_index,
]


# ---- a session that lives through all of it ----------------------------------------------------------------


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """Two tasks at a time, each of which may fail three times. The time-out is one that the engine
    understands, and Spark does not."""
    settings = {"spark.master": "local[2,4]", "spark.sortshuffle.service.timeout": "1.5min"}
    session = Session(tmp_path_factory.mktemp("faults"), True, settings)
    try:
        yield session
    finally:
        session.kill()


@pytest.fixture(autouse=True)
def engine_log(request: pytest.FixtureRequest) -> Iterator[None]:
    """What the engine has said, beside a failure."""
    yield
    if "session" in request.fixturenames:
        print(request.getfixturevalue("session").engine_log()[-3000:])


def newest_outputs(session: Session) -> list[Path]:
    """Of the shuffle that was written last."""
    return session.outputs_of(max(int(path.name.split("-")[1]) for path in session.map_outputs()))


def hold(session: Session, job: str, **arguments: Any) -> list[Path]:
    """Run a map stage; its data files, by map index."""
    return session.outputs_of(session.run(job, name="held", **arguments).value["shuffle"])


# ---- map outputs lost between the stages -------------------------------------------------------------------


@pytest.mark.parametrize("job", ["hold_pairs", "hold_rows"])
def test_nothing_runs_again_if_nothing_is_lost(session: Session, job: str) -> None:
    assert len(hold(session, job)) == MAPS
    found = session.run("read_held", name="held").value
    assert (found["right"], map_runs(found), attempts(found)) == (True, 0, 1)


@pytest.mark.parametrize("rows", [8000, 100_000])
def test_bytes_and_rows_are_counted_as_spark_shows_them(session: Session, rows: int) -> None:
    """Those of map outputs that are read whole, and of larger ones."""
    outputs = hold(session, "hold_rows", rows=rows)
    size = sum(path.stat().st_size - HEADER_BYTES for path in outputs)
    found = session.run("read_held", name="held").value
    (stage,) = found["stages"]
    assert (stage["read"], stage["remote"], stage["read_rows"]) == (size, 0, rows)


def test_a_task_that_reads_no_further_has_read_what_came(session: Session) -> None:
    found = session.run("first_rows", rows=200_000).value
    assert found["right"]
    stage = found["stages"][-1]
    written = sum(each["bytes_written"] for each in found["stages"])
    assert 0 < stage["read"] < written
    assert 3 <= stage["read_rows"] < 200_000


@pytest.mark.parametrize(
    ("job", "lose"),
    # The engine finds all damage, and does not know rows from pairs: other code only decodes them afterwards.
    # So two ways are enough for pairs: one that it meets when it opens the files, one when it reads them
    [*(("hold_rows", way) for way in WAYS), ("hold_pairs", both_deleted), ("hold_pairs", flipped)],
)
def test_one_map_output_that_is_lost_is_one_task_run_again(
    session: Session, job: str, lose: Callable[[Path], None]
) -> None:
    lose(hold(session, job)[-1])  # what comes before it in a reader's request is sound
    found = session.run("read_held", name="held").value
    assert (found["right"], map_runs(found), attempts(found)) == (True, 1, 2)
    again = session.run("read_held", name="held").value
    assert (again["right"], map_runs(again), attempts(again)) == (True, 0, 1)


def test_lost_map_outputs_of_frames_cost_local_mode_no_block_manager(session: Session) -> None:
    """Control rows are Spark's own shuffle. Where Spark finds map outputs of its own lost, it gives up the
    executor that had them, which is the only one here. More are lost than a stage may have attempts."""
    before = set(session.map_outputs())
    session.run("hold_frames", name="held", frames=6)
    made = set(session.map_outputs()) - before
    assert len(made) == 6 * 2
    for data in made:
        data.unlink()
    found = session.run("read_held", name="held").value
    assert found["right"]
    assert session.run("large_results", tasks=2, megabytes=2).value == [2 << 20] * 2


@pytest.mark.parametrize("maps", [12, 100])
def test_however_many_are_lost_the_stage_has_one_more_attempt(session: Session, maps: int) -> None:
    for data in hold(session, "hold_rows", maps=maps):
        both_deleted(data)
    found = session.run("read_held", name="held").value
    assert (found["right"], map_runs(found), attempts(found)) == (True, maps, 2)


@pytest.mark.parametrize("maps", [40, 120])
def test_losses_of_which_each_task_sees_one_are_one_more_attempt(session: Session, maps: int) -> None:
    """Each task reads one map output alone. Spark gives up after four attempts, of two tasks at a time. A
    reader asks for a hundred map outputs at a time."""
    for data in hold(session, "hold_pairs", maps=maps, partitions=maps, rows=maps):
        both_deleted(data)
    found = session.run("read_held", name="held").value
    assert (found["right"], map_runs(found), attempts(found)) == (True, maps, 2)


def test_losses_that_lie_far_apart_are_one_more_attempt(session: Session) -> None:
    """Each map output has the rows of eighty tasks, one behind the other, as of sorted input."""
    maps, partitions = 8, 640
    for data in hold(session, "hold_pairs", maps=maps, partitions=partitions, rows=partitions):
        both_deleted(data)
    found = session.run("read_held", name="held").value
    assert (found["right"], map_runs(found), attempts(found)) == (True, maps, 2)


def test_of_many_that_each_task_reads_alone_only_those_that_are_lost_run_again(session: Session) -> None:
    maps = 40
    outputs = hold(session, "hold_pairs", maps=maps, partitions=maps, rows=maps)
    for data in outputs[::3]:
        both_deleted(data)
    found = session.run("read_held", name="held").value
    assert (found["right"], map_runs(found), attempts(found)) == (True, len(outputs[::3]), 2)


def test_a_removal_that_comes_late_leaves_what_spark_has_made_again(session: Session) -> None:
    """In local mode it runs in the background. Removals keep their order, so another one tells when it has
    run."""
    outputs = hold(session, "hold_rows")
    shuffle = session.run("hold_rows", name="other").value["shuffle"]
    others = session.outputs_of(shuffle)
    assert len(outputs) == len(others) == MAPS
    session.run("remove_late", name="held")
    session.run("forget_held", name="other")
    eventually(lambda: not session.run("is_known", shuffle=shuffle).value, "Spark forgets it", PATIENCE)
    eventually(lambda: not any(each.exists() for each in others), "its files are removed", PATIENCE)
    assert [each for each in outputs if each.exists()] == outputs
    found = session.run("read_held", name="held").value
    assert found["right"]
    assert map_runs(found) == 0


def test_a_lost_directory(session: Session) -> None:
    """Everything that the application has on the host."""
    outputs = hold(session, "hold_pairs")
    shutil.rmtree(outputs[0].parent)
    found = session.run("read_held", name="held").value
    assert (found["right"], map_runs(found), attempts(found)) == (True, MAPS, 2)


@pytest.mark.parametrize("lose", [both_deleted, flipped_late])
def test_rows_that_go_elsewhere_when_a_task_runs_again(
    session: Session, lose: Callable[[Path], None]
) -> None:
    """Rows are neither lost nor doubled, although some tasks may have read theirs before: Spark sees by the
    row checksums that the rows are others, and begins the stage that reads them anew."""
    lose(hold(session, "hold_random_places")[-1])
    found = session.run("read_held", name="held").value
    assert found["right"]
    readers = [each for each in found["stages"] if each["stage"] == found["stages"][-2]["stage"]]
    assert readers[-1]["complete"] == REDUCES


# ---- the engine --------------------------------------------------------------------------------------------


def test_an_engine_killed_between_the_stages_costs_nothing(session: Session) -> None:
    hold(session, "hold_pairs")
    before = session.engine()
    os.kill(before, signal.SIGKILL)
    found = session.run("read_held", name="held").value
    assert (found["right"], map_runs(found), attempts(found)) == (True, 0, 1)
    assert session.engine() != before


def kill_service(session: Session) -> None:
    """So that nothing starts it again but a task, or a removal."""
    for pid in (*session.pids(SUPERVISOR), *session.pids(ENGINE)):
        with suppress(ProcessLookupError):  # without its supervisor an engine ends by itself
            os.kill(pid, signal.SIGKILL)
    eventually(lambda: not (session.pids(SUPERVISOR) or session.pids(ENGINE)), "both have ended")


def test_engine_and_supervisor_killed_between_the_stages(session: Session) -> None:
    hold(session, "hold_pairs")
    (supervisor,) = session.pids(SUPERVISOR)
    session.engine()  # there is one
    kill_service(session)
    found = session.run("read_held", name="held").value
    assert (found["right"], map_runs(found), attempts(found)) == (True, 0, 1)
    assert session.pids(SUPERVISOR) != [supervisor]


def test_memory_for_frames_is_that_of_the_tasks_that_write_at_a_time(session: Session) -> None:
    """Tasks that read take none of it, and that of an engine that has died is let go."""
    for _ in range(3):
        assert session.run("passed_on", rows=1000).value == 1000
    assert 1 <= session.frame_memories() <= 2
    os.kill(session.engine(), signal.SIGKILL)
    assert session.run("passed_on", rows=1000).value == 1000
    assert 1 <= session.frame_memories() <= 2


def two_threads_in(session: Session, method: str) -> None:
    eventually(lambda: session.threads_in(method) == 2, f"two tasks wait in {method}", PATIENCE)


def test_tasks_wait_for_an_engine_that_is_slow_to_take_their_frames(session: Session) -> None:
    """A task has two slots. It fills one again when the engine has said that it needs it no more."""
    answer, directory = paused(session, "map", PATIENCE, rows=MANY_ROWS)
    engine = session.engine()
    os.kill(engine, signal.SIGSTOP)
    try:
        (directory / "go").touch()
        two_threads_in(session, "org.sortshuffle.MapOutput.slot")
    finally:
        os.kill(engine, signal.SIGCONT)
    found = answer.result(PATIENCE).value
    assert (found["right"], map_runs(found), session.engine()) == (True, 2, engine)


def test_tasks_wait_for_an_engine_that_is_slow_to_answer(session: Session) -> None:
    """And their waiting is counted."""
    hold(session, "hold_rows")
    session.run("read_held", name="held")  # so that there are connections: greeting an engine is not counted
    engine = session.engine()
    os.kill(engine, signal.SIGSTOP)
    try:
        answer = session.start("read_held", name="held")
        two_threads_in(session, "org.sortshuffle.RecordStream")
    finally:
        os.kill(engine, signal.SIGCONT)
    found = answer.result(PATIENCE).value
    assert (found["right"], map_runs(found), attempts(found)) == (True, 0, 1)
    assert found["stages"][-1]["fetch_wait"] > 0


def test_an_engine_killed_while_tasks_write(session: Session) -> None:
    """They fail, and run again."""
    answer, directory = paused(session, "map", PATIENCE)
    assert session.unfinished()
    os.kill(session.engine(), signal.SIGKILL)
    (directory / "go").touch()
    found = answer.result(PATIENCE).value
    assert found["right"]
    assert map_runs(found) == 4  # two failed, two did not
    eventually(lambda: not session.unfinished(), "the unfinished files go")


def test_an_engine_killed_while_tasks_read(session: Session) -> None:
    """They ask the next one for the rest, and do not even fail."""
    answer, directory = paused(session, "reduce", PATIENCE)
    os.kill(session.engine(), signal.SIGKILL)
    (directory / "go").touch()
    found = answer.result(PATIENCE).value
    assert found["right"]
    assert map_runs(found) == 2
    assert sum(each["failed"] for each in found["stages"]) == 0


def test_files_that_are_lost_while_tasks_read_them(session: Session) -> None:
    """The engine has them open: no map task runs again."""
    answer, directory = paused(session, "reduce", PATIENCE)
    for data in newest_outputs(session):
        both_deleted(data)
    (directory / "go").touch()
    found = answer.result(PATIENCE).value
    assert found["right"]
    assert map_runs(found) == 2
    assert sum(each["failed"] for each in found["stages"]) == 0


def test_an_engine_killed_with_what_its_readers_need(session: Session) -> None:
    """The next one finds that a map output is gone."""
    answer, directory = paused(session, "reduce", PATIENCE)
    both_deleted(newest_outputs(session)[0])
    os.kill(session.engine(), signal.SIGKILL)
    (directory / "go").touch()
    found = answer.result(PATIENCE).value
    assert found["right"]
    assert map_runs(found) == 3


def test_it_is_all_gone_after_the_driver_is_killed(session: Session) -> None:
    """The last test of this session."""
    paused(session, "map", PATIENCE)
    session.kill()
    session.nothing_is_left()


# ---- tasks that may not fail; a disk that is full ----------------------------------------------------------


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with small_disk(tmp_path_factory.mktemp("small") / "disk", "size=110m") as disk:
        yield disk


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with what `strict` runs in place of the engine's Python, and with what that is told."""
    directory = tmp_path_factory.mktemp("launcher")
    changed = directory / "changed"
    changed.mkdir()
    (changed / "sitecustomize.py").write_text("import os\ndel os.memfd_create\n")
    script(
        directory / "python",
        f"[ -e {directory / 'broken'} ] && exit 1",
        f"[ -e {directory / 'no_memory'} ] && export PYTHONPATH={changed}",
        f'[ -e {directory / "mended"} ] && exec {sys.executable} "$@"',
        f"echo run >> {directory / 'runs'}",
        f"while [ ! -e {directory / 'go'} ]; do sleep 0.05; done",
        "echo this Python is broken >&2; exit 1",
    )
    return directory


@pytest.fixture(scope="module")
def strict_session(disk: Path, launcher: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """A session on a small disk, which ends a job with the first task that fails. Its engine cannot be
    started yet."""
    settings = {
        "spark.sortshuffle.dir": str(disk),
        "spark.sortshuffle.codec": "none",
        "spark.sortshuffle.manager.memory": "16m",
        "spark.sortshuffle.manager.python": str(launcher / "python"),
        **SOON_TRIED_AGAIN,
    }
    session = Session(tmp_path_factory.mktemp("strict"), True, settings)
    try:
        yield session
    finally:
        session.kill()


@pytest.fixture
def strict(strict_session: Session, launcher: Path) -> Session:
    """The same, whose engine can be started. No launcher waits any more: the test that lets them go may have
    failed, or not have run."""
    for name in ("mended", "go"):
        (launcher / name).touch()
    return strict_session


def script(path: Path, *lines: str) -> None:
    """A program to run instead of the engine's Python."""
    path.write_text("\n".join(("#!/bin/sh", *lines, "")))
    path.chmod(0o755)


def below(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file()]


def test_tasks_that_wait_for_a_launch_fail_with_it_and_later_ones_launch_again(
    strict_session: Session, launcher: Path
) -> None:
    """The first test of this session. However many wait, the launcher runs once: it may take minutes to
    fail."""
    found = strict_session.run("wait_for_one_launch", tasks=2, go=str(launcher / "go")).value
    for words in (
        "The shuffle engine of this host cannot be started by",
        str(launcher / "python"),
        "this Python is broken",
        "spark.sortshuffle.manager.python",
    ):
        assert words in found
    assert (launcher / "runs").read_text() == "run\n"
    (launcher / "mended").touch()
    hold(strict_session, "hold_pairs")
    assert strict_session.run("read_held", name="held").value["right"]


def test_a_full_disk_fails_the_job_with_its_name_and_leaves_nothing(strict: Session, disk: Path) -> None:
    before = {path for path in below(disk) if "exchange-" in path.name}
    with pytest.raises(JobError) as raised:
        strict.start("large", megabytes=140, maps=2).result(BOUND)
    assert "The shuffle engine reports" in str(raised.value)
    assert str(disk) in str(raised.value)
    assert "no space left" in str(raised.value).lower()

    def is_gone() -> bool:
        return {path for path in below(disk) if "exchange-" in path.name} <= before

    eventually(is_gone, "what was begun goes")


def test_after_a_full_disk_what_fits_runs(strict: Session) -> None:
    assert strict.run("large", megabytes=4, maps=2).value == 4000


def test_an_engine_that_dies_fails_a_job_whose_tasks_may_not_fail(strict: Session) -> None:
    answer, directory = paused(strict, "map", PATIENCE)
    os.kill(strict.engine(), signal.SIGKILL)
    (directory / "go").touch()
    with pytest.raises(JobError, match="shuffle engine of this host closed the connection in the middle of"):
        answer.result(BOUND)


@contextmanager
def launched_with(told: Path) -> Iterator[None]:
    """The launcher is told something until the end, also of a test that fails."""
    told.touch()
    try:
        yield
    finally:
        told.unlink()


def test_frames_come_through_the_socket_where_no_memory_can_be_shared(
    strict: Session, launcher: Path
) -> None:
    with launched_with(launcher / "no_memory"):
        kill_service(strict)
        for job in ("hold_rows", "hold_pairs"):
            strict.run(job, name="held", rows=50_000)
            assert strict.run("read_held", name="held").value["right"]
        assert "no memory can be shared" in strict.engine_log()
    kill_service(strict)


def test_a_removal_that_fails_is_tried_once_more(strict: Session, launcher: Path, disk: Path) -> None:
    """Where nobody else removes the files: in local mode, and of executors that are gone."""
    shuffle = strict.run("hold_rows", name="held").value["shuffle"]
    outputs = [path for path in below(disk) if path.match(f"exchange-{shuffle}-*.data")]
    assert len(outputs) == MAPS
    with launched_with(launcher / "broken"):
        kill_service(strict)
        strict.run("forget_held", name="held")
        eventually(lambda: not strict.run("is_known", shuffle=shuffle).value, "Spark forgets it", PATIENCE)
        failed = f"Some files of shuffle {shuffle} may stay"
        eventually(lambda: failed in strict.log.read_text(), "the removal fails", PATIENCE)
        assert [each for each in outputs if each.exists()] == outputs
    eventually(lambda: not any(each.exists() for each in outputs), "they are removed", PATIENCE)


def test_a_session_on_its_own_disk_leaves_nothing_there(strict: Session, disk: Path) -> None:
    """The last test of this session."""
    strict.stop()
    strict.nothing_is_left()
    eventually(lambda: not below(disk), "the disk is empty")


# ---- executors ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def drivers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the engine's Python of `cluster`: until it is mended it works on executors alone."""
    directory = tmp_path_factory.mktemp("drivers")
    script(
        directory / "python",
        f'[ -n "$ON_EXECUTOR" ] || [ -e {directory / "mended"} ] && exec {sys.executable} "$@"',
        f"echo run >> {directory / 'runs'}; exit 1",
    )
    return directory


@pytest.fixture(scope="module")
def cluster_session(drivers: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """Two executors on this host, which count as dead when they have been silent for 20 s."""
    settings = {
        **ON_EXECUTORS,
        "spark.master": "local-cluster[2,1,1024]",
        "spark.executor.memory": "768m",
        "spark.executorEnv.ON_EXECUTOR": "1",
        "spark.sortshuffle.manager.python": str(drivers / "python"),
        "spark.storage.blockManagerHeartbeatTimeoutMs": "20s",
        "spark.network.timeout": "15s",  # removals that fail are tried again after two of these
        "spark.network.timeoutInterval": "2s",
        "spark.executor.heartbeatInterval": "2s",
        "spark.rpc.askTimeout": "60s",
        "spark.cleaner.referenceTracking.blocking": "false",  # or Spark waits for the dead, and then cleans
    }
    session = Session(tmp_path_factory.mktemp("cluster"), True, settings)
    try:
        yield session
    finally:
        session.kill()


@pytest.fixture
def cluster(cluster_session: Session, drivers: Path) -> Session:
    """The same, in which the driver may have an engine."""
    (drivers / "mended").touch()
    return cluster_session


def test_files_are_removed_where_executors_are_without_an_engine_of_the_driver(
    cluster_session: Session, drivers: Path
) -> None:
    """The driver's host need not have this package's Python. The first test of this session: later ones kill
    executors, whose files are the driver's to remove."""
    for _ in range(2):  # when the second one's files are gone the driver has done with the first
        outputs = hold(cluster_session, "hold_rows")
        assert len(outputs) == MAPS
        cluster_session.run("forget_held", name="held")
        are_removed(cluster_session, outputs)
    assert not (drivers / "runs").exists()


def are_removed(session: Session, outputs: list[Path]) -> None:
    def are_gone() -> bool:
        session.run("collect_garbage")
        return not any(path.exists() or index_of(path).exists() for path in outputs)

    eventually(are_gone, "the files of a forgotten shuffle go", PATIENCE)


def test_files_are_removed_whose_executors_are_dead_and_spark_does_not_know_it_yet(cluster: Session) -> None:
    """The driver passes their service over first: an executor that is alive removes the files itself. When it
    comes back it leaves those alone which Spark has made again meanwhile. This test comes before others that
    kill executors: where none uses a service that was told, the driver asks it at once."""
    eventually(lambda: len(cluster.run("executors").value) == 2, "two executors", PATIENCE)
    shuffle = cluster.run("hold_rows", name="made again").value["shuffle"]
    first = cluster.outputs_of(shuffle)
    cluster.run("remove_and_make_again", name="made again")
    eventually(lambda: not any(each.exists() for each in first), "they are removed, and made again")
    made_again = cluster.outputs_of(shuffle)
    assert len(made_again) == MAPS
    forgotten = cluster.run("hold_rows", name="held").value["shuffle"]
    outputs = cluster.outputs_of(forgotten)
    assert len(outputs) == MAPS
    victims = cluster.executors(2)
    try:
        for victim in victims:  # their connections stay, so only time tells
            os.kill(victim, signal.SIGSTOP)
        cluster.run("forget_held", name="held")
        eventually(lambda: not cluster.run("is_known", shuffle=forgotten).value, "Spark forgets it", PATIENCE)
        assert len(cluster.run("executors").value) == 2, "for Spark they are alive"
        assert [each for each in outputs if each.exists()] == outputs
        are_removed(cluster, outputs)
        assert [each for each in made_again if each.exists()] == made_again
    finally:
        for victim in set(victims) & set(cluster.pids(EXECUTOR)):
            with suppress(ProcessLookupError):
                os.kill(victim, signal.SIGCONT)  # to end in order, and remove their directories
    eventually(lambda: not set(victims) & set(cluster.pids(EXECUTOR)), "they end", PATIENCE)
    cluster.run("forget_held")


def test_an_executor_killed_between_the_stages_costs_nothing(cluster: Session) -> None:
    eventually(lambda: len(cluster.run("executors").value) == 2, "two executors", PATIENCE)
    outputs = hold(cluster, "hold_rows", maps=6)
    assert len(outputs) == 6
    assert len(cluster.pids(ENGINE)) == 1  # both have the same
    victims = cluster.executors(2)
    for victim in victims:  # the files of the one that ran map tasks are among them
        kill(victim)
    eventually(lambda: not any(psutil.pid_exists(victim) for victim in victims), "the executors are gone")
    found = cluster.run("read_held", name="held").value
    assert (found["right"], map_runs(found), attempts(found)) == (True, 0, 1)


def test_an_executor_killed_while_its_task_writes(cluster: Session) -> None:
    answer, directory = paused(cluster, "map", PATIENCE)
    kill(cluster.executors(2)[0])
    (directory / "go").touch()
    assert answer.result(PATIENCE).value["right"]
    eventually(lambda: not cluster.unfinished(), "the unfinished files go")


def taken_from_service(session: Session, address: tuple[str, int]) -> socket.socket:
    """Somebody else listens there. An executor that removes files starts the service again at any time."""
    found: list[socket.socket] = []

    def is_taken() -> bool:
        kill_service(session)
        with suppress(OSError):
            found.append(socket.create_server(address))
        return bool(found)

    eventually(is_taken, f"the port of {address} is free", PATIENCE)
    return found[0]


def test_a_service_that_comes_back_on_another_port_is_found_by_all_executors(cluster: Session) -> None:
    """The one that starts it anew knows the port; the others find the engine on the socket that they know."""
    eventually(lambda: len(cluster.run("executors").value) == 2, "two executors", PATIENCE)
    hold(cluster, "hold_rows", maps=6)
    (directory,) = {str(path.parent) for path in cluster.temporary.glob("sortshuffle-*/*/service.json")}
    address = split_address(address_of(directory))
    with taken_from_service(cluster, address):
        hold(cluster, "hold_rows", maps=1)
        assert split_address(address_of(directory))[1] != address[1]
        hold(cluster, "hold_rows", maps=6)
        found = cluster.run("read_held", name="held").value
    assert (found["right"], map_runs(found), attempts(found)) == (True, 0, 1)


def test_nothing_is_left_after_a_session_with_executors(cluster: Session) -> None:
    """The last test of this session."""
    cluster.stop()
    cluster.nothing_is_left()


def test_it_is_all_gone_after_a_driver_is_killed_that_had_no_engine(tmp_path: Path) -> None:
    """On `local-cluster` nothing removes Spark's directories then. Its executor is killed with it."""
    settings = {**ON_EXECUTORS, "spark.master": "local-cluster[1,1,1024]", "spark.executor.memory": "768m"}
    session = Session(tmp_path, True, settings)
    try:
        assert len(hold(session, "hold_rows")) == MAPS
        session.kill()
        session.nothing_is_left()
    finally:
        session.kill()


def test_an_idle_executor_goes_and_its_map_outputs_stay(tmp_path: Path) -> None:
    """With dynamic allocation. The stage that reads them has an executor of its own."""
    settings = {
        **ON_EXECUTORS,
        "spark.master": "local-cluster[1,1,1024]",
        "spark.executor.memory": "768m",
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.executorIdleTimeout": "1",
    }
    session = Session(tmp_path, True, settings)
    try:
        assert len(hold(session, "hold_rows", maps=6)) == 6
        eventually(lambda: not session.run("executors").value, "the executor goes", PATIENCE)
        found = session.run("read_held", name="held").value
        assert (found["right"], map_runs(found), attempts(found)) == (True, 0, 1)
        session.stop()
        session.nothing_is_left()
    finally:
        session.kill()
