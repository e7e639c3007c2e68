"""What most tests of the engine share: an engine in this process, a connection to it, and that no failure of
a home is left to the next test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from jvm_client import JvmClient, Serving, serving

from sortshuffle.homes import home_failures


@pytest.fixture(autouse=True)
def no_failures() -> Iterator[None]:
    yield
    home_failures._failures.clear()
    home_failures._known.clear()


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Serving]:
    with serving(tmp_path) as served:
        yield served


@pytest.fixture
def client(engine: Serving) -> JvmClient:
    return engine.connect()
