"""Fixtures shared by all tests."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from pyspark.sql import SparkSession

import sortshuffle

# One seed for every run (derandomize); printing the blob of a failing example reproduces it.
settings.register_profile(
    "sortshuffle",
    derandomize=True,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("sortshuffle")

# Before `sortshuffle.memory` is imported, which reads it once. Python workers inherit it.
os.environ["SORTSHUFFLE_DEBUG_MEMORY"] = "1"

# Every JVM of the tests lives for seconds or plans tiny jobs: the optimising compiler and the parallel
# collector cost more than they give. 23 tests of joins and lifetimes took 81 s with these and 112 s without.
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# Sessions of these tests have Spark's own shuffle unless they ask for the manager, which has tests of its
# own. SORTSHUFFLE_TEST_MANAGER=on runs all tests on it.
MANAGER = os.environ.get("SORTSHUFFLE_TEST_MANAGER", "off")
os.environ["PYSPARK_SUBMIT_ARGS"] = (
    f"--conf spark.sortshuffle.manager={MANAGER}"
    f" --conf 'spark.driver.extraJavaOptions={SHORT_LIVED}'"
    f" --conf 'spark.executor.extraJavaOptions={SHORT_LIVED}' pyspark-shell"
)
os.environ["SPARK_LAUNCHER_OPTS"] = SHORT_LIVED

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
    """A Spark session in this process with two worker slots, as a user would configure it."""
    session = (
        sortshuffle.configure(SparkSession.builder)
        .master("local[2]")
        .appName("sortshuffle-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "5")
        .config("spark.sql.session.timeZone", "America/New_York")
        .config("spark.default.parallelism", "2")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests that lose shuffle files last.

    In local mode a FetchFailed makes Spark drop its only block manager for good: afterwards the session
    removes no shuffle files any more, and loses task results that are too large to travel directly.
    """
    items.sort(key=lambda item: item.path.name == "test_control.py")
