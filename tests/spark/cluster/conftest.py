"""A cluster of three hosts, for all tests here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cluster import Cluster
from spark_home import spark_home

HOSTS = 3


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("cluster"), {"SPARK_HOME": str(spark_home())})
    cluster.up(HOSTS, cores=1, memory="1g")
    try:
        yield cluster
    finally:
        cluster.down()
