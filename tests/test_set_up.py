"""The set-up of a checkout, `tools/lib/environment.sh`."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from engine import ROOT


def test_an_environment_behind_a_link_is_left_alone(tmp_path: Path) -> None:
    script = tmp_path / "checkout" / "tools" / "lib" / "environment.sh"
    script.parent.mkdir(parents=True)
    shutil.copy(ROOT / "tools" / "lib" / "environment.sh", script)
    other = tmp_path / "environment of another checkout"
    (other / "bin").mkdir(parents=True)
    (tmp_path / "checkout" / ".venv").symlink_to(other)

    made = subprocess.run(
        ["bash", "-c", f"source '{script}'; create_venv"], capture_output=True, text=True, timeout=60
    )

    assert made.returncode == 1
    assert (
        made.stderr == f"{tmp_path}/checkout/.venv is a link. Remove it: each checkout sets up an environment"
        " of its own.\n"
    )
    assert (other / "bin").is_dir()
