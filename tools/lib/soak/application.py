"""A driver as the soak sees it: a process that is asked to run jobs, and is watched meanwhile."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from driver_process import DriverProcess

ASK_PATIENCE = 60.0  # seconds until a question is answered; takes milliseconds
STOP_PATIENCE = 90.0  # seconds; Spark may wait 60 s for the removal of what is at a URL


class Driver(DriverProcess):
    """It has started. ``environment``: of its process. ``is_ours``: whether its jobs use this package."""

    def __init__(
        self, log: Path, settings: Mapping[str, str], environment: Mapping[str, str], is_ours: bool
    ) -> None:
        chosen = json.dumps({"settings": dict(settings), "ours": is_ours})
        super().__init__([sys.executable, "-m", "soak.driver", chosen], log, environment)
        self.id = self.started()

    def start(self, work: str, shape: str, settings: Mapping[str, str] = {}) -> Future[Any]:
        """Ask for a job."""
        return self.request(work=work, shape=shape, settings=dict(settings))

    def ask(self, what: str) -> Any:
        return self.request(ask=what).result(ASK_PATIENCE)
