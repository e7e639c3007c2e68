"""Runs a pipeline in a session of `sortshuffle.session` and in plain PySpark, and compares what both give."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import zip_longest

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import types as st

from pipelines.actions import ACTIONS, Result, keys
from pipelines.draw import Pipeline, without

MOST_SHOWN = 3  # rows that only one side gives


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a pipeline gives. ``error``: class and condition; empty if there is none. If there is one, the
    rest is empty. ``schema``: its JSON. ``rows``: how they print, and how often each comes. ``keys``: the
    values of the sort columns, in order. ``words``: what the pipeline's action gives."""

    error: str = ""
    schema: str = ""
    rows: Counter[str] = field(default_factory=Counter)
    keys: Sequence[str] = ()
    words: Sequence[str] = ()


def outcome(pipeline: Pipeline, session: SparkSession, directory: str) -> Outcome:
    """Run a pipeline."""
    try:
        frame = pipeline.run(session, directory)
        schema: st.StructType = frame.schema
        collected = frame.collect()
        rows = Counter(map(repr, collected))
        # a second action, which has code of its own
        words = ACTIONS[pipeline.action](Result(frame, pipeline.order, rows, directory))
    except PySparkException as error:
        sparks = next(each for each in type(error).__mro__ if each.__module__.startswith("pyspark."))
        return Outcome(f"{sparks.__name__} {error.getCondition()}")
    except Exception as error:  # only one side's, or it would not be drawn
        return Outcome(f"{type(error).__name__} {str(error).strip().splitlines()[:2]}")
    finally:
        with suppress(PySparkException):
            session.catalog.clearCache()
    return Outcome("", schema.json(), rows, keys(collected, pipeline.order), words)


def difference(pipeline: Pipeline, ours: SparkSession, plain: SparkSession, directory: str) -> str:
    """Return in words how both sides differ; empty if they do not."""
    expected, found = outcome(pipeline, plain, directory), outcome(pipeline, ours, directory)
    if found.error != expected.error:
        return f"errors: ours {found.error or 'none'}, plain {expected.error or 'none'}"
    if found.schema != expected.schema:
        return f"schemas: ours {found.schema}, plain {expected.schema}"
    if found.rows != expected.rows:
        return _shown(found.rows - expected.rows, expected.rows - found.rows)
    for name, own, other in (
        ("order", found.keys, expected.keys),
        (pipeline.action, found.words, expected.words),
    ):
        if own != other:
            pairs = [pair for pair in zip_longest(own, other) if pair[0] != pair[1]]
            return f"{name}: {_shown(*zip(*pairs, strict=True))}"
    return ""


def _shown(ours: Iterable[str], plain: Iterable[str]) -> str:
    """Return the first words of both sides."""
    sides = {"ours": ours, "plain": plain}
    return "\n".join(f"{side} {word}" for side, words in sides.items() for word in list(words)[:MOST_SHOWN])


def shortened(pipeline: Pipeline, ours: SparkSession, plain: SparkSession, directory: str) -> Pipeline:
    """Return a pipeline with fewer steps that differs, too."""
    at = len(pipeline.steps) - 1
    while at >= 0:
        step = pipeline.steps[at]
        is_used = any(re.search(rf"\b{step.name}\b", each.code) for each in pipeline.steps)
        shorter = pipeline
        if step.parent is not None:
            shorter = without(pipeline, step)
        elif not is_used and len(pipeline.steps) > 1:
            kept = tuple(each for each in pipeline.steps if each is not step)
            shorter = replace(pipeline, steps=kept)
        if shorter is not pipeline:
            with suppress(Exception):  # a shorter pipeline may be no pipeline
                if difference(shorter, ours, plain, directory):
                    pipeline = shorter
        at -= 1
    return pipeline
