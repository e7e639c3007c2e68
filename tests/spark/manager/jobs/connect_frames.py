"""A server of Spark Connect with the shuffle manager, and a client of it that asks for a frame's shuffle.

    python connect_frames.py

Prints one JSON object: by what the client has set, the error of a frame's shuffle.
"""

from __future__ import annotations

import json
import socket
from typing import Any

from pyspark.sql import SparkSession

import sortshuffle
from sortshuffle.spark.session import NO_ROLLBACK

CONNECT = "org.apache.spark.sql.connect.SparkConnectPlugin"
TRIED = {
    "nothing": {},
    "that the manager is off": {"spark.sortshuffle.manager": "off"},
    "another manager": {"spark.shuffle.manager": "sort"},
}


def free_port() -> int:
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return int(opened.getsockname()[1])


def error_of_a_shuffle(remote: Any, settings: dict[str, str]) -> str:
    from pyspark.sql.connect.session import SparkSession as RemoteSession

    builder = RemoteSession.builder.remote(remote).config(NO_ROLLBACK, "false")
    for key, value in settings.items():
        builder.config(key, value)
    session: Any = builder.create()
    try:
        sortshuffle.frame(session.range(5)).repartition(2, "id").toDF().count()
    except Exception as error:
        return f"{type(error).__name__} {error}"
    finally:
        session.stop()
    return "none"


def main() -> None:
    port = free_port()
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    builder.config("spark.plugins", CONNECT).config("spark.connect.grpc.binding.port", str(port))
    server = sortshuffle.configure(builder.config("spark.sortshuffle.manager", "on")).getOrCreate()
    remote = f"sc://127.0.0.1:{port}"
    print(json.dumps({what: error_of_a_shuffle(remote, settings) for what, settings in TRIED.items()}))
    server.stop()


if __name__ == "__main__":
    main()
