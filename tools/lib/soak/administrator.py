"""The services that an administrator runs: one on each host, for all applications of the soak. One that is
killed is started again at once, as systemd would."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from cluster import Cluster

START_PATIENCE = 30.0  # seconds
POLL_SECONDS = 0.05
PORT = 7448
MEMORY = 64 << 20  # bytes that a service may read into


class Administrator:
    """``directory``: what is served. Nothing runs before `start`."""

    def __init__(self, cluster: Cluster, directory: Path, logs: Path) -> None:
        self.directory = directory
        self._cluster = cluster
        self._logs = logs
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, hosts: tuple[str, ...]) -> None:
        self.directory.mkdir(exist_ok=True)
        for host in hosts:
            service = self._running.get(host)
            if service is None or service.poll() is not None:
                self._start(host)

    def kill(self, host: str) -> bool:
        service = self._running.pop(host, None)
        if service is None:
            return False
        service.kill()
        service.wait()
        self._start(host)
        return True

    def stop(self) -> None:
        for service in self._running.values():
            service.terminate()
        for service in self._running.values():
            service.wait()
        self._running.clear()

    def pids(self, host: str | None = None) -> set[int]:
        return {each.pid for at, each in self._running.items() if host in (None, at)}

    def _start(self, host: str) -> None:
        log = self._logs / f"serve-{host}.log"
        size = log.stat().st_size if log.exists() else 0
        command = [str(Path(sys.executable).parent / "sortshuffle"), "serve", str(self.directory)]
        with open(log, "ab") as opened:
            service = subprocess.Popen(
                [
                    *command,
                    *("--host", host, "--port", str(PORT), "--http-port", "0"),
                    *("--memory", f"{MEMORY >> 20}m"),
                ],
                env=self._cluster.host_environment(host),
                stdin=subprocess.DEVNULL,
                stdout=opened,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._running[host] = service
        deadline = time.monotonic() + START_PATIENCE
        while b" at " not in log.read_bytes()[size:]:
            if service.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the service of {host} does not start; its log: {log}")
            time.sleep(POLL_SECONDS)
