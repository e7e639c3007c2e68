"""Pictures: what they show is where it belongs, whatever settings of matplotlib the user has."""

from __future__ import annotations

import base64
import io
import sys
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, tostring

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.image import imread

from sortshuffle.errors import UnsupportedError
from sortshuffle.report.heat_map import HeatMap
from sortshuffle.report.plots import MOST_BARS, bars_of, check_can_draw, heat_plot, sizes_plot

HOSTILE: dict[str, Any] = {
    "svg.image_inline": False,
    "svg.id": "mine",
    "text.usetex": True,
    "path.sketch": (1, 100, 2),
    "axes.grid": True,
    "image.cmap": "gray",
    "image.origin": "lower",
    "xtick.labelsize": 20,
    "savefig.bbox": "tight",
}


def heat_of(sizes: list[list[int]]) -> HeatMap:
    heat = HeatMap(len(sizes[0]))
    heat.add(np.array(sizes))
    return heat


def test_bars_are_the_largest_of_neighbours() -> None:
    assert [each.tolist() for each in bars_of(np.array([3, 1, 2]))] == [[0, 1, 2, 3], [3, 1, 2]]
    sizes = np.arange(3 * MOST_BARS)
    edges, largest = bars_of(sizes)
    assert edges.tolist() == list(range(0, 3 * MOST_BARS + 1, 3))
    assert largest.tolist() == list(range(2, 3 * MOST_BARS, 3))


def test_the_first_region_is_at_the_top_and_the_first_subpartition_on_the_left() -> None:
    picture = heat_plot("p", heat_of([[0, 0, 0], [0, 0, 0], [9, 0, 0]]))
    largest = max(picture.iter("image"), key=lambda each: float(each.get("width", 0)))
    data = base64.b64decode(largest.get("href", "").partition(",")[2])
    light = imread(io.BytesIO(data))[:, :, :3].sum(axis=2)
    rows, columns = np.nonzero(light > light.min() + 0.5)
    # SVG may flip the image: then its transform has a negative scale
    height = len(light)
    rows = height - 1 - rows if "scale(1 -1)" in largest.get("transform", "") else rows
    assert rows.min() > height / 2
    assert columns.max() < light.shape[1] / 2


def text_of(picture: Element) -> list[str]:
    return [each.text or "" for each in picture.iter("text")]


def test_axes_of_numbers_have_whole_ticks() -> None:
    picture = heat_plot("p", heat_of([[1, 2], [3, 4]]))
    assert text_of(picture)[:5] == ["0", "1", "subpartition", "0", "1"]
    many = sizes_plot("p", np.full(1000, 5), 5.0)
    assert text_of(many)[:11] == [str(number) for number in range(0, 1000, 100)] + text_of(many)[10:11]


def test_the_line_is_at_the_median() -> None:
    low, high = (tostring(sizes_plot("p", np.array([1, 2, 9]), typical)) for typical in (1.0, 9.0))
    assert low != high


def test_settings_of_the_user_do_not_matter() -> None:
    heat = heat_of([[1, 2], [3, 4]])
    plain = tostring(heat_plot("p", heat))
    with mpl.rc_context(HOSTILE):
        assert tostring(heat_plot("p", heat)) == plain
        assert mpl.rcParams["image.cmap"] == "gray"


def test_text_stays_text() -> None:
    assert "subpartition" in text_of(heat_plot("p", heat_of([[1]])))


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("raise ValueError('unknown backend')", "does not start: unknown backend"),
        ("raise ImportError('numpy is broken')", "does not start: numpy is broken"),
    ],
)
def test_a_library_that_does_not_start_is_said_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, said: str
) -> None:
    (tmp_path / "matplotlib").mkdir()
    (tmp_path / "matplotlib" / "__init__.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(UnsupportedError, match=said):
        check_can_draw()
