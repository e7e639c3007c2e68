"""A server of Spark Connect with the shuffle manager, and clients of it that shuffle frames of this package.

    python connect_frames.py

Prints one JSON object: for each case its rows, what plain PySpark gives for them, and how many shuffles were
whose, by the manager's decisions.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

import sortshuffle

CONNECT = "org.apache.spark.sql.connect.SparkConnectPlugin"
Both = tuple[Any, Any]


def of_a_source_that_shuffles(session: Any) -> Both:
    """A shuffle of the user's below the frame's, and one behind it."""
    source = session.range(0, 100, 1, 2).selectExpr("id % 10 as k", "id").groupBy("k").count()
    placed = sortshuffle.frame(source).repartition(3, "k").toDF()
    return placed.groupBy("count").sum("k"), source.groupBy("count").sum("k")


def of_several_inputs(session: Any) -> Both:
    left = session.range(0, 50, 1, 2).selectExpr("id % 10 as k", "id as l")
    right = session.range(0, 20, 1, 2).selectExpr("id as k", "id * 2 as r")
    frames = sortshuffle.frame(left).repartition(3, "k"), sortshuffle.frame(right).repartition(3, "k")
    return frames[0].join(frames[1], "k").toDF(), left.join(right.hint("broadcast"), "k")


def of_a_cached_frame(session: Any) -> Both:
    def first(group: pa.Table) -> pa.Table:
        return group.slice(0, 1).select(["k"])

    source = session.range(0, 100, 1, 2).selectExpr("id % 10 as k", "id")
    cached = sortshuffle.frame(source).groupBy("k").applyInArrow(first, "k long").toDF().persist()
    cached.collect()
    return cached, session.range(10).toDF("k")


def of_a_users_columns(session: Any) -> Both:
    """Control rows have columns of these names, too."""
    names = ["cast(id as int) as partition", "id % 3 as subpartition", "1 as map_index", "2 as exchange"]
    rows = session.range(0, 20, 1, 2).selectExpr(*names)
    return rows.repartitionById(20, rows["partition"]), rows


CASES: dict[str, tuple[Callable[[Any], Both], dict[str, str]]] = {
    "a source that shuffles": (of_a_source_that_shuffles, {}),
    "without adaptive execution": (of_a_source_that_shuffles, {"spark.sql.adaptive.enabled": "false"}),
    "several inputs": (of_several_inputs, {}),
    "a cached frame": (of_a_cached_frame, {}),
    "a user's columns": (of_a_users_columns, {}),
    "a client that turns the manager off": (
        of_a_source_that_shuffles,
        {"spark.sortshuffle.manager": "off", "spark.shuffle.manager": "sort"},
    ),
}


def rows_of(frame: Any) -> list[str]:
    return sorted(map(repr, frame.collect()))


# ---- the client --------------------------------------------------------------------------------------------


class Server:
    """The server, in a process of its own: one process cannot have sessions of both kinds."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, "server"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.remote = f"sc://127.0.0.1:{self._answer()}"

    def decisions(self) -> Counter[str]:
        """How many shuffles were whose so far."""
        assert self._process.stdin is not None
        print(file=self._process.stdin, flush=True)
        return Counter(self._answer())

    def stop(self) -> None:
        self._process.communicate()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())


def run(server: Server, case: Callable[[Any], Both], settings: dict[str, str]) -> dict[str, Any]:
    builder: Any = sortshuffle.configure(SparkSession.builder.remote(server.remote))
    for key, value in settings.items():
        builder.config(key, value)
    session = builder.create()
    try:
        before = server.decisions()
        ours, plain = case(session)
        found = rows_of(ours)
        shuffles = server.decisions() - before
        return {"found": found, "expected": rows_of(plain), "shuffles": shuffles}
    finally:
        session.stop()


def client() -> None:
    server = Server()
    try:
        print(json.dumps({name: run(server, *case) for name, case in CASES.items()}))
    finally:
        server.stop()


# ---- the server --------------------------------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return int(opened.getsockname()[1])


def serve() -> None:
    """Prints the port, and for each line of its input the manager's decisions. Ends with its input."""
    port = free_port()
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder.config("spark.plugins", CONNECT).config("spark.connect.grpc.binding.port", str(port))
    builder.config("spark.sql.shuffle.partitions", "3")
    spark = sortshuffle.configure(builder.config("spark.sortshuffle.manager", "on")).getOrCreate()
    manager: Any = spark.sparkContext._jvm.org.sortshuffle.SortMergeShuffleManager
    print(port, flush=True)
    for _ in sys.stdin:
        print(json.dumps(dict(manager.decisions())), flush=True)
    spark.stop()


if __name__ == "__main__":
    serve() if sys.argv[1:] == ["server"] else client()
