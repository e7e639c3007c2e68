"""A skewed join: most clicks are on one page. It is joined as it is, and with salted keys."""

import tempfile
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import sortshuffle

SALTS = 8


def data(spark: SparkSession, directory: str) -> None:
    """Four of five clicks are on page 0."""
    page = sf.when(sf.col("id") % 5 != 0, 0).otherwise(sf.abs(sf.hash("id")) % 500)
    clicks = spark.range(20000, numPartitions=4).select(
        sf.concat(sf.lit("/page/"), page.cast("string"), sf.lit("?user="), sf.col("id") % 70).alias("url"),
        (sf.col("id") % 1000).alias("milliseconds"),
    )
    clicks.write.parquet(f"{directory}/clicks")
    pages = spark.range(600).select(
        sf.col("id").alias("page"),
        sf.concat(sf.lit("section "), sf.col("id") % 9).alias("section"),
        sf.when(sf.col("id") % 4 > 0, sf.col("id") * 10).alias("words"),
    )
    pages.write.parquet(f"{directory}/pages")


def parse(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        parts = pc.extract_regex(batch["url"], r"/page/(?P<page>\d+)\?user=(?P<user>\d+)")
        page, user = (pc.cast(pc.struct_field(parts, name), pa.int64()) for name in ("page", "user"))
        yield pa.RecordBatch.from_arrays(
            [page, user, batch["milliseconds"]], ["page", "user", "milliseconds"]
        )


def parsed(spark: SparkSession, directory: str) -> DataFrame:
    clicks = spark.read.parquet(f"{directory}/clicks")
    return clicks.mapInArrow(parse, "page long, user long, milliseconds long")


def sections(joined: DataFrame) -> DataFrame:
    return joined.groupBy("section").agg(
        sf.count("*").alias("clicks"),
        sf.count_distinct("user").alias("users"),
        sf.avg("milliseconds").alias("average"),
        sf.sum("words").alias("words"),
    )


def job(spark: SparkSession, directory: str) -> DataFrame:
    clicks, pages = parsed(spark, directory), spark.read.parquet(f"{directory}/pages")
    as_it_is = sections(clicks.hint("merge").join(pages, "page"))
    copies = pages.withColumn("salt", sf.explode(sf.sequence(sf.lit(0), sf.lit(SALTS - 1))))
    salted = sections(clicks.withColumn("salt", sf.col("user") % SALTS).join(copies, ["page", "salt"]))
    never = pages.join(clicks, "page", "left_anti").groupBy("section").agg(sf.count("*").alias("unread"))
    both = as_it_is.alias("one").join(salted.alias("two"), sf.col("one.section") == sf.col("two.section"))
    same = sf.col("one.users") == sf.col("two.users")
    return both.select("one.*", same.alias("same")).join(never, "section", "left").orderBy("section")


if __name__ == "__main__":
    # was: spark = SparkSession.builder.appName("skewed").getOrCreate()
    spark = sortshuffle.session(SparkSession.builder.appName("skewed"))
    with tempfile.TemporaryDirectory() as directory:
        data(spark, directory)
        job(spark, directory).show(5)
    spark.stop()
