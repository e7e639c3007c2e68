"""Where the helpers are that these tests have in common with others."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "cli"))  # where `run_cli` is
