"""One map output of a JVM's task, without a socket: its frames' memory, and what is left if a call fails."""

from __future__ import annotations

import os
import resource
import threading
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from engine import open_files, printed
from failing import faults
from jvm_client import APPLICATION, SETTINGS, TOKEN, WRITERS, Serving, frame_of, serving

from sortshuffle.errors import BufferTimeoutError, StateError
from sortshuffle.homes import home_failures
from sortshuffle.homes.processes import boot_id
from sortshuffle.homes.shared_home import shared_home
from sortshuffle.memory.limit import INTERPRETER_RESERVE
from sortshuffle.options import GIB, KIB, MIB
from sortshuffle.service.jvm import engine as engines
from sortshuffle.service.jvm.engine import Engine, SharedHomes
from sortshuffle.service.jvm.map_output_writer import SEGMENT_BYTES, MapOutputWriter, records_of
from sortshuffle.service.jvm.protocol import WriteRequest

TESTS = Path(__file__).parents[2]
REQUEST = WriteRequest(shuffle=3, map_index=0, map_id=7, subpartitions=4, stage=5)
RECORDS = [(0, b"a" * 100), (3, b"b" * 2000), (1, b""), (0, b"c")]


def add(writing: MapOutputWriter, body: bytes) -> None:
    """As the server takes the body of a FRAME."""
    frame = body[8:]
    memory = writing.frame_memory(len(frame))
    try:
        memory.view[:] = frame
        writing.add(records_of(memory.view, int.from_bytes(body[:4], "little")))
    finally:
        memory.release()


def test_a_frame_lies_in_a_segment_and_a_huge_record_in_memory_of_its_own(engine: Serving) -> None:
    segments = engine.engine._writing.segments
    assert SEGMENT_BYTES == 4 * MIB + 8 * 262_144, "the largest frame that the document allows"
    with engine.engine.writing(REQUEST) as writing:
        for size, taken in ((1, 1), (SEGMENT_BYTES, 1), (SEGMENT_BYTES + 1, 0)):
            memory = writing.frame_memory(size)
            assert memory.view.nbytes == size
            in_use = segments.total - segments.available - writing._pool.available
            assert in_use == taken
            memory.release()
    assert engine.is_idle()


@pytest.mark.parametrize(("subpartitions", "regions"), [(1, 3), (32, 3), (64, 2), (128, 1)])
def test_regions_are_no_larger_than_a_task_that_reads_needs(
    tmp_path: Path, subpartitions: int, regions: int
) -> None:
    """Of 48 MiB: 16 MiB at a time where subpartitions are few, half a MiB for each where they are many,
    although there is memory for all."""
    frames = [[(at % subpartitions, b"%d" % at + bytes(MIB))] for at in range(48)]
    with serving(tmp_path, write_memory=256 * MIB) as engine:
        done = engine.connect().write(frames, subpartitions=subpartitions)
    assert done.spills == regions - 1


def test_what_is_not_finished_is_abandoned(engine: Serving) -> None:
    with engine.engine.writing(REQUEST) as writing:
        add(writing, frame_of(RECORDS))
        assert len(engine.files()) == 2
        assert engine.engine.memory.used > 0
    assert engine.is_idle()
    assert engine.files() == []
    with pytest.raises(StateError):
        writing.finish()


def test_closing_behind_the_end_keeps_the_files(engine: Serving) -> None:
    with engine.engine.writing(REQUEST) as writing:
        add(writing, frame_of(RECORDS))
        writing.finish()
        assert engine.engine.memory.used == 0, "all is given back at the end"
        writing.close()
        writing.close()
    assert engine.is_idle()
    assert len(engine.files()) == 2


