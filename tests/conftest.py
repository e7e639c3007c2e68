"""Fixtures shared by all tests."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from java_options import SHORT_LIVED, submit_arguments
from pyspark.sql import SparkSession
from spark_home import spark_home

import sortshuffle
from sortshuffle.spark.session.requirements import address_this_host

pytest_plugins = [
    "pytester",
    "time_limits",
    "ci_skips",
    "leftovers",
    "worker_groups",
]  # tests/guards, and what tests them

pytest.register_assert_rewrite("both_sides")  # so that a failure says which answers differ

# One seed for every run (derandomize); printing the blob of a failing example reproduces it. For a longer
# look there is SORTSHUFFLE_TEST_EXAMPLES; PySpark is then asked for every refusal of functions' results, too.
settings.register_profile(
    "sortshuffle",
    max_examples=int(os.environ.get("SORTSHUFFLE_TEST_EXAMPLES", "100")),
    derandomize=True,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("sortshuffle")
# With `--hypothesis-profile random --hypothesis-seed N`: other examples each time, the same for the same N.
settings.register_profile("random", settings.get_profile("sortshuffle"), derandomize=False)

# Before `sortshuffle.memory` is imported, which reads it once. Python workers inherit it.
os.environ["SORTSHUFFLE_DEBUG_MEMORY"] = "1"

# Sessions of these tests have Spark's own shuffle unless they ask for the manager, which has tests of its
# own. SORTSHUFFLE_TEST_MANAGER=on runs all tests on it.
MANAGER = os.environ.get("SORTSHUFFLE_TEST_MANAGER", "off")
os.environ["PYSPARK_SUBMIT_ARGS"] = submit_arguments(MANAGER)
os.environ["SPARK_LAUNCHER_OPTS"] = SHORT_LIVED

# The hundreds of processes that tests start compile the package once: it takes each of them 0.2 s otherwise.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

os.environ["SPARK_HOME"] = str(spark_home())
os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable


@pytest.fixture(autouse=True)
def no_leaks() -> Iterator[None]:
    """A test gives back all segments and closes all pools that it took, or fails with the places."""
    from sortshuffle.memory import leaks

    yield
    if leaks.outstanding():
        gc.collect()  # Arrow memory in a cycle of garbage is not a leak
    left = leaks.forget()
    assert not left, "never given back:\n" + "\n".join(map(str, left))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A Spark session in this process with two worker slots.

    It interprets its plans, with settings that Spark's own tests have: to compile the plan of a few rows
    takes longer than to run it. Tests of what generated code decides use ``generated_code``, too.
    """
    address_this_host("local[2]")
    session = (
        sortshuffle.configure(SparkSession.builder)
        .master("local[2]")
        .appName("sortshuffle-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "5")
        # rows of tests are few: they are to be exchanged among several partitions all the same
        .config("spark.sql.adaptive.coalescePartitions.enabled", "false")
        .config("spark.sql.session.timeZone", "America/New_York")
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        .config("spark.default.parallelism", "2")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture
def generated_code(spark: SparkSession) -> Iterator[None]:
    """Spark runs a test's plans as it runs those of users, with code that it generates."""
    from oracle import confs  # here, because tests/memory/test_leaks.py loads this file without tests/spark

    with confs(spark, {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}):
        yield


LONGEST = ("cluster", "manager")
"""Directories whose files take minutes. They come first, so that no worker has one alone at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files in order. Which tests one worker runs says tests/guards/worker_groups.py.

    Files that use the fixture `spark` come after the others. Its JVM stays, and from then on leftover threads
    and sockets of this process cannot be told from PySpark's (tests/guards/leftovers.py).

    The tests that lose shuffle files run last: in local mode, without the shuffle manager, a FetchFailed
    makes Spark drop its only block manager for good. Afterwards the session removes no shuffle files any
    more, and loses task results that are too large to travel directly.
    """
    with_spark = {item.path for item in items if "spark" in getattr(item, "fixturenames", ())}

    def place(item: pytest.Item) -> tuple[bool, bool, bool]:
        path = item.path
        return path.name == "test_control_rows.py", path in with_spark, path.parent.name not in LONGEST

    items.sort(key=place)
