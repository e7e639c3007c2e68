"""Features of customers: joins, windows and aggregates, and a trend that only pandas computes."""

import tempfile

import numpy as np
import pandas as pd
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as sf

import sortshuffle


def data(spark: SparkSession, directory: str) -> None:
    orders = spark.range(3000).select(
        sf.col("id").alias("order"),
        (sf.hash("id") % 40 + 40).cast("long").alias("customer"),
        sf.date_add(sf.lit("2024-01-01"), (sf.col("id") % 180).cast("int")).alias("day"),
        (sf.abs(sf.hash("id", sf.lit(1))) % 9000 / 100).alias("amount"),
        sf.element_at(
            sf.array(*map(sf.lit, ("books", "music", "games"))), (sf.col("id") % 3 + 1).cast("int")
        ).alias("shelf"),
    )
    orders.write.parquet(f"{directory}/orders")
    countries = [(number, "NLDEFR"[number % 3 * 2 :][:2]) for number in range(0, 80, 2)]
    spark.createDataFrame(countries, "customer long, country string").write.json(f"{directory}/customers")


def trend(key: tuple[int], orders: pd.DataFrame) -> pd.DataFrame:
    """The slope of a customer's amounts over time."""
    days = pd.to_datetime(orders["day"]).astype("datetime64[s]").astype("int64") / 86400
    slope = np.polyfit(days - days.mean(), orders["amount"], 1)[0] if len(orders) > 1 else 0.0
    return pd.DataFrame({"customer": [key[0]], "trend": [slope]})


@sf.pandas_udf("double")
def log_scaled(amount: pd.Series) -> pd.Series:
    return np.log1p(amount)


def trends(spark: SparkSession, directory: str) -> DataFrame:
    orders = spark.read.parquet(f"{directory}/orders")
    return orders.groupBy("customer").applyInPandas(trend, "customer long, trend double")


def job(spark: SparkSession, directory: str) -> DataFrame:
    orders = spark.read.parquet(f"{directory}/orders")
    customers = spark.read.schema("customer long, country string").json(f"{directory}/customers")
    by_day = Window.partitionBy("customer").orderBy("day", "order")
    visits = (
        orders.withColumn("before", sf.lag("day").over(by_day))
        .withColumn("gap", sf.datediff("day", "before"))
        .withColumn("recent", sf.avg("amount").over(by_day.rowsBetween(-4, 0)))
        .withColumn("rank", sf.row_number().over(by_day))
    )
    habits = visits.groupBy("customer").agg(
        sf.count("*").alias("orders"),
        sf.sum("amount").alias("spent"),
        sf.avg("gap").alias("gap"),
        sf.max_by("recent", "rank").alias("recent"),
    )
    shelves = (
        orders.groupBy("customer").pivot("shelf", ["books", "games", "music"]).sum("amount").na.fill(0.0)
    )
    features = habits.join(shelves, "customer").join(trends(spark, directory), "customer")
    return features.join(customers, "customer", "left").withColumn("spent", log_scaled("spent"))


if __name__ == "__main__":
    # was: spark = SparkSession.builder.appName("features").getOrCreate()
    spark = sortshuffle.session(SparkSession.builder.appName("features"))
    with tempfile.TemporaryDirectory() as directory:
        data(spark, directory)
        job(spark, directory).orderBy("customer").show(5)
    spark.stop()
