"""Contacts without duplicates: normalise them, drop equal ones, keep the latest of each address."""

import tempfile
import unicodedata
from collections.abc import Iterator

import pandas as pd
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as sf

import sortshuffle

NAMES = ["Zoë Müller", "ZOE MULLER ", "zoe  muller", "José Peña", "jose pena", "Ada Lovelace"]


def data(spark: SparkSession, directory: str) -> None:
    name = sf.element_at(sf.array(*map(sf.lit, NAMES)), (sf.col("id") % len(NAMES) + 1).cast("int"))
    address = sf.concat(sf.lit("Box"), (sf.col("id") % 90).cast("string"), sf.lit("@Example.org"))
    contacts = spark.range(2000, numPartitions=3).select(
        name.alias("name"),
        sf.when(sf.col("id") % 2 == 0, sf.lower(address)).otherwise(address).alias("email"),
        sf.when(sf.col("id") % 11 != 0, (sf.col("id") % 45).cast("string")).alias("city"),
        sf.date_add(sf.lit("2023-06-01"), (sf.hash("id") % 200).cast("int")).alias("seen"),
    )
    contacts.write.parquet(f"{directory}/contacts")


def simple(text: str) -> str:
    """Return ``text`` in lower case, without accents, with single spaces."""
    letters = unicodedata.normalize("NFKD", text.casefold())
    return " ".join("".join(letter for letter in letters if not unicodedata.combining(letter)).split())


def normalise(chunks: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for chunk in chunks:
        chunk["name"] = chunk["name"].map(simple)
        chunk["email"] = chunk["email"].str.lower()
        yield chunk


def normalised(spark: SparkSession, directory: str) -> DataFrame:
    contacts = spark.read.parquet(f"{directory}/contacts")
    return contacts.mapInPandas(normalise, contacts.schema)


def job(spark: SparkSession, directory: str) -> DataFrame:
    different = normalised(spark, directory).dropDuplicates()
    latest_first = Window.partitionBy("email", "name").orderBy(
        sf.desc("seen"), sf.col("city").desc_nulls_last()
    )
    latest = different.withColumn("rank", sf.row_number().over(latest_first)).filter("rank = 1").drop("rank")
    people = different.select("email", "name").distinct().groupBy("email").agg(sf.count("*").alias("people"))
    cities = different.dropna(subset=["city"]).groupBy("email").agg(sf.min("seen").alias("since"))
    return latest.join(people, "email").join(cities, latest.email == cities.email, "left").drop(cities.email)


if __name__ == "__main__":
    # was: spark = SparkSession.builder.appName("duplicates").getOrCreate()
    spark = sortshuffle.session(SparkSession.builder.appName("duplicates"))
    with tempfile.TemporaryDirectory() as directory:
        data(spark, directory)
        job(spark, directory).orderBy("email", "name").show(5)
    spark.stop()
