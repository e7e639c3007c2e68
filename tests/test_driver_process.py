"""The client of drivers, with small programs in place of Spark: answers, errors; each end wakes who waits."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import TimeoutError as FutureTimeoutError
from pathlib import Path

import driver_process
import process_group
import psutil
import pytest
from driver_process import DriverProcess, JobError
from engine import eventually

PATIENCE = 30.0  # seconds
ECHO = """
import json, sys
print(json.dumps({"application": "app-1"}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    answer = {"error": "no"} if asked["what"] == "fail" else {"value": asked["what"]}
    print(json.dumps({"id": asked["id"], **answer}), flush=True)
"""

Start = Callable[[str], DriverProcess]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    drivers: list[DriverProcess] = []

    def started(program: str) -> DriverProcess:
        drivers.append(DriverProcess([sys.executable, "-c", program], tmp_path / "log", {}))
        return drivers[-1]

    yield started
    for each in drivers:
        each.kill()


def test_each_request_gets_its_answer(start: Start) -> None:
    driver = start(ECHO)
    assert driver.started() == "app-1"
    answers = [driver.request(what=word) for word in ("one", "fail", "two")]
    assert answers[2].result(PATIENCE) == "two"
    assert answers[0].result(PATIENCE) == "one"
    with pytest.raises(JobError, match="no"):
        answers[1].result(PATIENCE)
    driver.stop()
    with pytest.raises(JobError, match="the driver has ended"):
        driver.request(what="three")


@pytest.mark.parametrize(
    ("program", "says"),
    [("raise SystemExit(3)", "has ended"), ("print('what?')", "cannot be read: JSONDecode")],
)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_whoever_waits_hears_of_its_end(start: Start, tmp_path: Path, program: str, says: str) -> None:
    driver = start(program)
    with pytest.raises(JobError, match=says) as caught:
        driver.started()
    assert str(tmp_path / "log") in str(caught.value)


def test_a_driver_that_does_not_start_is_killed(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_process, "START_PATIENCE", 0.1)
    driver = start("import sys; sys.stdin.read()")
    with pytest.raises(FutureTimeoutError):
        driver.started()
    assert not psutil.pid_exists(driver.pid)


def test_what_a_driver_has_not_read_is_not_in_the_way_of_its_end(start: Start) -> None:
    driver = start("import os; os.close(0); import time; time.sleep(60)")
    eventually(lambda: refuses(driver), "nobody reads what it is asked")
    driver.kill()
    assert driver._process.stdout is not None
    assert driver._process.stdout.closed


def refuses(driver: DriverProcess) -> bool:
    try:
        driver.request(what="one")
    except JobError:
        return True
    return False


def test_what_a_driver_leaves_running_is_killed_with_it(start: Start) -> None:
    """It would hold what the driver writes to."""
    driver = start(
        "import subprocess; print(subprocess.Popen(['sleep', '60']).pid, file=open('/dev/stderr', 'w'))"
    )
    driver._process.wait(PATIENCE)
    left = int(driver.log.read_text())
    assert psutil.pid_exists(left)
    driver.kill()
    eventually(lambda: not psutil.pid_exists(left), "its child has ended")


def test_what_ends_after_a_driver_that_is_stopped_may_end_by_itself(start: Start, tmp_path: Path) -> None:
    """As its JVM does, which removes Spark's directories then. It has another standard output."""
    lasting = f"import os; os.read(0, 1); os.system('sleep 0.2; echo done > {tmp_path / 'end'}')"
    child = (
        f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {lasting!r}], stdin=-1, stdout=2);"
    )
    driver = start(child + ECHO)
    driver.started()
    driver.stop()
    assert (tmp_path / "end").read_text() == "done\n"


def test_one_that_has_been_killed_is_not_killed_again(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process may have its number by then."""
    driver = start(ECHO)
    driver.started()
    driver.stop()
    killed: list[int] = []
    monkeypatch.setattr(driver_process.os, "killpg", lambda group, number: killed.append(group))
    driver.kill()
    assert killed == []


def test_what_has_left_the_group_and_holds_the_output_is_told_of(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_process, "LISTENER_PATIENCE", 0.2)
    child = "import subprocess; p = subprocess.Popen(['sleep', '60'], start_new_session=True);"
    driver = start(child + "import os; print(p.pid, file=open('/dev/stderr', 'w'));" + ECHO)
    driver.started()
    left = psutil.Process(int(driver.log.read_text()))
    with pytest.warns(UserWarning, match=f"the driver has left holds its output; its log: {driver.log}"):
        driver.stop()
    left.kill()
    driver._listener.join(PATIENCE)
    assert not driver._listener.is_alive()
    driver_process._close(driver._process.stdout)


def test_a_stop_that_takes_too_long_is_an_error(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_process, "STOP_PATIENCE", 1.0)
    driver = start("import subprocess; subprocess.Popen(['sleep', '60']);" + ECHO)
    driver.started()
    with pytest.raises(subprocess.TimeoutExpired):
        driver.stop()
    eventually(lambda: not process_group.runs(driver.pid), "what the driver has left is killed")
