"""What importing the package does."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_another_system_than_linux_is_refused_at_import(system: str) -> None:
    program = f"import sys; sys.platform = {system!r}; import sortshuffle"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    error = ended.stderr.splitlines()[-1]
    assert error.startswith(f"ImportError: sortshuffle runs on Linux, and this is {system}: ")
