"""Sessions with the shuffle manager and without it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from both_sides import Sides
from served_session import Session


@pytest.fixture(scope="module")
def sides_with(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Sides]]:
    """Makes both sides, as `Sides` does; they are gone at the module's end."""
    made: list[Sides] = []

    def make(settings: dict[str, str], plain: Session | None = None) -> Sides:
        made.append(Sides(tmp_path_factory.mktemp("sides"), settings, plain))
        return made[-1]

    yield make
    for each in made:
        each.kill()
