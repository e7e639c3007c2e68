"""A real S3-compatible server for tests, moto's over HTTP on the loopback, and what a user sets to use it."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.request import Request, urlopen

BUCKET = "shuffles"


@dataclass(frozen=True)
class S3Server:
    """``environment``: the variables by which s3fs finds it."""

    environment: dict[str, str]

    @property
    def root(self) -> str:
        return f"s3://{BUCKET}/below/this"

    def filesystem(self) -> Any:
        import fsspec

        return fsspec.filesystem("s3")

    def objects(self, prefix: str = "") -> list[str]:
        """Keys of the complete objects below the root, without its own."""
        filesystem = self.filesystem()
        filesystem.invalidate_cache()
        root = self.root.removeprefix("s3://")
        return sorted(path.removeprefix(root + "/") for path in filesystem.find(f"{root}/{prefix}"))

    def uploads(self) -> list[str]:
        """Keys of uploads that were begun and neither completed nor given up."""
        answer = self.filesystem().call_s3("list_multipart_uploads", Bucket=BUCKET)
        return sorted(upload["Key"] for upload in answer.get("Uploads") or ())


@contextmanager
def running_s3_server() -> Iterator[S3Server]:
    """The server with an empty bucket; this process, and those it starts, use it meanwhile."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # no line for every request
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    environment = {
        "AWS_ACCESS_KEY_ID": "someone",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL_S3": f"http://{host}:{port}",
    }
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        found = S3Server(environment)
        reset = Request(
            f"http://{host}:{port}/moto-api/reset", method="POST"
        )  # it keeps objects in this process
        urlopen(reset, timeout=10).close()
        _forget_connections()
        found.filesystem().mkdir(BUCKET)
        yield found
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        _forget_connections()
        server.stop()


def _forget_connections() -> None:
    """fsspec keeps file systems, with the address that they were made for."""
    from s3fs import S3FileSystem

    S3FileSystem.clear_instance_cache()
