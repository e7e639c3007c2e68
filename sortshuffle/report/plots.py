"""Pictures of exchanges and of what an application did, drawn by matplotlib as SVG that stands within a page;
and the style of all of this project's pictures, for those of docs/comparison.md too.

Rules
* In a page, lines and letters take the colour of its text, so a picture is readable on light and on dark. A
  picture in a file of its own stands on white.
* The same figures give the same bytes, whatever settings of matplotlib the user has.
* matplotlib is loaded when the first picture is drawn. It is an extra: `pip install 'sortshuffle[report]'`.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from xml.etree.ElementTree import Element, fromstring

import numpy as np

from sortshuffle.errors import UnsupportedError
from sortshuffle.options import KIB, format_size
from sortshuffle.report.application import ApplicationRun, SparkStage
from sortshuffle.report.heat_map import HeatMap
from sortshuffle.storage.inspection.contents import Int64s

ACCENT = "#2a7f62"  # for what is ours
OTHER = "#9aa5b1"
MOST_BARS = 256  # a bar takes at least 2 pixels of a page's width
MOST_STAGES = 40  # in a timeline
_TEXT = "#010203"  # stands for the colour of the page's text until the picture is drawn
_TEXTS = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
_BACKGROUNDS = ("figure.facecolor", "axes.facecolor", "savefig.facecolor")
_BACKEND = {"backend", "backend_fallback"}
MISSING = "a report needs matplotlib for its pictures: pip install 'sortshuffle[report]'"
_WIDTH = 9.0  # inches, which a browser shows as large as the page is wide


def sizes_plot(name: str, sizes: Int64s, typical: float) -> Element:
    """Draw the bytes of each subpartition as bars; of many, the largest of neighbours as one. ``typical``:
    bytes, drawn as a line. ``name``: what the picture's identifiers begin with, unique in its page."""
    edges, largest = bars_of(sizes)
    with drawing(_TEXT, "none") as figure_of:
        figure = figure_of(figsize=(_WIDTH, 2.4))
        axes = figure.subplots()
        axes.stairs(largest, edges, fill=True, color=ACCENT)
        axes.axhline(typical, color=_TEXT, linewidth=1, linestyle="--")
        axes.set_xlim(0, len(sizes))
        axes.set_ylim(bottom=0)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_xlabel("subpartition; the dashed line is the median of those that are not empty")
        _mark_numbers(axes.xaxis, len(sizes))
        _mark_sizes(axes.yaxis, int(largest.max()))
        return _svg(figure, name)


def bars_of(sizes: Int64s) -> tuple[Int64s, Int64s]:
    """Return the edges of the bars, one more than there are bars, and the bytes of each: of the largest of
    its subpartitions."""
    bars = min(len(sizes), MOST_BARS)
    first = np.arange(bars, dtype=np.int64) * len(sizes) // bars
    return np.append(first, len(sizes)), np.maximum.reduceat(sizes, first)


def heat_plot(name: str, heat: HeatMap) -> Element:
    """Draw the bytes of regions (downwards) by subpartition (to the right): the more, the lighter. The scale
    is that of square roots, so that one large subpartition leaves the others visible. ``name``: as above."""
    cells = heat.means
    with drawing(_TEXT, "none") as figure_of:
        from matplotlib.colors import PowerNorm

        figure = figure_of(figsize=(_WIDTH, 1.0 + min(3.0, 0.1 * len(cells) + 0.5)))
        axes = figure.subplots()
        shown = axes.imshow(
            cells,
            aspect="auto",
            interpolation="nearest",
            extent=(0, heat.subpartitions, heat.regions, 0),
            norm=PowerNorm(0.5, vmin=0, vmax=max(1.0, cells.max())),
        )
        axes.set_xlabel("subpartition")
        axes.set_ylabel("region")
        _mark_numbers(axes.xaxis, heat.subpartitions)
        _mark_numbers(axes.yaxis, heat.regions)
        bar = figure.colorbar(shown, ax=axes, pad=0.01, label="bytes of a region")
        _mark_sizes(bar.ax.yaxis, int(cells.max()))
        return _svg(figure, name)


def _mark_numbers(axis: Any, count: int) -> None:
    """Put ticks in the middle of numbers from 0 up to ``count``."""
    step = max(1, math.ceil(count / _MOST_NUMBERS))
    step = next(
        each * unit
        for unit in (10**power for power in range(19))
        for each in (1, 2, 5)
        if each * unit >= step
    )
    numbers = range(0, count, step)
    axis.set_ticks([number + 0.5 for number in numbers], [str(number) for number in numbers])


_MOST_NUMBERS = 12  # ticks


