"""Count words, with DataFrames and with RDDs, and see that both find the same."""

import re
import tempfile
from operator import add

from pyspark import RDD
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import sortshuffle

WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "and", "naps", "then"]


def data(spark: SparkSession, directory: str) -> None:
    """Write 2000 lines of seven words."""
    known = sf.array(*map(sf.lit, WORDS))
    chosen = [
        sf.element_at(known, (sf.abs(sf.hash("id", sf.lit(n))) % len(WORDS) + 1).cast("int"))
        for n in range(6)
    ]
    line = sf.concat(sf.concat_ws(" ", sf.initcap(chosen[0]), *chosen), sf.lit("."))
    spark.range(2000, numPartitions=4).select(line).write.text(f"{directory}/lines")


def count_with_dataframes(spark: SparkSession, directory: str) -> DataFrame:
    lines = spark.read.text(f"{directory}/lines")
    words = lines.select(sf.explode(sf.split(sf.lower("value"), "[^a-z]+")).alias("word"))
    return words.filter("word != ''").groupBy("word").count()


def count_with_rdds(spark: SparkSession, directory: str) -> "RDD[tuple[str, int]]":
    lines = spark.sparkContext.textFile(f"{directory}/lines")
    words = lines.flatMap(lambda line: re.findall("[a-z]+", line.lower()))
    return words.map(lambda word: (word, 1)).reduceByKey(add)


def starts(spark: SparkSession, directory: str) -> "RDD[tuple[str, list[str]]]":
    """The words of each first letter, from the rows of a DataFrame."""
    letters = count_with_dataframes(spark, directory).rdd.map(lambda row: (row.word[0], row.word))
    return letters.groupByKey(3).mapValues(sorted)


def job(spark: SparkSession, directory: str) -> DataFrame:
    counted = count_with_dataframes(spark, directory)
    again = count_with_rdds(spark, directory).toDF(["word", "times"])
    letters = spark.createDataFrame(starts(spark, directory), "letter string, words array<string>")
    both = counted.join(again, "word", "full").withColumn("letter", sf.substring("word", 1, 1))
    return both.join(letters, "letter").orderBy(sf.desc("count"), "word")


if __name__ == "__main__":
    # was: spark = SparkSession.builder.appName("words").getOrCreate()
    spark = sortshuffle.session(SparkSession.builder.appName("words"))
    with tempfile.TemporaryDirectory() as directory:
        data(spark, directory)
        job(spark, directory).show(5)
        print(count_with_rdds(spark, directory).sortBy(lambda pair: (-pair[1], pair[0])).take(3))
    spark.stop()
