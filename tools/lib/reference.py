"""Builds the API reference: HTML pages of what users import, from its docstrings.

python tools/lib/reference.py DIRECTORY
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import pdoc

import sortshuffle

MODULES = (
    "sortshuffle",
    "sortshuffle.engine",
    "sortshuffle.partitioner",
    "sortshuffle.errors",
    "sortshuffle.options",
    "sortshuffle.spark.frame.grouped_frame",
    "sortshuffle.spark.frame.frame_reader",
    "sortshuffle.spark.frame.frame_writer",
)


def build(directory: Path) -> None:
    """Write the pages; the first is ``directory/index.html``."""
    # names of types that are text in the source are shown as they stand there
    warnings.filterwarnings("ignore", "Error parsing type annotation", UserWarning)
    # PySpark's names are imported for type checkers alone, from files that its package lacks
    warnings.filterwarnings("ignore", "Failed to run TYPE_CHECKING code", UserWarning)
    for name in sortshuffle.__all__:  # pdoc sees only what is loaded
        setattr(sortshuffle, name, getattr(sortshuffle, name))
    pdoc.render.configure(footer_text=f"sortshuffle {sortshuffle.__version__}")
    pdoc.pdoc(*MODULES, output_directory=directory)


if __name__ == "__main__":
    build(Path(sys.argv[1]))
