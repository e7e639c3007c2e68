"""Errors of workers on the driver: which are ours, and that they come as what they are."""

from __future__ import annotations

import copy
import pickle
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from oracle import confs
from py4j.protocol import Py4JJavaError
from pyspark import cloudpickle
from pyspark.errors import AnalysisException, PySparkException, PythonException
from pyspark.sql import SparkSession

import sortshuffle
from sortshuffle.errors import (
    AuthenticationError,
    BufferTimeoutError,
    ColumnError,
    CorruptDataError,
    DecryptionError,
    FileAccessError,
    InsufficientBuffersError,
    MissingDataError,
    OptionError,
    OutOfDiskError,
    Place,
    ProtocolError,
    ResultOverflowError,
    SchemaMismatchError,
    ServiceUnavailableError,
    SortShuffleError,
    StateError,
    UnsupportedError,
    UsageError,
    WorkerSetupError,
)
from sortshuffle.service.client.request_table import BreachError
from sortshuffle.spark.worker_errors import cause, note_fields, own_error

# workers know nothing of this module
cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 has no notes")

Batches = Iterator[pa.RecordBatch]
PLACE = Place("/data/x.data", 3, 17, 4096, "attempt 204 of map 17 on host")


def unavailable() -> ServiceUnavailableError:
    error = ServiceUnavailableError("no answer from host:7337")
    error.address, error.refused = "host:7337", PLACE
    return error


ERRORS: list[SortShuffleError] = [
    UsageError("wrong"),
    OptionError("no such option"),
    ColumnError("no column 'k'"),
    SchemaMismatchError("mapInArrow(f): wrong,\nin two lines: SchemaMismatchError\n\nand more"),
    UnsupportedError("not this way"),
    StateError("too late"),
    ResultOverflowError("too large"),
    CorruptDataError(PLACE, "a buffer fails its checksum", expected="0x1", found=2),
    MissingDataError(Place("/data/\u00fc\u4e2d x.data"), "the file is gone"),
    OutOfDiskError("/data", 1000, 10),
    FileAccessError(5, "/data/x.data"),
    InsufficientBuffersError("2 of 3 buffers"),
    BufferTimeoutError("waited 5 s"),
    unavailable(),
    AuthenticationError("another secret"),
    DecryptionError(PLACE, "the tag differs", "Give the key"),
    ProtocolError("version 3"),
    WorkerSetupError("no s3fs", path="s3://bucket"),
]
FIELDS = ("place", "what", "expected", "found", "wanted", "free", "remedy", "address", "refused")
FIELDS_OF_PYTHON = ("errno", "strerror", "filename", "path")


def traceback_of(error: BaseException) -> str:
    """What a worker reports of an error that reaches the end of a stage."""
    try:
        raise error
    except Exception as raised:
        note_fields(raised)
        note_fields(raised)  # as an adaptor and the stage around it do
        return traceback.format_exc()


def from_spark(text: str) -> PythonException:
    return PythonException(f"An exception was thrown from the Python worker:\n{text}")


@pytest.mark.parametrize("error", ERRORS, ids=lambda each: type(each).__name__)
def test_an_error_comes_back_with_class_message_and_fields(error: SortShuffleError) -> None:
    spark_error = from_spark(traceback_of(copy.copy(error)))
    found = cause(spark_error)
    both: Any = own_error(spark_error)

    assert type(found) is type(error)
    assert str(found) == str(error)
    assert isinstance(both, type(error))
    assert isinstance(both, PythonException)
    for name in (*FIELDS, *FIELDS_OF_PYTHON):
        wanted = getattr(error, name, None)
        assert getattr(found, name, None) == getattr(both, name, None) == wanted
    assert str(both) == f"{error}\n\n{spark_error}"
    assert repr(type(both)) == f"<class 'sortshuffle.errors.{type(error).__name__}'>"


@pytest.mark.parametrize("error", ERRORS, ids=lambda each: type(each).__name__)
def test_a_copy_is_the_workers_error_alone(error: SortShuffleError) -> None:
    both = own_error(from_spark(traceback_of(copy.copy(error))))
    for made in (pickle.loads(pickle.dumps(both)), copy.deepcopy(both)):
        assert type(made) is type(error)
        assert str(made) == str(error)


