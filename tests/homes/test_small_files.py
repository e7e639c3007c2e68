"""Small files of JSON: whole, or as they were."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from sortshuffle import calls
from sortshuffle.homes.small_files import replace_json


def test_the_new_value_replaces_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "word.json"
    for value in ({"one": [1, 2]}, {"two": None}):
        replace_json(str(path), value)
        assert json.loads(path.read_text()) == value
    assert os.listdir(tmp_path) == ["word.json"]


@pytest.mark.parametrize("call", ["open_file", "replace"])
def test_what_fails_leaves_the_old_value_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    path = tmp_path / "word.json"
    replace_json(str(path), "old")

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(calls, call, full)
    with pytest.raises(OSError, match="no space"):
        replace_json(str(path), "new")
    assert (json.loads(path.read_text()), os.listdir(tmp_path)) == ("old", ["word.json"])


def test_a_value_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        replace_json(str(tmp_path / "word.json"), ["begun", object()])
    assert os.listdir(tmp_path) == []
