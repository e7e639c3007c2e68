"""What has each executor of a `local-cluster` be a host of its own (`one_host_each`), and import the
sortshuffle that the driver imports."""

from __future__ import annotations

import os
from pathlib import Path

import sortshuffle

_PATHS = (Path(__file__).parent / "one_host_each", Path(sortshuffle.__file__).parent.parent)
ONE_HOST_EACH = {"spark.executorEnv.PYTHONPATH": os.pathsep.join(map(str, _PATHS))}
