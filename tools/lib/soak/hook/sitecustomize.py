"""Python imports this when it starts: SIGUSR2 makes it write the stacks of its threads to standard error."""

from __future__ import annotations

import faulthandler
import signal

faulthandler.register(signal.SIGUSR2, all_threads=True)