def test_fields_that_are_no_plain_values_are_text() -> None:
    found: Any = cause(from_spark(traceback_of(CorruptDataError(PLACE, "x", expected=(1, 2), found=b"y"))))
    assert (found.expected, found.found) == ("(1, 2)", "b'y'")


def test_a_private_class_comes_as_the_public_one_that_it_is() -> None:
    found = cause(from_spark(traceback_of(BreachError("an answer to no question"))))
    assert (type(found), str(found)) == (ProtocolError, "an answer to no question")


def test_an_error_of_the_driver_is_its_own_cause() -> None:
    error = UsageError("wrong")
    assert cause(error) is error
    assert own_error(error) is error


def wrapped() -> str:
    """The traceback of a user's function that raises another error while it handles one of ours."""
    ours = CorruptDataError(PLACE, "x")
    note_fields(ours)
    try:
        try:
            raise ours
        except CorruptDataError as error:
            raise KeyError("k") from error
    except KeyError:
        return traceback.format_exc()


OTHERS: dict[str, BaseException] = {
    "of the user": from_spark(traceback_of(ValueError("sortshuffle.errors.CorruptDataError: x"))),
    "of the user, in lines": from_spark(traceback_of(ValueError("y\nsortshuffle.errors.StateError: x"))),
    "one that wraps ours": from_spark(wrapped()),
    "no class": from_spark('[sortshuffle] {"error": "errno"}\n'),
    "another class": from_spark('[sortshuffle] {"error": "dataclass"}\n'),
    "an unknown class": from_spark('[sortshuffle] {"error": "NewError"}\n'),
    "private fields": from_spark('[sortshuffle] {"error": "StateError", "fields": {"__class__": 1}}\n'),
    "no fields": from_spark('[sortshuffle] {"error": "StateError", "fields": 3}\n'),
    "no place": from_spark('[sortshuffle] {"error": "StateError", "fields": {"place": {"file": 1}}}\n'),
    "no line of JSON": from_spark("[sortshuffle] {error}\n"),
    "no error of Spark": ValueError(traceback_of(StateError("x"))),
}


@pytest.mark.parametrize("case", OTHERS)
def test_other_errors_are_not_ours(case: str) -> None:
    assert cause(OTHERS[case]) is None
    assert own_error(OTHERS[case]) is None


def test_an_error_that_was_caused_by_another_is_ours() -> None:
    def job() -> None:
        try:
            raise KeyError("of the user")
        except KeyError as error:
            raise SchemaMismatchError("mapInArrow(f): wrong") from error

    with pytest.raises(SchemaMismatchError) as raised:
        job()
    found = cause(from_spark(traceback_of(raised.value)))
    assert (type(found), str(found)) == (SchemaMismatchError, "mapInArrow(f): wrong")


# --- jobs -----------------------------------------------------------------------------------------------


def failure_of(job: Callable[[], object]) -> BaseException:
    with pytest.raises((PySparkException, Py4JJavaError)) as raised:
        job()
    return raised.value


def narrow(batches: Batches) -> Batches:
    for batch in batches:
        yield pa.record_batch({"id": batch.column("id").cast("int32")})


@pytest.mark.parametrize("stages", [1, 2])
def test_a_function_that_returns_another_type(spark: SparkSession, stages: int) -> None:
    frame = sortshuffle.frame(spark.range(3)).mapInArrow(narrow, "id long")
    df = (frame if stages == 1 else frame.repartition(2, "id")).toDF()
    error: Any = failure_of(df.collect)
    both: Any = own_error(error)

    assert isinstance(both, SchemaMismatchError)
    assert isinstance(both, type(error))
    assert isinstance(both, ValueError)
    assert str(both).startswith("mapInArrow(narrow): PySparkRuntimeError: [RESULT_COLUMN_TYPES_MISMATCH] ")
    assert str(both).endswith(str(error))
    assert both.getCondition() == error.getCondition() == "PYTHON_EXCEPTION"
    assert both.getMessageParameters() == error.getMessageParameters()
    assert both.getMessage() == error.getMessage()
    assert both.__traceback__ is error.__traceback__
    assert own_error(both) is both
    copied = pickle.loads(pickle.dumps(both))
    assert (type(copied), str(copied)) == (SchemaMismatchError, str(both).partition("\n\n")[0])


