"""The names of a result partition's two files: derived in one place, told apart from other names, and removed
together."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine import names
from hypothesis import given
from hypothesis import strategies as st

from sortshuffle.storage.files.partitioned_file import PartitionedFile

FILE = PartitionedFile("/data/exchange-3-map-17-attempt-204")


def test_a_pair_is_named_by_exchange_map_and_attempt() -> None:
    assert PartitionedFile.named("/data", 3, 17, 204) == FILE
    assert FILE.data_path == "/data/exchange-3-map-17-attempt-204.data"
    assert FILE.index_path == "/data/exchange-3-map-17-attempt-204.index"
    assert FILE.partial_data_path == "/data/exchange-3-map-17-attempt-204.data.partial"
    assert FILE.partial_index_path == "/data/exchange-3-map-17-attempt-204.index.partial"


@given(st.integers(0), st.integers(0), st.integers(0))
def test_the_attempt_is_read_from_the_name(exchange: int, map_index: int, attempt: int) -> None:
    assert PartitionedFile.named("/data", exchange, map_index, attempt).attempt == attempt


@pytest.mark.parametrize(
    "base", ["/data/x", "/data/exchange-1-map-2", "/data/exchange-1-map-2-attempt-3-copy", "/attempt-4/x"]
)
def test_other_names_have_no_attempt(base: str) -> None:
    assert PartitionedFile(base).attempt is None


def test_each_of_the_four_names_leads_back_to_the_pair() -> None:
    for path in (FILE.data_path, FILE.index_path, FILE.partial_data_path, FILE.partial_index_path):
        assert PartitionedFile.of(path) == FILE


@pytest.mark.parametrize(
    "path",
    ["/data/owner.json", "/data/janitor.lock", "/data/x.partial", "/data/x.data.partial.partial", "/x.DATA"],
)
def test_a_path_that_is_not_of_a_pair_leads_nowhere(path: str) -> None:
    assert PartitionedFile.of(path) is None


@pytest.mark.parametrize("present", [(), (0,), (1,), (2,), (3,), (0, 1), (1, 2), (2, 3), (0, 1, 2, 3)])
def test_delete_removes_what_there_is_of_the_pair_and_nothing_else(
    tmp_path: Path, present: tuple[int, ...]
) -> None:
    file = PartitionedFile.named(str(tmp_path), 3, 17, 204)
    paths = (file.data_path, file.index_path, file.partial_data_path, file.partial_index_path)
    for position in present:
        Path(paths[position]).touch()
    (tmp_path / "exchange-3-map-17-attempt-2049.data").touch()
    file.delete()
    assert names(tmp_path) == ["exchange-3-map-17-attempt-2049.data"]
