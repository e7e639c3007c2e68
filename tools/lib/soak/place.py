"""The namespaces in which a soak runs: processes, network and mounts of its own.

So nothing that is broken is the machine's, two soaks do not meet, and when the first process in there ends,
the kernel ends all others. That first process is this module's. It takes over orphans, as the first process
of a system does; nobody else would, and they would be zombies.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from types import FrameType

import click

UNSHARE = ["unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]
AS_ROOT = ["--user", "--map-root-user"]  # for users that are not


def run_inside(arguments: Sequence[str]) -> int:
    """Run ``python -m soak ARGUMENTS --inside DIRECTORY`` in there; its status. The directory goes."""
    command = [*UNSHARE, *([] if os.geteuid() == 0 else AS_ROOT)]
    if subprocess.run([*command, "true"], check=False).returncode:
        raise click.ClickException("tools/soak needs namespaces of its own: run it as root")
    scratch = tempfile.mkdtemp(prefix="soak-")
    inside = subprocess.Popen(
        [*command, "--", sys.executable, "-m", "soak", *arguments, "--inside", scratch],
        start_new_session=True,
    )

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        os.killpg(inside.pid, signal.SIGINT)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
    try:
        return inside.wait()
    finally:
        inside.kill()
        inside.wait()
        shutil.rmtree(scratch, ignore_errors=True)


def become_a_child() -> None:
    """Go on in a child of this process, which is the first of the namespaces; it ends with the child."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        pid, status = os.wait()
        if pid == child:
            os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
