"""`DriverProcess`: a driver in a process of its own that answers by lines, and its end."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from pathlib import Path


class DriverProcess:
    """``log``: what the driver says. A class below starts process and listener, which reads the answers."""

    log: Path
    _process: subprocess.Popen[str]
    _listener: threading.Thread

    def stop(self) -> None:
        """End the application as its user would."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(60) == 0, f"its log: {self.log}"
        self._close()

    def kill(self) -> None:
        """End the driver, its JVM included, with SIGKILL."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._close()

    def _close(self) -> None:
        self._listener.join(10)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
