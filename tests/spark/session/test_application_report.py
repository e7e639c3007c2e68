"""``spark.sortshuffle.report``: the page that an application leaves, with frames, with RDDs, and with the
shuffle manager alone; and that a page which cannot be written costs the job nothing."""

from __future__ import annotations

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from xml.etree.ElementTree import Element, fromstring

import pytest
from engine import ENVIRONMENT
from pyspark.sql import SparkSession

import sortshuffle
from sortshuffle.errors import UnsupportedError
from sortshuffle.options import PREFIX, format_size
from sortshuffle.spark.session import application_report

BEGIN = """
import json, sys
import sortshuffle
from pyspark.sql import SparkSession
from pyspark.sql.functions import col, sum

directory, more = {arguments}
spark = sortshuffle.session(
    SparkSession.builder.master("local[2]").appName("nightly <b>").config("spark.ui.enabled", "false")
    .config("spark.sortshuffle.report", directory + "/reports").config(map=more)
)
print(spark.sparkContext.applicationId)
df = spark.range(0, 4000, 1, 3).select("id", (col("id") % 7).alias("key"))
"""
FRAMES = """
def same(batches):
    yield from batches
kept = df.mapInArrow(same, df.schema).repartition(5, "key")
counts = kept.groupBy("key").agg(sum("id")).collect()
assert len(counts) == 7, counts
del counts
for total in kept.stage_totals():
    for number, metrics in total.outputs.items():
        print("exchange", number, metrics.counts["rows_written"], metrics.counts["bytes_written"])
"""
GONE = "del kept, total, metrics\nimport gc; gc.collect()\n"
RDD = """
pairs = spark.sparkContext.parallelize([(n % 7, n) for n in range(700)], 3)
assert len(sortshuffle.rdd(pairs).groupByKey(4).collect()) == 7
"""
MANAGER = "assert df.repartition(5, 'key').count() == 4000\n"
STOP = "spark.stop()\n"

CASES: dict[str, tuple[str, dict[str, str]]] = {
    "stop": (FRAMES + STOP, {}),
    "exception": (FRAMES + GONE + "raise ZeroDivisionError\n", {}),
    "encrypted": (FRAMES + STOP, {"spark.io.encryption.enabled": "true"}),
    "both": (FRAMES + MANAGER + STOP, {f"{PREFIX}manager": "on"}),
    "rdd": (RDD, {}),
    "manager": (MANAGER, {f"{PREFIX}manager": "on"}),
    "unwritable": (FRAMES + STOP, {f"{PREFIX}report": "/proc/reports"}),
}


@dataclass(frozen=True)
class Ended:
    """An application that has ended, and what it printed."""

    code: int
    said: str
    lines: list[str]
    directory: Path

    @property
    def page(self) -> str:
        return (self.directory / "reports" / f"{self.lines[0]}.html").read_text()

    @property
    def body(self) -> Element:
        page = self.page
        return fromstring(page[page.index("<body>") : page.index("</body>") + len("</body>")])

    @property
    def exchanges(self) -> list[list[str]]:
        """Number, rows and bytes of each, as the program knows them."""
        return [line.split()[1:] for line in self.lines if line.startswith("exchange ")]

    def table(self, title: str) -> list[list[str]]:
        """The rows of the table below a heading."""
        flat = list(self.body.iter())
        at = next(number for number, each in enumerate(flat) if each.tag == "h3" and each.text == title)
        table = next(each for each in flat[at:] if each.tag == "table")
        return [["".join(cell.itertext()) for cell in row] for row in table.iter("tr")][1:]


def run(directory: Path, program: str, more: dict[str, str]) -> Ended:
    directory.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", BEGIN.format(arguments=(str(directory), more)) + program],
        env=ENVIRONMENT,
        text=True,
        capture_output=True,
        timeout=240,
        check=False,
    )
    return Ended(done.returncode, done.stderr, done.stdout.splitlines(), directory)


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    """Each is an application with a driver of its own, and takes some seconds: three at once."""
    directory = tmp_path_factory.mktemp("jobs")
    with ThreadPoolExecutor(3) as pool:
        running = {
            name: pool.submit(run, directory / name, program, more) for name, (program, more) in CASES.items()
        }
        return {name: job.result() for name, job in running.items()}


