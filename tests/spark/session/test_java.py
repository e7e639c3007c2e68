"""The short ways to the JVM: by full names, and maps at once."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as hs
from java_calls import java_calls
from pyspark.sql import SparkSession

from sortshuffle.spark.session.java import dict_of, java_class, scala_object

TEXTS = hs.text(hs.sampled_from("aé\0\n,={}"), max_size=4)


@settings(max_examples=50)
@given(texts=hs.dictionaries(TEXTS, TEXTS, max_size=4))
def test_a_map_comes_as_it_is(spark: SparkSession, texts: dict[str, str]) -> None:
    jvm: Any = spark.sparkContext._jvm
    java = jvm.java.util.HashMap()
    for key, value in texts.items():
        java.put(key, value)
    assert dict_of(jvm, java) == texts


@pytest.mark.parametrize("count", [1, 200])
def test_a_map_takes_seven_calls_however_large_it_is(spark: SparkSession, count: int) -> None:
    jvm: Any = spark.sparkContext._jvm
    java = jvm.java.util.HashMap()
    for number in range(count):
        java.put(f"key {number}", f"value {number}")
    with java_calls(spark) as calls:
        assert len(dict_of(jvm, java)) == count
    assert len(calls) == 7


def test_classes_and_objects_are_found_by_one_call(spark: SparkSession) -> None:
    jvm: Any = spark.sparkContext._jvm
    with java_calls(spark) as calls:
        numbers = java_class(jvm, "java.lang.Integer")
    assert len(calls) == 1
    assert numbers.parseInt("7") == 7
    assert str(scala_object(jvm, "scala.None")) == "None"