def longest(stages: Sequence[SparkStage]) -> list[SparkStage]:
    """Return the stages that a timeline has room for, the longest, in the order in which they began."""
    kept = sorted(stages, key=lambda stage: stage.begin - stage.end)[:MOST_STAGES]
    return [stage for stage in stages if stage in kept]


def timeline_plot(name: str, run: ApplicationRun) -> Element:
    """Draw when each stage ran, the first at the top. ``name``: as above."""
    shown = longest(run.stages)
    places = range(len(shown))
    with drawing(_TEXT, "none") as figure_of:
        figure = figure_of(figsize=(_WIDTH, 0.8 + 0.18 * len(shown)))
        axes = figure.subplots()
        axes.barh(
            places,
            [stage.end - stage.begin for stage in shown],
            left=[stage.begin for stage in shown],
            color=[ACCENT if stage.is_own else OTHER for stage in shown],
        )
        axes.set_yticks(places, [stage.label for stage in shown])
        axes.invert_yaxis()
        axes.set_xlim(left=0)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_ylabel("stage")
        axes.set_xlabel(
            "seconds after the application began; green: stages that write exchanges of frames and RDDs"
        )
        return _svg(figure, name)


def steps_plot(name: str, steps: Sequence[tuple[str, float]]) -> Element:
    """Draw the seconds of each step, the longest at the top. ``name``: as above."""
    places = range(len(steps))
    with drawing(_TEXT, "none") as figure_of:
        figure = figure_of(figsize=(_WIDTH, 0.6 + 0.18 * len(steps)))
        axes = figure.subplots()
        axes.barh(places, [seconds for _, seconds in steps], color=ACCENT)
        axes.set_yticks(places, [step for step, _ in steps])
        axes.invert_yaxis()
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_xlabel("seconds, the sum over all tasks and their threads")
        return _svg(figure, name)


def _mark_sizes(axis: Any, most: int) -> None:
    """Put ticks at round sizes from 0 up to ``most`` bytes."""
    unit = KIB ** max(0, int(math.log(max(most, 1), KIB)))
    step = next(each for each in _STEPS if most <= _MOST_TICKS * each * unit) * unit
    ticks = range(0, most + 1, step)
    axis.set_ticks(list(ticks), [f"{tick // unit} {format_size(unit).split()[1]}" for tick in ticks])


_STEPS = (1, 2, 5, 10, 20, 50, 100, 200, 500)  # of a unit, of which an axis has less than 1024
_MOST_TICKS = 5


@contextmanager
def drawing(text: str, background: str) -> Iterator[Any]:
    """Give the class of figures. Those made, drawn and saved within the block have this package's style.
    ``text``, ``background``: colours. Raises `UnsupportedError` without matplotlib."""
    mpl, new_figure = _matplotlib()
    settings: Any = {
        "svg.fonttype": "none",  # text stays text: it is found, and read aloud
        "svg.hashsalt": "sortshuffle",
        "font.family": "sans-serif",
        "font.size": 9,
        **dict.fromkeys(_TEXTS, text),
        **dict.fromkeys(_BACKGROUNDS, background),
    }
    with mpl.rc_context():
        # whatever the user has set for pictures of his own; the backend is not used, and setting it loads it
        defaults: Any = mpl.rcParamsDefault
        mpl.rcParams.update({key: value for key, value in defaults.items() if key not in _BACKEND})
        mpl.rcParams.update(settings)
        yield lambda **size: new_figure(layout="constrained", **size)


def check_can_draw() -> None:
    """Raise `UnsupportedError` if matplotlib is missing, or does not start."""
    _matplotlib()


def _matplotlib() -> tuple[Any, Any]:
    """Return matplotlib and its class of figures. Raises `UnsupportedError` if there is none."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except Exception as error:  # also of its settings, such as an unknown MPLBACKEND
        if isinstance(error, ModuleNotFoundError) and error.name == "matplotlib":
            raise UnsupportedError(MISSING) from None
        raise UnsupportedError(
            f"matplotlib, which draws a report's pictures, does not start: {error}"
        ) from error
    return mpl, Figure


def _svg(figure: Any, name: str) -> Element:
    """Return the picture as an element of a page, without names of namespaces. Its identifiers begin with
    ``name``, because those of a page must be unique."""
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg", metadata={"Date": None})
    text = drawn.getvalue().replace(_TEXT, "currentColor")
    tree = fromstring(re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", text))
    for element in tree.iter():
        element.tag = _local(element.tag)
        for name in [name for name in element.attrib if name.startswith("{")]:
            element.set(_local(name), element.attrib.pop(name))
    for metadata in tree.findall("metadata"):
        tree.remove(metadata)
    for size in ("width", "height"):
        tree.attrib.pop(size, None)  # as large as the page is wide
    tree.set("aria-hidden", "true")  # the figure's label and the tables say it in words
    return tree


def _local(name: str) -> str:
    return name.rpartition("}")[2]
