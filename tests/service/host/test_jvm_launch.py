"""What a JVM runs to find the engine of its host, as real processes: one engine however many ask at once; it
comes back when it dies, with its map outputs; all of it is gone soon after the application."""

from __future__ import annotations

import fnmatch
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from consumers import PATIENCE
from engine import ENVIRONMENT, end, eventually, kill, printed, processes_of, running
from jvm_client import GREETING, SHUFFLE, Block, Written, connected

from sortshuffle.errors import ProtocolError, ServiceUnavailableError, UsageError
from sortshuffle.homes.shared_home import make_stored_home
from sortshuffle.service.client.client import ServiceClients
from sortshuffle.service.client.client_settings import ClientSettings
from sortshuffle.service.host import jvm_launch as launch
from sortshuffle.service.host import rendezvous
from sortshuffle.service.host.jvm_launch import FAILED, LaunchRequest
from sortshuffle.service.host.registration import ApplicationPhase
from sortshuffle.service.wire.protocol import MapOutputAddress

LAUNCH = (sys.executable, "-m", "sortshuffle.service.host.jvm_launch")
LAUNCHERS = 8
# a launcher that waits for the engine for one second only
IMPATIENT = (
    sys.executable,
    "-c",
    "import sys\n"
    "from sortshuffle.service.host import jvm_launch as launch\n"
    "launch.GREETING_TIMEOUT = 1.0\n"
    "sys.exit(launch.main())",
)
SECRET = "5ec2e7" * 8
TOKEN = "5e" * 16
BOUND = 30.0  # seconds within which all must be gone after the application's end


