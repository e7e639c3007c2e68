"""What releases promised to keep is still there: each option, public name, parameter, error, command and key
of the JSON of `dump` that `tests/kept_interface.py` listed then.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from kept_interface import KEPT, interface

from sortshuffle.version import __version__

RELEASES = sorted(path.parent.name for path in KEPT.glob("*/interface.json"))


def missing(then: Any, now: Any, where: str = "") -> list[str]:
    """What is not there any more, or has another type or order, or is required now. More may be there."""
    if isinstance(then, dict) and isinstance(now, dict):
        required = [
            key for key, value in now.items() if key not in then and str(value).endswith(", required")
        ]
        return [f"{where}/{key}" for key in required] + [
            each
            for key, value in then.items()
            for each in (missing(value, now[key], f"{where}/{key}") if key in now else [f"{where}/{key}"])
        ]
    if isinstance(then, list) and isinstance(now, list):
        if then and isinstance(then[0], dict):  # the shape of a list's items
            return missing(then[0], now[0] if now else None, f"{where}[]")
        return [] if holds(then, now, where) else [where]
    return [] if then == now or f"{now}, required" == then else [where]


def holds(then: list[str], now: list[str], where: str) -> bool:
    """Whether all are there in their order. Parameters may be left out that could be then, or are new."""
    if "/names/" not in where and not where.endswith("/parameters"):
        return then == [each for each in now if each in then]
    names = [name.rstrip("=") for name in then]
    kept = [name for name in now if name.rstrip("=") in names]
    others = [name for name in now if name not in kept]
    in_order = [name.rstrip("=") for name in kept] == names
    return (
        in_order
        and all(new in (old, f"{old}=") for old, new in zip(then, kept, strict=True))
        and all(name.endswith("=") for name in others)
    )


@pytest.mark.parametrize("release", RELEASES)
def test_nothing_is_missing(release: str) -> None:
    then = json.loads((KEPT / release / "interface.json").read_text())
    assert missing(then, interface(KEPT / release / "files")) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("options/spark.sortshuffle.dir", None),
        ("options/spark.sortshuffle.memory/unit", "KB"),
        ("options/spark.sortshuffle.codec/words", ["lz4", "none"]),
        ("names/sortshuffle/configure", []),
        ("names/sortshuffle/configure", ["builder", "must"]),
        ("names/sortshuffle.engine/release", ["must", "outputs"]),
        ("errors/OutOfDiskError/parameters", ["self", "path", "needed", "free"]),
        ("names/sortshuffle.engine/Barrier/()", ["time", "id", "options="]),
        ("names/sortshuffle.engine/Home/of", None),
        ("errors/MissingDataError/bases", ["DataLossError"]),
        ("commands/dump/--json", None),
        ("commands/dump/--json", "1"),
        ("commands/clean/--must", "1, required"),
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


def test_more_may_be_there_and_less_be_required() -> None:
    assert missing({"a": [1, 2]}, {"a": [1, 3, 2], "b": 3}) == []
    assert missing({"parameters": ["a", "b="]}, {"parameters": ["a=", "b=", "c="]}) == []
    assert missing({"--a": "1, required"}, {"--a": "1", "--b": "1"}) == []


def test_all_that_this_release_promises_is_kept() -> None:
    kept = KEPT / __version__
    then = json.loads((kept / "interface.json").read_text())
    assert then == interface(kept / "files"), "python tests/kept_interface.py writes it anew"
