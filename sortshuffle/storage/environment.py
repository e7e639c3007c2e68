"""The environment of our own processes: janitors, supervisors, and what ends a driver's storage."""

from __future__ import annotations

import os

import sortshuffle


def environment() -> dict[str, str]:
    """Of a Python process that imports this package, wherever it was imported from here."""
    package_root = os.path.dirname(os.path.dirname(sortshuffle.__file__))
    path = os.pathsep.join(filter(None, (package_root, os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path}