@dataclass
class Launcher:
    """Starts launchers, for JVMs that are `sleep`. What they start meets below ``temporary``."""

    temporary: Path
    stack: ExitStack
    found: list[dict[str, Any]] = field(default_factory=list)
    more_environment: dict[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        own = {"TMPDIR": str(self.temporary), "SPARK_LOCAL_IP": "127.0.0.1"}
        return {**ENVIRONMENT, **own, **self.more_environment}

    def jvm(self) -> subprocess.Popen[str]:
        return self.stack.enter_context(running("sleep", "600"))

    def request(self, jvm: subprocess.Popen[str], *directories: Path, **changed: Any) -> dict[str, Any]:
        return {
            "application": "app-1",
            "token": TOKEN,
            "secret": SECRET,
            "driver": False,
            "driver_host": "127.0.0.1",
            "outlives": False,
            "pid": jvm.pid,
            "local_directories": list(map(str, directories)),
            "settings": {},
            **changed,
        }

    def run(self, asked: object, command: tuple[str, ...] = LAUNCH) -> subprocess.CompletedProcess[str]:
        text = asked if isinstance(asked, str) else json.dumps(asked)
        return subprocess.run(
            command,
            input=text,
            capture_output=True,
            text=True,
            env=self.environment,
            timeout=PATIENCE,
            check=False,
        )

    def launch(self, jvm: subprocess.Popen[str], *directories: Path, **changed: Any) -> dict[str, Any]:
        done = self.run(self.request(jvm, *directories, **changed))
        assert done.returncode == 0, done.stderr
        (line,) = done.stdout.splitlines()
        found: dict[str, Any] = json.loads(line)
        assert set(found) == {"socket", "host", "port"}
        return found

    def processes(self, module: str) -> list[int]:
        """Of this module, started for something below ``temporary``."""
        found = processes_of(f"service.host.{module}").items()
        return [pid for pid, words in found if any(each.startswith(str(self.temporary)) for each in words)]

    def supervisor(self) -> int:
        (pid,) = self.processes("supervisor")
        return pid

    def engine(self) -> int:
        eventually(lambda: len(self.processes("process")) == 1, "the engine runs")
        return self.processes("process")[0]

    def end(self) -> None:
        """Everything that was started is gone."""
        for pid in self.processes("supervisor"):
            kill(pid)
        eventually(
            lambda: not self.processes("supervisor") and not self.processes("process"), "all have ended"
        )


@pytest.fixture
def launcher(short_path: Path) -> Iterator[Launcher]:
    with ExitStack() as stack:
        made = Launcher(short_path, stack)
        try:
            yield made
        finally:
            made.end()


@pytest.fixture
def blocks(tmp_path: Path) -> Path:
    """One of Spark's directories: what Spark makes for the application, and in it the executor's."""
    made = tmp_path / "above" / "blockmgr-1"
    made.mkdir(parents=True)
    return made


def write(path: str, map_id: int = 7, data: bytes = b"record") -> Written:
    with connected(path) as client:
        return client.write([[(1, data)]], map_id)


def read(where: dict[str, Any], done: Written, map_id: int = 7) -> bytes:
    with connected(where["socket"]) as client:
        services = [f"{where['host']}:{where['port']}"]
        answer = client.read([Block(map_id, 0, 1, 2, done.file_id)], services)
        assert answer.totals[1] == 1, f"read here: {answer}"
        return answer.data


def map_outputs(root: Path) -> list[str]:
    """Also while directories are deleted, as `Path.rglob` cannot."""
    return sorted(
        str(Path(directory, name).relative_to(root))
        for directory, _, names in os.walk(root)
        for name in fnmatch.filter(names, "exchange-*")
    )


# Starting


def test_the_engine_that_it_starts_writes_and_reads_and_serves_other_hosts(
    launcher: Launcher, blocks: Path
) -> None:
    where = launcher.launch(launcher.jvm(), blocks)  # which waits for the ends of the launcher's pipes
    assert where["host"] == "127.0.0.1"
    assert os.path.dirname(os.path.dirname(where["socket"])) == str(launcher.temporary)
    assert os.stat(where["socket"]).st_mode & 0o777 == 0o600
    done = write(where["socket"])
    assert read(where, done) == b"record"

    (data, index) = map_outputs(blocks)
    assert data.endswith(f"{TOKEN}/exchange-{SHUFFLE}-map-0-attempt-7.data")
    clients = ServiceClients(ClientSettings(bytes.fromhex(SECRET), timeout=PATIENCE))
    try:
        client = clients.client(f"{where['host']}:{where['port']}")
        served = client.index(MapOutputAddress("app-1", SHUFFLE, 0, 7, done.file_id), "127.0.0.1")
        assert served == (blocks / index).read_bytes()
    finally:
        clients.close()

    texts = [path.read_bytes() for path in launcher.temporary.rglob("*") if path.is_file()]
    for pid in (launcher.engine(), launcher.supervisor()):
        texts += [Path(f"/proc/{pid}/{what}").read_bytes() for what in ("cmdline", "environ")]
    secret = (SECRET.encode(), bytes.fromhex(SECRET))
    assert not any(each in text for text in texts for each in secret), "nobody else learns the secret"


def test_of_many_that_ask_at_once_one_starts_it(launcher: Launcher, blocks: Path) -> None:
    jvms = [launcher.jvm() for _ in range(LAUNCHERS)]
    asked = [json.dumps(launcher.request(jvm, blocks)) for jvm in jvms]
    pipe = subprocess.PIPE
    started = [
        subprocess.Popen(LAUNCH, stdin=pipe, stdout=pipe, text=True, env=launcher.environment) for _ in jvms
    ]
    answers = []
    for each, text in zip(started, asked, strict=True):
        assert each.stdin is not None
        each.stdin.write(text)
        each.stdin.close()
        each.stdin = None
    for each in started:
        answers.append(each.communicate(timeout=PATIENCE)[0])
    assert [each.returncode for each in started] == [0] * LAUNCHERS
    assert len(set(answers)) == 1
    assert len(launcher.processes("supervisor")) == 1
    launcher.engine()
    directory = rendezvous_of(launcher)
    assert {each.owner.pid for each in rendezvous.registrations(directory)} == {jvm.pid for jvm in jvms}


def rendezvous_of(launcher: Launcher) -> str:
    (own,) = launcher.temporary.iterdir()
    (found,) = [path for path in own.iterdir() if path.is_dir()]
    return str(found)


def test_whoever_asks_again_finds_the_same(launcher: Launcher, blocks: Path, tmp_path: Path) -> None:
    jvm = launcher.jvm()
    where = launcher.launch(jvm, blocks)
    supervisor, engine = launcher.supervisor(), launcher.engine()
    done = write(where["socket"])
    assert launcher.launch(jvm, blocks) == where
    other = tmp_path / "other" / "blockmgr-2"
    other.mkdir(parents=True)
    assert launcher.launch(launcher.jvm(), other) == where
    assert (launcher.supervisor(), launcher.engine()) == (supervisor, engine)
    assert read(where, done) == b"record"
    for map_id in (10, 11):
        write(where["socket"], map_id)
    assert len(map_outputs(blocks)) == 4
    assert len(map_outputs(other)) == 2, "directories that came later are used, too"


def test_what_lies_at_a_url_goes_with_the_driver(launcher: Launcher, tmp_path: Path) -> None:
    """Two applications: of one there is only an executor here, of the other the driver, too."""
    names = ["executor", "driver"]
    url = f"file://{tmp_path}/mounted"
    jvms = []
    for name in names:
        blocks = tmp_path / name / "above" / "blockmgr-1"
        blocks.mkdir(parents=True)
        asked: dict[str, Any] = {"application": name, "settings": {"spark.sortshuffle.dir": url}}
        jvms.append(launcher.jvm())
        where = launcher.launch(jvms[-1], blocks, outlives=True, **asked)
        with connected(where["socket"]) as client:
            client.begin()
            assert "Mount the same storage" in client.refusal()[1], "the driver has made no directory there"
        if name == "driver":
            jvms.append(launcher.jvm())
            assert launcher.launch(jvms[-1], blocks, driver=True, **asked) == where
        else:  # the driver's host is another one
            make_stored_home(f"{url}/{name}-{TOKEN}")
        write(where["socket"])
        assert map_outputs(tmp_path / name) == []
    of_each = {
        name: [f"{name}-{TOKEN}/exchange-{SHUFFLE}-map-0-attempt-7.{kind}" for kind in ("data", "index")]
        for name in names
    }
    mounted = tmp_path / "mounted"
    assert map_outputs(mounted) == of_each["driver"] + of_each["executor"]
    for jvm in jvms:
        end(jvm)
    eventually(lambda: launcher.processes("supervisor") == [], "the services have ended", BOUND)
    eventually(lambda: map_outputs(mounted) == of_each["executor"], "others may still read there", BOUND)


# Dying


def test_an_engine_that_is_killed_comes_back_on_the_same_socket_with_its_map_outputs(
    launcher: Launcher, blocks: Path
) -> None:
    jvm = launcher.jvm()
    where = launcher.launch(jvm, blocks)
    done = write(where["socket"])
    engine = launcher.engine()
    unfinished = connected(where["socket"])
    unfinished.begin(map_id=8)
    unfinished.frame([(0, b"x")])
    eventually(lambda: len(map_outputs(blocks)) == 4, "it is being written")
    kill(engine)
    with pytest.raises((EOFError, ConnectionError)):
        unfinished.finish()
    unfinished.close()
    assert read(where, done) == b"record"
    again = write(where["socket"], 9)
    assert read(where, again, 9) == b"record"
    assert launcher.engine() != engine
    assert launcher.launch(jvm, blocks) == where

    supervisor = launcher.supervisor()
    kill(supervisor)
    eventually(lambda: launcher.processes("process") == [], "the engine ends with its supervisor")
    assert launcher.launch(jvm, blocks) == where
    assert launcher.supervisor() != supervisor
    assert read(where, done) == b"record"
    assert read(where, again, 9) == b"record"
    write(where["socket"], 10)
    eventually(lambda: len(map_outputs(blocks)) == 6, "what was left unfinished is swept")
    assert not any("attempt-8" in name for name in map_outputs(blocks))


HOMES = {"local": "above/blockmgr-1", "over": "above", "waiting": "above", "kept": "dir"}
"""Where the map outputs of each application lie, below its own directory."""


def test_all_is_gone_soon_after_the_application(launcher: Launcher, tmp_path: Path) -> None:
    """Four applications whose JVMs end at once: one whose engine goes with its executor; one whose engine
    outlives it, and whose directories Spark removes; one of which there is no sign that it is over; and one
    that keeps its map outputs."""
    names = ["local", "over", "waiting", "kept"]
    blocks = {name: tmp_path / name / "above" / "blockmgr-1" for name in names}
    jvms = {name: launcher.jvm() for name in names}
    changed: dict[str, dict[str, Any]] = {
        "local": {},
        "over": {"outlives": True},
        "waiting": {"outlives": True},
        "kept": {
            "settings": {
                "spark.sortshuffle.dir": str(tmp_path / "kept" / "dir"),
                "spark.sortshuffle.keep": "true",
            }
        },
    }
    found, done = {}, {}
    for name in names:
        blocks[name].mkdir(parents=True)
        found[name] = launcher.launch(jvms[name], blocks[name], application=name, **changed[name])
        done[name] = write(found[name]["socket"])
        home = tmp_path / name / HOMES[name] / "sortshuffle" / name
        assert len(map_outputs(home)) == len(map_outputs(tmp_path / name)) == 2
    assert len(launcher.processes("supervisor")) == 4
    waiting = [pid for pid in launcher.processes("process") if "waiting-127" in command(pid)]

    for name in names:
        end(jvms[name])
    for name in ("over", "waiting"):
        blocks[name].rmdir()  # as an executor does at its end
    (tmp_path / "over" / "above" / "sortshuffle").rename(tmp_path / "over" / "moved")
    (tmp_path / "over" / "above").rmdir()  # as Spark does at the application's end
    (tmp_path / "over" / "moved").rename(tmp_path / "over" / "sortshuffle")

    eventually(lambda: launcher.processes("process") == waiting, "the others' processes are gone", BOUND)
    eventually(lambda: len(launcher.processes("supervisor")) == 1, "their supervisors, too", BOUND)
    for name in ("local", "over", "kept"):
        assert not os.path.exists(found[name]["socket"])
        eventually(lambda name=name: not accepts(found[name]["port"]), "nobody listens any more")
    assert map_outputs(tmp_path / "local") == []
    assert not (blocks["local"] / "sortshuffle").exists()
    assert len(map_outputs(tmp_path / "kept")) == 2

    assert len(map_outputs(tmp_path / "waiting")) == 2
    assert read(found["waiting"], done["waiting"]) == b"record"
    assert rendezvous.forget_ended(rendezvous_of(launcher)) is ApplicationPhase.WAITING
    for path in sorted((tmp_path / "waiting" / "above").rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    (tmp_path / "waiting" / "above").rmdir()
    eventually(lambda: launcher.processes("process") == [], "it is gone, too", BOUND)
    eventually(lambda: list(launcher.temporary.iterdir()) == [], "nothing is left", BOUND)


def test_all_is_gone_soon_after_a_driver_that_the_last_executor_knew(
    launcher: Launcher, blocks: Path
) -> None:
    """Spark's directories stay, and the driver never asked for an engine here."""
    driver, jvm = launcher.jvm(), launcher.jvm()
    where = launcher.launch(jvm, blocks, outlives=True, driver_pid=driver.pid)
    write(where["socket"])
    end(jvm)
    assert rendezvous.forget_ended(rendezvous_of(launcher)) is ApplicationPhase.WAITING
    end(driver)
    eventually(lambda: list(launcher.temporary.iterdir()) == [], "nothing is left", BOUND)
    eventually(lambda: launcher.processes("process") == launcher.processes("supervisor") == [], "all end")
    assert map_outputs(blocks.parent) == []


def accepts(port: int) -> bool:
    with socket.socket() as client:
        client.settimeout(PATIENCE)
        return client.connect_ex(("127.0.0.1", port)) == 0


def command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()


# Options


def test_options_of_the_engine_arrive(launcher: Launcher, tmp_path: Path) -> None:
    directories = [tmp_path / name for name in "ab"]
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef\n")
    secret.chmod(0o600)
    settings = {
        "spark.sortshuffle.codec": "none",
        "spark.sortshuffle.dir": ",".join(map(str, directories)),
        "spark.sortshuffle.manager.memory": "16m",
        "spark.sortshuffle.service.secret.file": str(secret),
    }
    where = launcher.launch(launcher.jvm(), settings=settings)
    assert launcher.launch(launcher.jvm(), settings=settings) == where
    with connected(where["socket"]) as client:
        done = client.write([[(0, bytes(4 << 20))] for _ in range(8)], map_id=2)
        client.write([], map_id=3)
    assert done.spills > 0
    assert sum(done.sizes) > 32 << 20
    assert [len(map_outputs(each)) for each in directories] == [2, 2]

    clients = ServiceClients(ClientSettings(b"0123456789abcdef", timeout=PATIENCE))
    try:
        client = clients.client(f"{where['host']}:{where['port']}")
        assert client.index(MapOutputAddress("app-1", SHUFFLE, 0, 2, done.file_id), "127.0.0.1") != b""
    finally:
        clients.close()
    secret.chmod(0o644)
    refused = launcher.run(launcher.request(launcher.jvm(), settings=settings))
    assert (refused.returncode, "others may read it" in refused.stderr.splitlines()[-1]) == (FAILED, True)


# What is wrong


def test_what_it_cannot_do_is_told_in_its_last_line(launcher: Launcher, blocks: Path) -> None:
    jvm = launcher.jvm()
    stranger = launcher.temporary / f"sortshuffle-{os.geteuid()}"
    stranger.mkdir()
    stranger.chmod(0o755)
    asked: dict[str, object] = {
        "in a way that it does not know": "{",
        "'application'": {},
        "did you mean spark.sortshuffle.codec": launcher.request(
            jvm, blocks, settings={"spark.sortshuffle.codecs": "x"}
        ),
        "is not a directory of user": launcher.request(jvm, blocks),
    }
    for words, text in asked.items():
        done = launcher.run(text)
        last = done.stderr.splitlines()[-1]
        assert (done.returncode, done.stdout, words.lower() in last.lower()) == (FAILED, "", True), (
            done.stderr
        )
        assert "Traceback" not in done.stderr
    assert launcher.processes("supervisor") == []


def test_an_engine_that_cannot_come_up_is_an_error_with_the_end_of_its_log(
    launcher: Launcher, blocks: Path, tmp_path: Path
) -> None:
    """The supervisor starts it again and again, and holds its socket meanwhile."""
    (tmp_path / "pyarrow.py").write_text("raise ImportError('this pyarrow is broken')")
    paths = (str(tmp_path), ENVIRONMENT.get("PYTHONPATH", ""))
    launcher.more_environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    request = launcher.request(launcher.jvm(), blocks)

    def says_why() -> bool:
        done = launcher.run(request, IMPATIENT)
        last = done.stderr.splitlines()[-1]
        assert (done.returncode, done.stdout, "has not answered on" in last) == (FAILED, "", True), (
            done.stderr
        )
        return "ImportError: this pyarrow is broken; " in last and "exit status 1" in last

    eventually(says_why, "the launcher tells why the engine ends")  # it may not have ended a second ago
    del launcher.more_environment["PYTHONPATH"]
    assert len(launcher.processes("supervisor")) == 1


def answering(path: Path, *answers: bytes) -> threading.Thread:
    """A listener on a Unix socket that gives each connection the next answer and closes it."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(path))
    listening.listen()

    def run() -> None:
        with listening:
            for answer in answers:
                accepted, _ = listening.accept()
                with accepted:
                    accepted.recv(16)
                    accepted.sendall(answer)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_an_engine_that_ends_while_it_is_greeted_is_greeted_again(short_path: Path) -> None:
    thread = answering(short_path / "socket", b"", GREETING[:7], GREETING)
    launch._wait_until_up(str(short_path / "socket"), str(short_path))
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_an_engine_of_another_release_is_an_error_at_once(short_path: Path) -> None:
    thread = answering(short_path / "socket", GREETING.replace(b"\4", b"\1"))
    with pytest.raises(ProtocolError, match="version 1"):
        launch._wait_until_up(str(short_path / "socket"), str(short_path))
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_the_launcher_does_not_import_numpy(short_path: Path) -> None:
    """It takes 0.1 s, for which the first shuffle of each JVM waits."""
    thread = answering(short_path / "socket", GREETING)
    program = (
        "import sys\nfrom sortshuffle.service.host import jvm_launch as launch\n"
        "launch._wait_until_up(sys.argv[1], sys.argv[2])\nprint('numpy' in sys.modules)"
    )
    assert printed(program, str(short_path / "socket"), str(short_path)) == ["False"]
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_an_engine_without_a_log_is_an_error_too(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "GREETING_TIMEOUT", 0.1)
    with pytest.raises(ServiceUnavailableError, match=r"0\.1 s.*No such file.*service\.log"):
        launch._wait_until_up(str(short_path / "socket"), str(short_path))


def test_where_the_temporary_directory_has_a_long_name_the_socket_is_elsewhere(
    launcher: Launcher, blocks: Path
) -> None:
    launcher.temporary /= "t" * 80
    launcher.temporary.mkdir()
    where = launcher.launch(launcher.jvm(), blocks)
    assert os.path.dirname(where["socket"]) == f"/tmp/sortshuffle-{os.geteuid()}"
    done = write(where["socket"])
    assert read(where, done) == b"record"


def sound() -> dict[str, Any]:
    return {
        "application": "app-1",
        "token": TOKEN,
        "secret": SECRET,
        "driver": False,
        "driver_host": "",
        "outlives": True,
        "pid": 17,
        "local_directories": ["/a/blockmgr-1", "/b/blockmgr-2", "/b/blockmgr-3"],
        "settings": {"spark.sortshuffle.codec": "zstd", "spark.app.name": "x"},
    }


def test_a_sound_request_is_understood() -> None:
    request = LaunchRequest.unpack(json.dumps(sound()))
    assert (request.application, request.token, request.pid) == ("app-1", TOKEN, 17)
    assert (request.secret, request.driver_host, request.outlives) == (bytes.fromhex(SECRET), "", True)
    assert request.local_directories == ("/a/blockmgr-1", "/b/blockmgr-2", "/b/blockmgr-3")
    assert (request.options.codec, request.driver) == ("zstd", False)
    assert request.roots() == ("/a", "/b")
    assert request.driver_pid == 0
    assert LaunchRequest.unpack(json.dumps({**sound(), "driver_pid": 18})).driver_pid == 18
    assert LaunchRequest.unpack(json.dumps({**sound(), "outlives": False})).roots() == (
        "/a/blockmgr-1",
        "/b/blockmgr-2",
        "/b/blockmgr-3",
    )


WRONG: dict[str, Callable[[dict[str, Any]], object]] = {
    **{f"no {key}": (lambda asked, key=key: asked.pop(key)) for key in sound()},
    "no object": lambda asked: None,
    "a token that is no hex": lambda asked: asked.update(token="xyz"),
    "an odd token": lambda asked: asked.update(token="abc"),
    "no token at all": lambda asked: asked.update(token=""),
    "a token of another length": lambda asked: asked.update(token="5e" * 15),
    "a token that is a number": lambda asked: asked.update(token=5),
    "a secret that is no hex": lambda asked: asked.update(secret="secret"),
    "no secret at all": lambda asked: asked.update(secret=""),
    "a pid that is none": lambda asked: asked.update(pid="jvm"),
    "a pid that is null": lambda asked: asked.update(pid=None),
    "a driver's pid that is none": lambda asked: asked.update(driver_pid="jvm"),
    "directories that are a text": lambda asked: asked.update(local_directories="/a"),
    "directories that are null": lambda asked: asked.update(local_directories=None),
    "nowhere to write": lambda asked: asked.update(local_directories=[]),
    "settings that are a list": lambda asked: asked.update(settings=["x"]),
    "a setting that is no text": lambda asked: asked.update(settings={"spark.sortshuffle.codec": 5}),
    "a setting that there is not": lambda asked: asked.update(settings={"spark.sortshuffle.cod": "x"}),
    "a value that is not allowed": lambda asked: asked.update(settings={"spark.sortshuffle.codec": "x"}),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_request_that_is_not_as_documented_is_refused(case: str) -> None:
    asked: Any = sound()
    WRONG[case](asked)
    with pytest.raises(UsageError):
        LaunchRequest.unpack(json.dumps([] if case == "no object" else asked))


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("s4://bucket/x", "fsspec knows no storage s4://"),
        ("memory://x", "no other process sees that"),
        ("https://host/x", "nothing can be written there"),
    ],
)
def test_storage_that_is_none_is_refused(launcher: Launcher, blocks: Path, url: str, why: str) -> None:
    done = launcher.run(launcher.request(launcher.jvm(), blocks, settings={"spark.sortshuffle.dir": url}))
    assert (done.returncode, launcher.processes("supervisor")) == (FAILED, [])
    assert f"spark.sortshuffle.dir is {url}, and {why}" in done.stderr.splitlines()[-1]
