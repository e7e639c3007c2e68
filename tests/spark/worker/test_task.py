"""Tasks whose input is lost: Spark runs the producer again, so the next action has all rows, whatever error a
user's function makes of it. Tasks of frames and of RDDs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pytest
from engine import Pair, write_pair
from oracle import confs
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import sortshuffle
from sortshuffle.errors import (
    AuthenticationError,
    MissingDataError,
    Place,
    ServiceUnavailableError,
    UsageError,
)
from sortshuffle.homes.owner import Owner
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.metrics import TaskMetrics
from sortshuffle.options import MIB, Options
from sortshuffle.spark.control_rows import LocalReach
from sortshuffle.spark.worker.reports import NullReporter
from sortshuffle.spark.worker.task import Task, _loss_in, report_loss_to_spark, running

# workers know nothing of this module
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture
def directory(spark: SparkSession, tmp_path: Path) -> Iterator[Path]:
    with confs(spark, {"spark.sortshuffle.dir": str(tmp_path)}):
        yield tmp_path


def lose_one(directory: Path) -> None:
    next(directory.rglob("exchange-*.data")).unlink()


def from_it(error: Exception) -> NoReturn:
    raise LookupError("by the user") from error


def from_none(error: Exception) -> NoReturn:
    raise LookupError("by the user") from None


def from_another(error: Exception) -> NoReturn:
    raise LookupError("by the user") from KeyError("another")


def twice(error: Exception) -> NoReturn:
    try:
        from_it(error)
    except LookupError as first:
        raise TypeError("by the user") from first


@pytest.mark.parametrize("wrap", [from_it, from_none, from_another, twice])
def test_what_a_frames_function_makes_of_a_loss_does_not_hide_it(
    spark: SparkSession, directory: Path, wrap: Any
) -> None:
    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            yield from batches
        except Exception as error:
            wrap(error)

    frame = sortshuffle.frame(spark.range(0, 100, 1, 2)).repartition(1, "id").mapInArrow(read, "id long")
    assert frame.count() == 100
    lose_one(directory)
    with pytest.raises(MissingDataError):
        frame.count()
    assert sorted(row.id for row in frame.collect()) == list(range(100))


@pytest.mark.parametrize("wrap", [from_it, from_none, from_another, twice])
def test_what_an_rdds_function_makes_of_a_loss_does_not_hide_it(
    spark: SparkSession, directory: Path, wrap: Any
) -> None:
    def read(pairs: Iterable[tuple[int, int]]) -> Iterator[int]:
        try:
            yield from (value for _, value in pairs)
        except Exception as error:
            wrap(error)

    pairs = spark.sparkContext.parallelize([(n, n) for n in range(100)], 2)
    values = sortshuffle.rdd(pairs).partitionBy(1).mapPartitions(read)
    assert sorted(values.collect()) == list(range(100))
    lose_one(directory)
    with pytest.raises(PySparkException, match="MissingDataError"):
        values.collect()
    assert sorted(values.collect()) == list(range(100))


def test_causes_that_go_in_a_circle_end() -> None:
    error, other = LookupError(), KeyError()
    error.__cause__, other.__cause__ = other, error
    report_loss_to_spark(error, LocalReach(), served_by_spark=False)


LOSS = MissingDataError(Place("/home/exchange-3-map-17-attempt-204.data"), "as told")


def raised_while_handling(first: Exception, raise_next: Callable[[], NoReturn]) -> BaseException:
    with pytest.raises(BaseException) as caught:
        try:
            raise first
        except Exception:
            raise_next()
    return caught.value


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, MemoryError])
@pytest.mark.parametrize("is_wrapped", [False, True])
def test_an_interrupt_or_a_lack_of_memory_says_nothing_about_what_was_handled(
    kind: type[BaseException], is_wrapped: bool
) -> None:
    def raise_next() -> NoReturn:
        raise kind

    error = raised_while_handling(LOSS, raise_next)
    if is_wrapped:
        wrapping = LookupError("by the user")
        wrapping.__cause__ = error
        error = wrapping
    assert _loss_in(error) is None


def test_another_error_of_this_package_does_not_hide_a_loss_beside_it() -> None:
    def raise_next() -> NoReturn:
        raise LookupError("by the user") from UsageError("of the user")

    assert _loss_in(raised_while_handling(LOSS, raise_next)) is LOSS


def test_what_another_error_of_this_package_was_raised_from_is_no_loss() -> None:
    def raise_next() -> NoReturn:
        raise AuthenticationError("another secret")

    error = raised_while_handling(ServiceUnavailableError("silent"), raise_next)
    assert _loss_in(error) is None
    wrapping = LookupError("by the user")
    wrapping.__context__ = error
    assert _loss_in(wrapping) is None


def test_a_task_gives_the_grace_time_to_other_outputs_of_the_attempt_on_all_its_disks(tmp_path: Path) -> None:
    owner = Owner("app", "host", "", 1, 1, (str(tmp_path / "blocks"),), 600.0, False)
    directories = [tmp_path / "one", tmp_path / "two"]
    homes = [directory / "sortshuffle" / "app" / owner.home_name for directory in directories]
    for home in homes:
        home.mkdir(parents=True)
        owner.write(str(home))
    lost, sound = (write_pair(home, Pair(2), 204) for home in homes)
    os.utime(sound.data_path, (0, 0))
    budget = MemoryBudget(MIB)
    options = Options(directories=tuple(map(str, directories)))
    task = Task(options, "app", 5, 0, 300, budget, budget, budget)
    with pytest.raises(MissingDataError), running(task, NullReporter(), False, ignored):
        raise MissingDataError(Place(lost.data_path), "as told")
    assert os.stat(sound.data_path).st_mtime > 0


def ignored(metrics: TaskMetrics) -> None:
    pass
