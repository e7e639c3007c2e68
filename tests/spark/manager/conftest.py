"""Sessions with the shuffle manager and without it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from both_sides import Sides


@pytest.fixture(scope="module")
def sides_with(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[dict[str, str]], Sides]]:
    """Makes both sides, with settings; they are gone at the module's end."""
    made: list[Sides] = []

    def make(settings: dict[str, str]) -> Sides:
        made.append(Sides(tmp_path_factory.mktemp("sides"), settings))
        return made[-1]

    yield make
    for each in made:
        each.kill()
