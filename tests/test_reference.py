"""`tools/docs`: each name that users import has its place in the API reference, and says what it is."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine import ENVIRONMENT, ROOT

PUBLIC = ("sortshuffle", "sortshuffle.engine", "sortshuffle.partitioner")


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("site")
    command = [sys.executable, str(ROOT / "tools" / "lib" / "reference.py"), str(directory)]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return directory


@pytest.mark.parametrize("module", PUBLIC)
def test_each_public_name_has_an_entry(module: str, pages: Path) -> None:
    page = pages.joinpath(*module.split(".")).with_suffix(".html").read_text()
    names = importlib.import_module(module).__all__
    assert [name for name in names if f'id="{name}"' not in page] == []


def public_objects(module: str) -> Iterator[tuple[str, object]]:
    """What a module exports, and the public methods and properties of its classes."""
    found = importlib.import_module(module)
    for name in found.__all__:
        value = getattr(found, name)
        if inspect.isclass(value) or inspect.isroutine(value):
            yield name, value
        if inspect.isclass(value):
            members = {each: member for each, member in vars(value).items() if not each.startswith("_")}
            described = (property, staticmethod, classmethod)
            for each, member in members.items():
                if inspect.isroutine(member) or isinstance(member, described):
                    yield f"{name}.{each}", getattr(value, each)


@pytest.mark.parametrize("module", PUBLIC)
def test_what_users_import_says_what_it_is(module: str) -> None:
    objects = dict(public_objects(module))
    assert len(objects) > 10
    assert [name for name, value in objects.items() if not inspect.getdoc(value)] == []
