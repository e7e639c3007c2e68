"""Counts what one thread asks of the JVM through Py4J."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.sql import SparkSession

FORGET = "m\n"  # how commands begin that let the JVM drop an object, as the garbage collector likes


@contextmanager
def java_calls(spark: SparkSession) -> Iterator[list[str]]:
    """The commands that this thread sends in the block, without those that drop objects."""
    client: Any = spark.sparkContext._gateway._gateway_client  # type: ignore[union-attr]
    sent: list[str] = []
    send, thread = client.send_command, threading.get_ident()

    def noted(command: str, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() == thread and not command.startswith(FORGET):
            sent.append(command)
        return send(command, *args, **kwargs)

    client.send_command = noted
    try:
        yield sent
    finally:
        del client.send_command
