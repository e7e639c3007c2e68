"""What frames take from a session's settings: whoever changes a setting in whatever way, the next frame has
it; and while nobody does, a frame costs few calls of the JVM."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as hs
from java_calls import java_calls
from job_process import run_job
from pyspark.sql import SparkSession

import sortshuffle
from sortshuffle.errors import OptionError
from sortshuffle.options import MIB, Options
from sortshuffle.spark.functions.conf import TIME_ZONE, FunctionConf
from sortshuffle.spark.plan.chain import FrameContext
from sortshuffle.spark.session.session_settings import SessionSettings, _kept

MEMORY = "spark.sortshuffle.memory"
CODEC = "spark.sortshuffle.codec"
CASE = "spark.sql.caseSensitive"
LARGE = "spark.sql.execution.arrow.useLargeVarTypes"
VALUES = {
    MEMORY: ["1m", "32m", "1g"],
    CODEC: ["none", "zstd"],
    CASE: ["true", "false"],
    LARGE: ["true", "false"],
    TIME_ZONE: ["UTC", "Asia/Tokyo"],
    "spark.sql.shuffle.partitions": ["3", "4"],  # which frames read when they need it
    "its.own": ["", ", a=b}", "a\nb\0c", "é"],
}


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    """A session that a test may set as it likes."""
    return spark.newSession()


def other_object(session: SparkSession) -> SparkSession:
    return SparkSession(session.sparkContext, session._jsparkSession)  # type: ignore[attr-defined]


def set_by_conf(session: SparkSession, name: str, value: str) -> None:
    session.conf.set(name, value)


def set_by_sql(session: SparkSession, name: str, value: str) -> None:
    session.sql(f"SET {name}={value}")


def set_by_another_object(session: SparkSession, name: str, value: str) -> None:
    other_object(session).conf.set(name, value)


def set_inside_spark(session: SparkSession, name: str, value: str) -> None:
    session._jsparkSession.sessionState().conf().setConfString(name, value)  # type: ignore[attr-defined]


def unset_by_conf(session: SparkSession, name: str) -> None:
    session.conf.unset(name)


def unset_by_sql(session: SparkSession, name: str) -> None:
    session.sql(f"RESET {name}")


def unset_by_another_object(session: SparkSession, name: str) -> None:
    other_object(session).conf.unset(name)


SETTERS = [set_by_conf, set_by_sql, set_by_another_object, set_inside_spark]
UNSETTERS = [unset_by_conf, unset_by_sql, unset_by_another_object]


# --- changes are seen -----------------------------------------------------------------------------------


@pytest.mark.parametrize("unset", UNSETTERS)
@pytest.mark.parametrize("set_to", SETTERS)
def test_the_next_frame_has_a_setting_however_it_was_changed(
    session: SparkSession, set_to: Callable[..., None], unset: Callable[..., None]
) -> None:
    df = session.range(3)
    before = sortshuffle.frame(df)._chain.context

    set_to(session, MEMORY, "32m")
    set_to(session, CASE, "true")
    set_to(session, LARGE, "true")
    set_to(session, TIME_ZONE, "Asia/Tokyo")
    within = sortshuffle.frame(df)._chain.context
    assert (within.options.memory, within.case_sensitive) == (32 * MIB, True)
    assert (within.conf.large_types, within.conf.timezone) == (True, "Asia/Tokyo")

    for name in (MEMORY, CASE, LARGE):
        unset(session, name)
    set_to(session, TIME_ZONE, before.conf.timezone)
    after = sortshuffle.frame(df)._chain.context
    assert (after.options, after.conf, after.case_sensitive) == (before.options, before.conf, False)
    assert before.options.memory == 256 * MIB


def steps() -> hs.SearchStrategy[tuple[str, str | None]]:
    """A setting and its new value, None to unset it."""
    return hs.sampled_from(sorted(VALUES)).flatmap(
        lambda name: hs.tuples(hs.just(name), hs.none() | hs.sampled_from(VALUES[name]))
    )


@settings(max_examples=30)
@given(changes=hs.lists(steps(), max_size=8))
def test_settings_are_those_that_a_fresh_look_finds(
    spark: SparkSession, changes: list[tuple[str, str | None]]
) -> None:
    session = spark.newSession()
    for name, value in changes:
        if value is None:
            session.conf.unset(name)
        else:
            session.conf.set(name, value)
        found = SessionSettings.of(session)
        assert found.options == Options.of(dict(session.conf.getAll))  # type: ignore[call-overload]
        assert found.conf == FunctionConf.of(session)
        assert found.case_sensitive == (session.conf.get(CASE) == "true")
        assert found.application == spark.sparkContext.applicationId


def test_sessions_have_their_own_settings(spark: SparkSession) -> None:
    one, other = spark.newSession(), spark.newSession()
    one.conf.set(MEMORY, "32m")
    other.conf.set(MEMORY, "64m")
    found = [FrameContext.of(each).options.memory for each in (one, other, one, spark)]
    assert found == [32 * MIB, 64 * MIB, 32 * MIB, 256 * MIB]


def test_the_time_zone_of_the_jvm_counts_where_none_is_set(session: SparkSession) -> None:
    zones: Any = session.sparkContext._jvm.java.util.TimeZone  # type: ignore[union-attr]
    before = zones.getDefault()
    session.conf.unset(TIME_ZONE)
    try:
        for zone in ("Asia/Tokyo", "Europe/Paris"):
            zones.setDefault(zones.getTimeZone(zone))
            assert FrameContext.of(session).conf.timezone == zone
    finally:
        zones.setDefault(before)


def test_a_wrong_option_is_refused_each_time(session: SparkSession) -> None:
    df = session.range(3)
    sortshuffle.frame(df)
    session.conf.set(MEMORY, "lots")
    for _ in range(2):
        with pytest.raises(OptionError, match=r"spark\.sortshuffle\.memory = 'lots' is not allowed"):
            sortshuffle.frame(df)
    session.conf.unset(MEMORY)
    assert sortshuffle.frame(df).columns == ["id"]

    session.conf.set("spark.sortshuffle.dir", "nothing://that/fsspec/knows")
    for _ in range(2):
        with pytest.raises(OptionError, match=r"spark\.sortshuffle\.dir = 'nothing://that/fsspec/knows'"):
            sortshuffle.frame(df)


def test_threads_see_the_changes_that_they_make(spark: SparkSession) -> None:
    """Each thread changes a setting of its own, in one session."""
    session = spark.newSession()
    names = ["memory", "read.memory", "service.memory", "manager.memory"]

    def change(name: str) -> list[tuple[int, int]]:
        seen = []
        for size in range(16, 36):
            session.conf.set(f"spark.sortshuffle.{name}", f"{size}m")
            options = SessionSettings.of(session).options
            seen.append((size, getattr(options, name.replace(".", "_")) // MIB))
        return seen

    with ThreadPoolExecutor(len(names)) as threads:
        for seen in threads.map(change, names):
            assert seen == [(size, size) for size in range(16, 36)]


# --- what is shared, and what is not --------------------------------------------------------------------


def test_frames_share_settings_but_neither_reports_nor_exchanges(session: SparkSession) -> None:
    one, other = FrameContext.of(session), FrameContext.of(session)
    assert one.options is other.options
    assert one.conf is other.conf
    assert one.reports is not other.reports
    assert one.fan_outs is not other.fan_outs


def test_a_session_that_nobody_has_any_more_is_forgotten(spark: SparkSession) -> None:
    session = spark.newSession()
    sortshuffle.frame(session.range(3))
    gone, copy = weakref.ref(session), weakref.ref(_kept[session].copy)

    del session
    spark.newSession()  # PySpark itself holds the newest session
    gc.collect()
    assert (gone(), copy()) == (None, None)


def test_a_new_application_has_settings_of_its_own(tmp_path: Path) -> None:
    job = tmp_path / "job.py"
    job.write_text(
        """