def test_it_can_be_raised_instead_of_sparks_error(spark: SparkSession) -> None:
    error = failure_of(sortshuffle.frame(spark.range(3)).mapInArrow(narrow, "id long").toDF().collect)
    both = own_error(error)
    assert both is not None

    with pytest.raises(PythonException) as raised:
        try:
            raise error
        except PythonException:
            raise both  # noqa: B904  what happens without `from` is asked here
    shown = "".join(traceback.format_exception(raised.value))
    assert shown.count("During handling of the above exception") == 0
    assert "\nsortshuffle.errors.SchemaMismatchError: mapInArrow(narrow): " in shown

    with pytest.raises(SchemaMismatchError) as raised_from:
        raise both from error
    assert raised_from.value.__cause__ is error


def fails(batches: Batches) -> Batches:
    raise ValueError("sortshuffle.errors.StateError: not ours")
    yield from batches


def stops(batches: Batches) -> Batches:
    return next(iter([]))


@pytest.mark.parametrize("function", [fails, stops])
def test_an_error_of_a_users_function_stays_sparks(spark: SparkSession, function: Any) -> None:
    error = failure_of(sortshuffle.frame(spark.range(3)).mapInArrow(function, "id long").toDF().collect)
    assert isinstance(error, PythonException)
    assert own_error(error) is None


def test_an_error_of_spark_stays_sparks(spark: SparkSession) -> None:
    error = failure_of(lambda: spark.sql("select nothing"))
    assert isinstance(error, AnalysisException)
    assert own_error(error) is None


def damage(directory: Path) -> str:
    """Change a bit of a map output, and return the file's path."""
    (file,) = directory.rglob("*.data")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    return str(file)


def assert_corrupt(error: BaseException, path: str) -> None:
    both: Any = own_error(error)
    assert isinstance(both, CorruptDataError)
    assert isinstance(both, type(error))
    assert both.place.file == path
    assert both.place.region == 0
    assert "checksum" in both.what
    assert pickle.loads(pickle.dumps(both)).place == both.place


def test_damaged_rows_name_their_place(spark: SparkSession, tmp_path: Path) -> None:
    # One reduce task: a second one could find Spark's control file removed. Spark would then run the map task
    # again before it hears of the error, and the job would succeed.
    with confs(spark, {"spark.sortshuffle.dir": str(tmp_path)}):
        frame = sortshuffle.frame(spark.range(0, 1000, 1, 1)).repartition(1, "id")
    assert frame.count() == 1000
    path = damage(tmp_path)
    assert_corrupt(failure_of(frame.toDF().collect), path)


def test_damaged_rows_name_their_place_in_the_data_source(spark: SparkSession, tmp_path: Path) -> None:
    with confs(spark, {"spark.sortshuffle.dir": str(tmp_path)}):
        assert sortshuffle.frame(spark.range(0, 1000, 1, 1)).repartition(2, "id").count() == 1000
    path = damage(tmp_path)
    sortshuffle.register(spark)
    assert_corrupt(failure_of(spark.read.format("sortshuffle").load(str(tmp_path)).collect), path)


def test_damaged_records_name_their_place(spark: SparkSession, tmp_path: Path) -> None:
    pairs = spark.sparkContext.parallelize([(n, n) for n in range(10)], 1)
    with confs(spark, {"spark.sortshuffle.dir": str(tmp_path), "spark.sortshuffle.codec": "none"}):
        shuffled = sortshuffle.rdd(pairs).partitionBy(1)
        assert shuffled.count() == 10
    path = damage(tmp_path)
    assert_corrupt(failure_of(shuffled.toRDD().collect), path)