@pytest.mark.parametrize(("case", "code"), [("stop", 0), ("exception", 1), ("both", 0), ("encrypted", 0)])
def test_a_job_of_frames(ended: dict[str, Ended], case: str, code: int) -> None:
    done = ended[case]
    assert done.code == code, done.said
    assert [each.name for each in (done.directory / "reports").iterdir()] == [f"{done.lines[0]}.html"]
    assert f"The report on this application is {done.directory}/reports/{done.lines[0]}.html" in done.said
    written = {row[0]: row[2:4] for row in done.table("What they wrote")}
    assert done.exchanges
    for number, rows, size in done.exchanges:
        assert written[number] == [f"{int(rows):,}", format_size(int(size))]
    assert "nightly &lt;b&gt;" in done.page
    assert "mapInArrow(): rows go to Python" in done.page


@pytest.mark.parametrize("case", ["stop", "both", "encrypted"])
def test_map_outputs_that_are_there_are_looked_at(ended: dict[str, Ended], case: str) -> None:
    done = ended[case]
    ((number, rows, _),) = done.exchanges[:1]
    assert f"Exchange {number} of {done.lines[0]}" in done.page
    assert f"{int(rows):,} rows in " in done.page
    names = [row[0] for row in done.table("Columns")]
    assert sorted(names) == ["id int64", "key int64"]


def test_stages_that_write_exchanges_have_their_names(ended: dict[str, Ended]) -> None:
    done = ended["stop"]
    stages = done.table("Spark's stages, the longest first")
    assert any(": sortshuffle exchange " in stage[0] for stage in stages)
    assert {stage[8] for stage in stages} == {"complete"}
    (tasks,) = {stage[3] for stage in stages if f"exchange {done.exchanges[0][0]}:" in stage[0]}
    assert tasks == "3"


def test_steps_have_their_time(ended: dict[str, Ended]) -> None:
    body = ended["stop"].body
    assert "Seconds of tasks in each step of Python stages" in [each.text for each in body.iter("h3")]
    pictures = [{text.text for text in svg.iter("text")} for svg in body.iter("svg")]
    assert any({"encode", "user", "write"} <= names for names in pictures)


def test_a_job_of_rdds(ended: dict[str, Ended]) -> None:
    done = ended["rdd"]
    assert done.code == 0, done.said
    (written,) = done.table("What they wrote")
    assert written[2] == "21"  # each of 3 tasks combines its rows of 7 keys


def test_the_managers_shuffles_are_told_from_the_exchanges_of_frames(ended: dict[str, Ended]) -> None:
    done = ended["both"]
    titles = [each.text for each in done.body.iter("h2") if each.get("class") == "chapter"]
    ((number, _, _),) = done.exchanges[:1]
    assert f"Exchange {number} of {done.lines[0]}" in titles
    assert re.search(r"Shuffle \d+ of local-", " ".join(filter(None, titles)))


def test_a_job_of_the_manager_alone(ended: dict[str, Ended]) -> None:
    done = ended["manager"]
    assert done.code == 0, done.said
    assert "Shuffle 0 of " in done.page
    assert "4,000 rows in " in done.page
    assert "Rows are not decoded: they are rows of the JVM" in done.page
    assert "Python stages" not in done.page
    assert done.table("Spark's stages, the longest first")


def test_a_page_that_cannot_be_written_costs_the_job_nothing(ended: dict[str, Ended]) -> None:
    done = ended["unwritable"]
    assert done.code == 0, done.said
    assert "there is no report on this application in /proc/reports: the page cannot be written" in done.said


def test_a_report_that_cannot_be_drawn_is_refused_at_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(application_report.importlib.util, "find_spec", lambda name: None)
    spark.conf.set(f"{PREFIX}report", str(tmp_path))
    try:
        with pytest.raises(UnsupportedError, match=r"pip install 'sortshuffle\[report\]'"):
            sortshuffle.frame(spark.range(3))
    finally:
        spark.conf.unset(f"{PREFIX}report")
    assert sortshuffle.frame(spark.range(3)).count() == 3
