"""Over Spark Connect a frame is not shuffled where the server has the manager, whatever a client sets."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

JOB = Path(__file__).parent / "jobs" / "connect_frames.py"
PATIENCE = 180  # seconds; the job takes about 15


@pytest.fixture(scope="module")
def errors() -> dict[str, str]:
    pytest.importorskip("grpc", reason="Spark Connect's packages are not installed: the extra `connect`")
    done = subprocess.run(
        [sys.executable, str(JOB)], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("client_sets", ["nothing", "that the manager is off", "another manager"])
def test_a_frame_is_refused(errors: dict[str, str], client_sets: str) -> None:
    assert errors[client_sets].startswith("UnsupportedError over Spark Connect frames cannot be shuffled")
    assert "start the server without the lines of `sortshuffle conf`" in errors[client_sets]
