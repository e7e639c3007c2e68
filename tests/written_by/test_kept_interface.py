"""What releases promised to keep is still there: each option, public name, parameter, error, command and key
of the JSON of `dump` that `tests/kept_interface.py` listed then.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from kept_interface import KEPT, interface

RELEASES = sorted(path.parent.name for path in KEPT.glob("*/interface.json"))


def missing(then: Any, now: Any, where: str = "") -> list[str]:
    """What is not there any more, or has another type or order. More may be there now."""
    if isinstance(then, dict) and isinstance(now, dict):
        return [
            each
            for key, value in then.items()
            for each in (missing(value, now[key], f"{where}/{key}") if key in now else [f"{where}/{key}"])
        ]
    if isinstance(then, list) and isinstance(now, list):
        if then and isinstance(then[0], dict):  # the shape of a list's items
            return missing(then[0], now[0] if now else None, f"{where}[]")
        return [] if then == [each for each in now if each in then] else [where]
    return [] if then == now else [where]


@pytest.mark.parametrize("release", RELEASES)
def test_nothing_is_missing(release: str) -> None:
    then = json.loads((KEPT / release / "interface.json").read_text())
    assert missing(then, interface(KEPT / release / "files")) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("options/spark.sortshuffle.dir", None),
        ("options/spark.sortshuffle.dir", "bytes"),
        ("names/sortshuffle/configure", []),
        ("names/sortshuffle.engine/Barrier/()", ["time", "id", "options"]),
        ("names/sortshuffle.engine/Home/of", None),
        ("errors/MissingDataError", ["DataLossError"]),
        ("commands/dump", ["--json"]),
        ("dump/file/regions", [{"extents": []}]),
        ("dump/directory/pairs", []),
    ],
)
def test_what_is_missing_is_found(path: str, value: object) -> None:
    then = json.loads((KEPT / RELEASES[0] / "interface.json").read_text())
    now = json.loads((KEPT / RELEASES[0] / "interface.json").read_text())
    *above, last = path.split("/")
    place = now
    for name in above:
        place = place[name]
    if value is None:
        del place[last]
    else:
        place[last] = value
    found = missing(then, now)
    assert found
    assert all(each.startswith(f"/{path}") for each in found)


def test_more_may_be_there() -> None:
    assert missing({"a": [1, 2]}, {"a": [1, 3, 2], "b": 3}) == []
