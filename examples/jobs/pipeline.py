"""A pyspark.ml Pipeline: a stage of our own smooths each machine's users, a regression explains its load."""

import tempfile

import pandas as pd
from pyspark.ml import Pipeline, Transformer
from pyspark.ml.evaluation import RegressionEvaluator
from pyspark.ml.feature import StringIndexer, VectorAssembler
from pyspark.ml.regression import LinearRegression
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import sortshuffle


def data(spark: SparkSession, directory: str) -> None:
    loads = (
        spark.range(2400, numPartitions=3)
        .withColumn("machine", sf.concat(sf.lit("machine-"), sf.col("id") % 12))
        .withColumn("hour", (sf.col("id") / 12).cast("int"))
        .withColumn("users", sf.abs(sf.hash("id")) % 50)
        .withColumn("load", sf.col("users") * 1.5 + sf.col("id") % 12 + sf.hash("id", sf.lit(1)) % 10)
    )
    loads.drop("id").write.parquet(f"{directory}/loads")


def smooth(loads: pd.DataFrame) -> pd.DataFrame:
    """Add the average of the last six hours of one machine."""
    loads = loads.sort_values("hour")
    return loads.assign(smooth=loads["users"].rolling(6, min_periods=1).mean())


class Smooth(Transformer):
    """Smooths the users of each machine."""

    def _transform(self, dataset: DataFrame) -> DataFrame:
        schema = "machine string, hour int, users int, load double, smooth double"
        columns = dataset.select("machine", "hour", "users", "load")
        return columns.groupBy("machine").applyInPandas(smooth, schema)


def pipeline() -> Pipeline:
    index = StringIndexer(inputCol="machine", outputCol="number", stringOrderType="alphabetAsc")
    features = VectorAssembler(inputCols=["number", "users", "smooth"], outputCol="features")
    regression = LinearRegression(labelCol="load", regParam=0.1)
    return Pipeline(stages=[Smooth(), index, features, regression])


def job(spark: SparkSession, directory: str) -> DataFrame:
    loads = spark.read.parquet(f"{directory}/loads")
    known, unknown = loads.filter("hour < 150"), loads.filter("hour >= 150")
    predicted = pipeline().fit(known).transform(unknown)
    error = RegressionEvaluator(labelCol="load", metricName="rmse").evaluate(predicted)
    machines = predicted.groupBy("machine").agg(
        sf.avg("load").alias("load"), sf.avg("prediction").alias("predicted")
    )
    return machines.withColumn("rmse", sf.lit(error)).orderBy("machine")


if __name__ == "__main__":
    # was: spark = SparkSession.builder.appName("pipeline").getOrCreate()
    spark = sortshuffle.session(SparkSession.builder.appName("pipeline"))
    with tempfile.TemporaryDirectory() as directory:
        data(spark, directory)
        job(spark, directory).show(5)
    spark.stop()