def test_whoever_waits_too_long_for_a_turn_is_told(engine: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "WRITER_TIMEOUT", 0.01)
    with ExitStack() as stack:
        for map_id in range(WRITERS):
            stack.enter_context(engine.engine.writing(replace(REQUEST, map_id=map_id)))
        with (
            pytest.raises(BufferTimeoutError, match=r"4 map outputs .*spark\.executor\.cores"),
            engine.engine.writing(replace(REQUEST, map_id=9)),
        ):
            pass
    with engine.engine.writing(REQUEST) as writing:
        writing.finish()
    assert engine.is_idle()


def test_a_failure_of_any_call_leaves_no_file_and_gives_everything_back(engine: Serving) -> None:
    failed: Counter[str] = Counter()
    body = frame_of(RECORDS)
    for fault in faults(
        "service/jvm/outputs.py",
        "writing/result_partition.py",
        "writing/placed_records.py",
        "storage/writer.py",
    ):
        with fault, engine.engine.writing(REQUEST) as writing:
            for _ in range(3):
                add(writing, body)
            writing.finish()
        failed[fault.where] += 1
        assert engine.is_idle(), fault.where
        assert open_files(engine.homes[0]) == [], fault.where
        if not fault.where:
            assert len(engine.files()) == 2
        if os.path.exists(f"{engine.homes[0]}/exchange-3-map-0-attempt-7.index"):
            engine.engine.outputs.remove(3)  # there was no fault, or one behind its end
        assert engine.files() == [], fault.where
    for often in ("new", "create", "add", "drain", "finish", "_clustered", "start_region"):
        assert failed[often] > 0, often


def test_a_home_that_many_need_at_once_is_made_and_not_taken_for_broken(tmp_path: Path) -> None:
    """The first tasks of an executor all begin at the same moment."""
    for number in range(20):
        home = shared_home(str(tmp_path / str(number)), APPLICATION, boot_id(), TOKEN)
        engine = Engine(SETTINGS, lambda home=home: SharedHomes((home,), TOKEN))
        together = threading.Barrier(8)

        def ask(engine: Engine = engine, together: threading.Barrier = together) -> None:
            together.wait()
            engine._homes()

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert os.listdir(home) == ["owner.json"]
        assert home_failures.last_error(home) is None


def test_a_directory_that_spark_has_removed_is_not_made_again(tmp_path: Path) -> None:
    """A service that is started again after that, or a host whose disk was wiped: it would tell for ever that
    the application lives, and the service would not end with it."""
    root = tmp_path / "executor-1"
    home = shared_home(str(root), APPLICATION, boot_id(), TOKEN)
    engine = Engine(SETTINGS, lambda: SharedHomes((home,), TOKEN, of_spark=frozenset({home})))
    engine.prepare()
    assert not root.exists()
    assert isinstance(home_failures.last_error(home), FileNotFoundError)
    root.mkdir()
    engine.prepare()
    assert os.listdir(home) == ["owner.json"]


@pytest.mark.parametrize(
    ("limit", "writers"), [(64 * GIB, 256), (INTERPRETER_RESERVE + 64 * MIB, 50), (1, 1)]
)
def test_segments_take_a_quarter_of_a_limited_address_space(limit: int, writers: int) -> None:
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limits[1]))
    try:
        found = engines.most_writers()
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    assert found == writers


def test_a_service_with_the_limit_of_a_python_worker_has_an_engine() -> None:
    """The least that a worker can do with; 256 segments do not fit."""
    program = f"""
import resource
resource.setrlimit(resource.RLIMIT_AS, ({INTERPRETER_RESERVE + 16 * MIB}, resource.RLIM_INFINITY))
from jvm_client import SETTINGS
from sortshuffle.service.jvm.engine import Engine
print(Engine(SETTINGS, None)._writing.segments.total)
"""
    assert printed(f"import sys; sys.path.insert(0, {str(TESTS)!r})" + program) == ["48"]


def test_an_engine_that_has_no_address_space_names_the_option() -> None:
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (64 * KIB, limits[1]))
    try:
        with pytest.raises(MemoryError, match=r"lower spark\.sortshuffle\.manager\.memory"):
            Engine(SETTINGS, None)  # type: ignore[arg-type]
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
