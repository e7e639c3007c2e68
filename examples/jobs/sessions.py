"""Sessions of a web log: a visit ends after half an hour without a click."""

import tempfile

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import sortshuffle

PAUSE = 30 * 60  # seconds


def data(spark: SparkSession, directory: str) -> None:
    second = 1704067200 + sf.col("id") * 40 + sf.abs(sf.hash("id")) % 4000
    clicks = spark.range(1000, numPartitions=4).select(
        sf.concat(sf.lit("user-"), sf.abs(sf.hash("id", sf.lit(1))) % 15).alias("user"),
        second.alias("second"),
        sf.concat(sf.lit("/page/"), sf.abs(sf.hash("id", sf.lit(2))) % 12).alias("page"),
    )
    clicks.write.json(f"{directory}/clicks")


def number_sessions(clicks: pa.Table) -> pa.Table:
    """Number the sessions of one user."""
    clicks = clicks.sort_by([("second", "ascending"), ("page", "ascending")])
    waited = pc.fill_null(pc.pairwise_diff(clicks["second"].combine_chunks(), 1), 0)
    begins = pc.cast(pc.greater(waited, PAUSE), pa.int64())
    return clicks.append_column("session", pc.cumulative_sum(begins))


def summarise(key: tuple[str, int], clicks: pd.DataFrame) -> pd.DataFrame:
    """Make one row of a session: when, how long, and its way through the pages."""
    clicks = clicks.sort_values(["second", "page"])
    first, last = clicks["second"].iloc[0], clicks["second"].iloc[-1]
    row = (*key, pd.Timestamp(first, unit="s"), last - first, " ".join(clicks["page"].str[6:]))
    return pd.DataFrame([row], columns=["user", "session", "began", "seconds", "pages"])


def sessions(spark: SparkSession, directory: str) -> DataFrame:
    clicks = spark.read.schema("user string, second long, page string").json(f"{directory}/clicks")
    numbered = clicks.groupBy("user").applyInArrow(
        number_sessions, "user string, second long, page string, session long"
    )
    return numbered.groupBy("user", "session").applyInPandas(
        summarise, "user string, session long, began timestamp_ntz, seconds long, pages string"
    )


def job(spark: SparkSession, directory: str) -> DataFrame:
    visits = sessions(spark, directory).filter("seconds > 0")
    longest = visits.groupBy("user").agg(sf.max("seconds").alias("seconds"), sf.count("*").alias("visits"))
    return visits.join(longest, ["user", "seconds"]).orderBy(sf.desc("seconds"), "user")


if __name__ == "__main__":
    # was: spark = SparkSession.builder.appName("sessions").getOrCreate()
    spark = sortshuffle.session(SparkSession.builder.appName("sessions"))
    with tempfile.TemporaryDirectory() as directory:
        data(spark, directory)
        job(spark, directory).show(5)
    spark.stop()