import json
import sortshuffle
from pyspark.sql import SparkSession
from sortshuffle.errors import StateError, UnsupportedError

def started(**settings):
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    for name, value in settings.items():
        builder.config(name.replace("_", "."), value)
    return builder.getOrCreate()

found = []
spark = started(spark_sortshuffle_memory="32m", spark_shuffle_useOldFetchProtocol="true")
for _ in range(2):
    try:
        sortshuffle.frame(spark.range(3))
    except UnsupportedError as error:
        found.append("useOldFetchProtocol" in str(error))
spark.stop()
spark = started(spark_sortshuffle_memory="64m", spark_shuffle_useOldFetchProtocol="false")
df = spark.range(3)
first = sortshuffle.frame(df)._chain.context
found += [first.options.memory >> 20, first.host_service().application == spark.sparkContext.applicationId]
spark.stop()
try:
    sortshuffle.frame(df)
except StateError as error:
    found.append("has been stopped" in str(error))
spark = started(spark_sortshuffle_memory="48m")
second = sortshuffle.frame(spark.range(3))._chain.context
found += [second.options.memory >> 20, second.host_service().application == spark.sparkContext.applicationId]
print(json.dumps({"found": found}))
spark.stop()
"""
    )
    assert run_job(job)["found"] == [True, True, 64, True, True, 48, True]


# --- what it costs --------------------------------------------------------------------------------------


@pytest.fixture
def seen(session: SparkSession) -> Iterator[SparkSession]:
    """A session of which a frame was made before."""
    sortshuffle.frame(session.range(3)).repartition(2, "id")
    return session


def test_a_frame_its_schema_and_an_operator_cost_two_calls_of_the_jvm(seen: SparkSession) -> None:
    df = seen.range(4)
    with java_calls(seen) as calls:
        frame = sortshuffle.frame(df)
        assert frame.schema.names == ["id"]
        frame.repartition(8, "id")
    # what is the DataFrame? are the settings still the same?
    assert len(calls) == 2


def test_the_default_time_zone_costs_one_more(seen: SparkSession) -> None:
    seen.conf.unset(TIME_ZONE)
    FrameContext.of(seen)
    with java_calls(seen) as calls:
        FrameContext.of(seen)
    assert len(calls) == 2


def test_a_changed_setting_costs_a_bounded_number_of_calls(seen: SparkSession) -> None:
    """Some per setting that is not set, none per setting that is."""
    counts = []
    for size in (1, 300):
        for number in range(size):
            seen.conf.set(f"its.own.{number}", "value")
        with java_calls(seen) as calls:
            FrameContext.of(seen)
        counts.append(len(calls))
    assert counts[0] == counts[1] <= 30
