"""A model for each shop: least squares on its sales, and how far its forecasts are from the next weeks."""

import tempfile

import numpy as np
import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import sortshuffle

INPUTS = ["price", "sunshine", "weekend"]


def data(spark: SparkSession, directory: str) -> None:
    noise = (sf.hash("id") % 100) / 50
    sales = (
        spark.range(6000)
        .withColumn("shop", sf.concat(sf.lit("shop-"), sf.col("id") % 25))
        .withColumn("day", (sf.col("id") / 25).cast("int"))
        .withColumn("price", 5 + sf.hash("id", sf.lit(1)) % 300 / 100)
        .withColumn("sunshine", sf.abs(sf.hash("id", sf.lit(2))) % 13 * 1.0)
        .withColumn("weekend", (sf.col("day") % 7 > 4).cast("double"))
        .withColumn("sold", 90 + sf.col("id") % 25 - 4 * sf.col("price") + 2 * sf.col("sunshine") + noise)
    )
    sales.drop("id").write.parquet(f"{directory}/sales")


def fit(key: tuple[str], sales: pd.DataFrame) -> pd.DataFrame:
    matrix = np.column_stack([np.ones(len(sales)), sales[INPUTS]])
    weights, *_ = np.linalg.lstsq(matrix, sales["sold"].to_numpy(), rcond=None)
    return pd.DataFrame({"shop": [key[0]], "weights": [weights], "days": [len(sales)]})


def forecast(sales: pd.DataFrame, model: pd.DataFrame) -> pd.DataFrame:
    """Add what the shop's model expects; nothing for a shop without a model."""
    weights = model["weights"].iloc[0] if len(model) else np.full(len(INPUTS) + 1, np.nan)
    expected = weights[0] + sales[INPUTS].to_numpy() @ weights[1:]
    return sales[["shop", "day", "sold"]].assign(expected=expected)


def models(sales: DataFrame) -> DataFrame:
    return sales.groupBy("shop").applyInPandas(fit, "shop string, weights array<double>, days long")


def job(spark: SparkSession, directory: str) -> DataFrame:
    sales = spark.read.parquet(f"{directory}/sales")
    known, unknown = sales.filter("day < 200 and shop != 'shop-7'"), sales.filter("day >= 200")
    fitted = models(known)
    expected = (
        unknown.groupBy("shop")
        .cogroup(fitted.groupBy("shop"))
        .applyInPandas(forecast, "shop string, day int, sold double, expected double")
    )
    error = sf.abs(expected.sold - expected.expected)
    errors = expected.groupBy("shop").agg(sf.count("*").alias("days"), sf.avg(error).alias("error"))
    return errors.join(fitted.select("shop", "weights"), "shop", "left").orderBy(sf.desc("error"))


if __name__ == "__main__":
    # was: spark = SparkSession.builder.appName("models").getOrCreate()
    spark = sortshuffle.session(SparkSession.builder.appName("models"))
    with tempfile.TemporaryDirectory() as directory:
        data(spark, directory)
        job(spark, directory).show(5)
    spark.stop()
