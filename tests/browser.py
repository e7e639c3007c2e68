"""Pages in a browser, where there is one."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
OPTIONS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--enable-logging=stderr",
    "--v=0",
]


def opened(page: Path, profile: Path, *options: str, query: str = "") -> tuple[str, str]:
    """The document after it was rendered, and what the browser logged. ``profile``: its own directory."""
    if CHROMIUM is None:
        pytest.skip("there is no Chromium")
    found = subprocess.run(
        [CHROMIUM, *OPTIONS, f"--user-data-dir={profile}", *options, "--dump-dom", page.as_uri() + query],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return found.stdout, found.stderr
