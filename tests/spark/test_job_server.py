"""What one job leaves does not reach the next, nor anything of a server its end. Most tests start no JVM."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import job_process
import psutil
import pytest
from job_process import JobServer, job_server, run_job

HERE = str(Path(__file__).parent)
PATIENCE = 30.0  # seconds; what is waited for takes 2
WITHOUT_JVM = f"""
import sys
sys.path[0] = {HERE!r}
import job_server
job_server.SparkContext._ensure_initialized = lambda: None
job_server.PATIENCE = 0.5
job_server.main(*sys.argv[1:])
"""
STARTER = f"""
import sys
sys.path[:0] = {[HERE, str(Path(HERE).parent), str(Path(HERE).parents[1] / "tools" / "lib")]!r}
import job_process
from pathlib import Path
job_process.SERVER = Path(sys.argv[1])
server = job_process.JobServer()
print(server.directory, server._process.pid, flush=True)
server.run(Path(sys.argv[2]), (), 600.0)
"""
HANGS = "import sys, time\nsys.stderr.buffer.write(b'before \\xff\\n')\nsys.stderr.flush()\ntime.sleep(600)\n"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[JobServer]:
    monkeypatch.setattr(job_process, "SERVER", server_without_jvm(tmp_path))
    server = JobServer()
    yield server
    server.end()


def server_without_jvm(directory: Path) -> Path:
    path = directory / "without_jvm.py"
    path.write_text(WITHOUT_JVM)
    return path


def job(directory: Path, code: str) -> Path:
    directory.mkdir(exist_ok=True)
    path = directory / "job.py"
    path.write_text(code)
    return path


def test_each_job_has_the_environment_of_its_moment(
    server: JobServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asks = job(tmp_path, "import os\nprint(os.environ.get('ASKED'))\nos.environ['ASKED'] = 'by a job'")
    told = [server.run(asks, (), PATIENCE)]
    monkeypatch.setenv("ASKED", "now")
    told.append(server.run(asks, (), PATIENCE))
    monkeypatch.delenv("ASKED")
    told.append(server.run(asks, (), PATIENCE))
    assert told == ["None\n", "now\n", "None\n"]


def test_modules_beside_a_job_are_its_own(server: JobServer, tmp_path: Path) -> None:
    code = """
from pyspark import cloudpickle
import beside, json
print(json.dumps([beside.NAME, sorted(cloudpickle.list_registry_pickle_by_value())]))
cloudpickle.register_pickle_by_value(beside)
"""
    told = []
    for name in ("one", "two"):
        asks = job(tmp_path / name, code)
        (tmp_path / name / "beside.py").write_text(f"NAME = {name!r}")
        told.append(server.run(asks, (), PATIENCE))
    assert told == ['["one", []]\n', '["two", []]\n']


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (
            "import threading\nthreading.Thread(target=threading.Event().wait, name='stays').start()",
            r"left threads that run: \['stays'\]",
        ),
        (
            "from pyspark import SparkContext\nSparkContext._active_spark_context = object()",
            "not stopped its SparkContext",
        ),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", "the server has ended"),
    ],
    ids=["a thread", "a context", "no process"],
)
def test_a_job_fails_by_what_it_leaves(server: JobServer, tmp_path: Path, code: str, said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        server.run(job(tmp_path, code), (), PATIENCE)
    assert not server.is_running


def test_a_job_that_hangs_fails_with_what_it_logged(server: JobServer, tmp_path: Path) -> None:
    server.run(job(tmp_path, "pass"), (), PATIENCE)  # it runs
    with pytest.raises(AssertionError, match=r"(?s)before \ufffd.*not ended in 2\.0 seconds"):
        server.run(job(tmp_path, HANGS), (), 2.0)
    assert not server.directory.exists()


def test_a_job_in_a_process_of_its_own_that_hangs_does_so_too(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"(?s)before \ufffd.*not ended in 2\.0 seconds"):
        run_job(job(tmp_path, HANGS), patience=2.0, environment=os.environ)


def test_who_asked_for_a_job_may_be_gone_when_it_ends(server: JobServer, tmp_path: Path) -> None:
    asks = job(tmp_path, "print('ran')")
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(server._address)
        request = json.dumps({"path": str(asks), "arguments": [], "environment": dict(os.environ)})
        connection.sendall(f"{request}\n".encode())
    assert server.run(asks, (), PATIENCE) == "ran\n"


def test_temporary_files_go_with_the_server(server: JobServer, tmp_path: Path) -> None:
    code = "import tempfile\nprint(tempfile.mkdtemp())"
    made = Path(server.run(job(tmp_path, code), (), PATIENCE).strip())
    assert made.is_dir()
    server.end()
    assert not made.exists()


def test_a_server_ends_with_its_starter_although_a_job_hangs(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-c",
        STARTER,
        str(server_without_jvm(tmp_path)),
        str(job(tmp_path / "job", HANGS)),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        directory, pid = starter.stdout.readline().split()
        wait_for(lambda: b"before" in Path(directory, "log").read_bytes())
        starter.kill()
    wait_for(lambda: not (psutil.pid_exists(int(pid)) or os.path.exists(directory)))


def wait_for(condition: Callable[[], Any]) -> None:
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


def test_the_jvm_logs_as_at_first_and_keeps_its_files_with_the_server(tmp_path: Path) -> None:
    """In the server of all files."""
    code = """
import json
from pyspark import SparkContext
java = SparkContext._jvm
root = java.org.apache.logging.log4j.LogManager.getRootLogger()
print(json.dumps([root.getLevel().name(), java.System.getProperty("java.io.tmpdir")]))
java.org.apache.spark.util.Utils.setLogLevel(java.org.apache.logging.log4j.Level.OFF)
"""
    asks = job(tmp_path, code)
    found: list[Any] = [run_job(asks), run_job(asks)]
    assert found == [["WARN", str(job_server().directory)]] * 2
