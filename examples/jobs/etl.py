"""Text lines of weather stations -> parsed -> cleaned -> Parquet with a directory for each day."""

import tempfile
from collections.abc import Iterator

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import sortshuffle

READING = "station string, at timestamp, celsius double"


def data(spark: SparkSession, directory: str) -> None:
    """Write lines such as ``2024-03-02 05:00;station-3;12.5``, and some comments and broken lines."""
    station, hour = sf.col("id") % 7, sf.col("id") % 72
    degrees = sf.when(sf.col("id") % 23 == 0, "n/a").otherwise((sf.col("id") % 400 / 10 - 5).cast("string"))
    at = sf.date_format(sf.timestamp_seconds(hour * 3600 + 1709258400), "yyyy-MM-dd HH:mm")
    reading = sf.concat_ws(";", at, sf.concat(sf.lit("station-"), station.cast("string")), degrees)
    line = (
        sf.when(sf.col("id") % 101 == 0, "# maintenance")
        .when(sf.col("id") % 57 == 0, "12.5;;")
        .otherwise(sf.concat(sf.lit("  "), reading))
    )
    spark.range(1500, numPartitions=3).select(line).write.text(f"{directory}/raw")


def parse(chunks: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for chunk in chunks:
        parts = chunk["value"].str.strip().str.extract(r"^(\d{4}-.{11});(station-\d+);(.*)$")
        parts = parts.dropna(subset=[1])
        yield pd.DataFrame(
            {
                "station": parts[1],
                "at": pd.to_datetime(parts[0]),
                "celsius": pd.to_numeric(parts[2], errors="coerce"),
            }
        )


def fill(readings: pd.DataFrame) -> pd.DataFrame:
    """Fill the gaps of one station, and cut what its sensor cannot have measured."""
    readings = readings.sort_values("at")
    readings["celsius"] = readings["celsius"].interpolate(limit_direction="both").clip(-3, 33)
    return readings


def cleaned(spark: SparkSession, directory: str) -> DataFrame:
    lines = spark.read.text(f"{directory}/raw").filter("value not like '#%'")
    readings = (
        lines.mapInPandas(parse, READING).groupBy("station", "at").agg(sf.max("celsius").alias("celsius"))
    )
    return readings.groupBy("station").applyInPandas(fill, READING)


def job(spark: SparkSession, directory: str) -> DataFrame:
    days = cleaned(spark, directory).withColumn("day", sf.to_date("at"))
    days.repartition("day").write.mode("overwrite").partitionBy("day").parquet(f"{directory}/clean")
    return spark.read.parquet(f"{directory}/clean").filter("day >= '2024-03-02'")


if __name__ == "__main__":
    # was: spark = SparkSession.builder.appName("etl").getOrCreate()
    spark = sortshuffle.session(SparkSession.builder.appName("etl"))
    with tempfile.TemporaryDirectory() as directory:
        data(spark, directory)
        job(spark, directory).orderBy("station", "at").show(5)
    spark.stop()
