"""Rendezvous: where the tasks of an application find the shuffle service of their host, and start it if it
does not run.

    <temporary directory>/sortshuffle-<uid>/<application>-<host>-<digest>/       0700
        lock           held (flock) by whoever starts the service, registers with it, or ends it
        service.json   where it listens, and which process is its supervisor                      0600
        roots/<name>   of each executor: whose process it is, and where its homes are             0600
        status         where the service's status page is                                         0600
        service.log    what supervisor and service have to say
    <temporary directory>/sortshuffle-<uid>/<digest>.socket
                       the Unix socket for the JVMs of this host (`service.jvm`)                  0600
    <temporary directory>/sortshuffle-<uid>/<application>-<host>-<digest>.left
                       why the home at a URL could not be removed, if so

The first producer task on a host makes all that, binds the listening sockets, and starts a supervisor
(`service.host.supervisor`) that holds them and keeps the service running on them: so the port stays the same
however often the service dies, and early clients wait in the backlog. Starting it does not wait for it to be
up.

Rules
* What is looked at and changed together is so under the lock: concurrent producers find one supervisor.
* Whoever ends the service does it under the lock as well, and only if no registered executor is live. The
  lock goes with the directory; whoever gets the lock of a directory that is gone begins anew.
* The shared homes of the application (`homes.shared_home`) go with the rendezvous. So an executor
  that registered one is remembered when it has ended, and keeps the rendezvous while its application may
  live.
* An executor that has ended is remembered while Spark's external shuffle service serves its shuffle files and
  its homes are there. So long it counts as live, until its application's directories are gone: other hosts
  still read its map outputs.
* The home at a URL goes with the driver's rendezvous. So the driver is remembered, and other executors are
  not: their service may end with them.
* An application whose driver has registered here and has ended is over: nobody else brings executors back.
* A supervisor that has died is replaced by the next task that looks, on the same port if it can be had. One
  that is not in service.json, or no longer, ends: nobody finds it.
* A directory that is a link, or not this user's alone, is refused: what is in it decides whom tasks talk to.
* Services with other secrets or certificates meet elsewhere: ``digest``.
* Once a process has found the service, it only looks whether the supervisor still runs: some 20 us.

Standard library only: the supervisor uses it, too.
"""

from __future__ import annotations

import glob
import json
import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from enum import IntEnum

from sortshuffle import calls
from sortshuffle.errors import ServiceUnavailableError, UsageError
from sortshuffle.homes.environment import environment
from sortshuffle.homes.host import is_this_host
from sortshuffle.homes.owner import HOME_ROOT, Owner
from sortshuffle.homes.processes import boot_id, is_running, process_namespace, process_start
from sortshuffle.homes.shared_home import (
    begin_to_remove_stored_home,
    remove_shared_home,
    shared_home,
    stored_home,
)
from sortshuffle.options import Options
from sortshuffle.service.wire.address import LONGEST_PATH, join_address, listen_at_host, listen_on_path
from sortshuffle.storage.files.descriptors import close_after_reading, lock_until
from sortshuffle.storage.files.presence import is_gone
from sortshuffle.storage.files.private import make_private

LOCK_FILE = "lock"
SERVICE_FILE = "service.json"
LOG_FILE = "service.log"
STATUS_FILE = "status"
ROOTS = "roots"
PARTIAL_SUFFIX = ".partial"
DISSOLVED_SUFFIX = ".dissolved"  # of a rendezvous that is being removed
LOCK_PATIENCE = 30.0  # seconds; the lock is held for as long as starting a process takes, some milliseconds
LOOK = 0.005  # seconds between looks at a lock that another process holds
DIGEST_BYTES = 4
SOCKET_DIGEST_BYTES = 12
SOCKET_SUFFIX = ".socket"
LEFT_SUFFIX = ".left"
SHORT_DIRECTORY = "/tmp"
LAST_LINES = 2  # of the log: the error that a service ended with, and what the supervisor says of its end
LAST_LINES_BYTES = 4096  # more than they take
_OWN = "sortshuffle-{uid}"  # the directory of this user's alone


@dataclass(frozen=True, slots=True)
class ServiceConfig:
    """What a service is told that a task starts. ``memory``: bytes to read into. ``certificate``, ``key``,
    ``authority``: PEM files for TLS, all empty for none. The others are for the engine (`service.jvm`):
    ``write_memory``: bytes of records that wait for their region. ``codec``, ``codec_level``: of its map
    outputs. ``timeout``: seconds in which services of other hosts must answer."""

    secret: bytes = field(repr=False)
    memory: int
    certificate: str = ""
    key: str = ""
    authority: str = ""
    write_memory: int = 128 << 20
    codec: str = "lz4"
    codec_level: int = 1
    timeout: float = 60.0

    def pack(self) -> bytes:
        """One line, which a process is given on its standard input: arguments can be seen by everybody."""
        return json.dumps({**asdict(self), "secret": self.secret.hex()}).encode() + b"\n"

    @staticmethod
    def unpack(line: bytes) -> ServiceConfig:
        found = json.loads(line)
        return ServiceConfig(**{**found, "secret": bytes.fromhex(found["secret"])})


def config_of(secret: bytes, options: Options) -> ServiceConfig:
    """What a service with these options is told."""
    return ServiceConfig(
        secret,
        options.service_memory,
        *options.tls_files,
        write_memory=options.manager_memory,
        codec=options.codec,
        codec_level=options.codec_level,
        timeout=options.service_timeout,
    )


@dataclass(frozen=True, slots=True)
class Registration:
    """An executor that has map outputs on this host. ``roots``: the directories in which its homes are.
    ``shared_roots``: those in which the homes are that the application's executors on this host share.
    ``url``: in place of these, the URL below which the home is that all its hosts share. ``token``: what is
    in the names of these homes; empty if there are none. ``is_driver``: it is the application's driver."""

    owner: Owner
    roots: tuple[str, ...]
    shared_roots: tuple[str, ...] = ()
    token: str = ""
    url: str = ""
    is_driver: bool = False

    @property
    def shared_homes(self) -> tuple[str, ...]:
        """The homes that the application's executors on this host share."""
        owner = self.owner
        return tuple(
            shared_home(root, owner.application, owner.boot, self.token) for root in self.shared_roots
        )

    @property
    def homes_of_spark(self) -> tuple[str, ...]:
        """Those whose roots are directories that Spark makes, and removes with the application."""
        above = {os.path.dirname(directory) for directory in self.owner.local_directories}
        if not self.owner.outlived:
            return ()
        pairs = zip(self.shared_roots, self.shared_homes, strict=True)
        return tuple(home for root, home in pairs if root in above)

    @property
    def stored_home(self) -> str:
        """The home that all hosts of the application share; empty if there is none."""
        return stored_home(self.url, self.owner.application, self.token) if self.url else ""

    def is_read(self) -> bool:
        """Whether it has ended, and Spark's shuffle service serves what it left: then other hosts may read
        the map outputs of its homes until these are gone. Those that are to be kept are read as well. Only
        executors of this host and this boot register in a rendezvous, so neither is checked here."""
        if not replace(self.owner, keep=False).leaves_outputs_to_spark or self.owner.is_live():
            return False
        below = (HOME_ROOT, self.owner.application, self.owner.home_name)
        return not all(is_gone(os.path.join(root, *below)) for root in self.roots)

    @property
    def keeps_what_is_shared(self) -> bool:
        """Whether the homes that it shares are to stay. One that shares none says nothing of them."""
        return self.owner.keep and bool(self.shared_roots or self.url)

    @property
    def has_to_be_removed(self) -> bool:
        """Whether it names homes that go with the rendezvous."""
        return bool(self.shared_roots) or (bool(self.url) and self.is_driver)


class Life(IntEnum):
    """What is known of an application on this host: it has no executor, and has ended; it has none, and may
    come again; it has one, or other hosts read what one has left to Spark. What is more counts."""

    OVER = 0
    WAITING = 1
    LIVE = 2


@dataclass(frozen=True, slots=True)
class Supervised:
    """A service: where it listens, and its supervisor's process. ``namespace``: of process numbers, in which
    that has its own."""

    host: str
    port: int
    pid: int
    started: int
    namespace: str = ""

    @property
    def address(self) -> str:
        return join_address(self.host, self.port)

    def is_live(self) -> bool:
        return bool(self.started) and is_running(self.pid, self.started)


_found: dict[str, Supervised] = {}  # by directory; of this process
_registered: set[tuple[str, Registration]] = set()
_started: list[subprocess.Popen[bytes]] = []  # keeps them from being reported as forgotten


def directory_of(application: str, host: str, secret: bytes, options: Options) -> str:
    """The rendezvous of an application on this host.

    A digest of what tells its services apart is part of the name, which anybody may see. So ``secret`` is a
    random one, or empty where it comes from a file. Part of the digest is which processes this one can see:
    containers may share a temporary directory and a name."""
    apart = (secret.hex(), options.service_secret_file, *options.tls_files)
    everything = json.dumps((*apart, boot_id(), process_namespace()))
    return os.path.join(_own_directory(), f"{application}-{host}-{_digest(everything, DIGEST_BYTES)}")


def socket_path(directory: str) -> str:
    """The Unix socket of the service of this rendezvous: beside it, or where that path would be longer than
    Java takes, in the directory of the same name below ``/tmp``."""
    name = f"{_digest(directory, SOCKET_DIGEST_BYTES)}{SOCKET_SUFFIX}"
    path = os.path.join(os.path.dirname(directory), name)
    if len(path.encode()) <= LONGEST_PATH:
        return path
    return os.path.join(SHORT_DIRECTORY, _OWN.format(uid=os.geteuid()), name)


def _digest(text: str, size: int) -> str:
    import hashlib  # 4 MB, which the supervisor does without until an executor has ended

    return hashlib.blake2b(text.encode(), digest_size=size).hexdigest()


def _own_directory() -> str:
    import tempfile  # takes hashlib with it

    return os.path.join(tempfile.gettempdir(), _OWN.format(uid=os.geteuid()))


def status_pages() -> list[str]:
    """Of the services that this user's tasks have started on this host, and that run."""
    found = calls.glob(os.path.join(glob.escape(_own_directory()), "*", STATUS_FILE))
    running = [path for path in sorted(found) if _running(os.path.dirname(path)) is not None]
    return [str(page) for page in map(_read, running) if page]


def tell_status_page(directory: str, url: str) -> None:
    """The service of this rendezvous has its status page there."""
    _write(os.path.join(directory, STATUS_FILE), url)


def ensure(directory: str, host: str, config: ServiceConfig, registration: Registration) -> str:
    """The address of this host's service, which serves what the executor has below its roots; starts it if it
    does not run. ``host``: by which others reach this host.

    Raises `ServiceUnavailableError` if it cannot be started, `UsageError` for a directory that others could
    have put there.
    """
    found = _found.get(directory)
    if found is not None and (directory, registration) in _registered and found.is_live():
        return found.address
    try:
        with _locked(directory):
            _register(directory, registration)
            found = _running(directory) or _start(directory, host, config)
    except OSError as error:
        raise ServiceUnavailableError(
            f"the shuffle service of host {host} cannot be started: {error}. Set"
            " spark.sortshuffle.service=off if every host sees the same files, or =external where an"
            " administrator runs the services"
        ) from error
    if found.pid in (each.pid for each in _started):
        _remove_left_behind(directory)
    _registered.add((directory, registration))
    _found[directory] = found
    return found.address


def registrations(directory: str) -> list[Registration]:
    """Those of the executors that have registered; what cannot be read is passed over."""
    roots = os.path.join(directory, ROOTS)
    names = (name for name in sorted(_names(roots)) if not name.endswith(PARTIAL_SUFFIX))
    found = (_read(os.path.join(roots, name)) for name in names)
    return [each for each in map(_as_registration, found) if each is not None]


def forget_ended(directory: str) -> Life:
    """Drop the registrations of executors that have ended, but for those whose shared homes are still to be
    removed, or whose own are still read; what is known of the application then."""
    found = registrations(directory)
    for each in found:
        if not (each.has_to_be_removed or each.owner.is_live() or each.is_read()):
            _remove(os.path.join(directory, ROOTS, each.owner.home_name))
    life = max(map(_life_of, found), default=Life.OVER)
    driver_has_ended = any(each.is_driver and not each.owner.is_live() for each in found)
    return Life.OVER if life is Life.WAITING and driver_has_ended else life


def _life_of(registration: Registration) -> Life:
    owner = registration.owner
    if owner.is_live():
        return Life.LIVE
    if owner.sees_the_end():
        return Life.OVER
    if registration.is_read():
        return Life.LIVE
    waits = bool(registration.shared_roots) and owner.outlived
    return Life.WAITING if waits else Life.OVER


def dissolve(directory: str, most: Life = Life.OVER) -> bool:
    """Remove the rendezvous and the shared homes, unless more than ``most`` is known of the application. From
    then on it belongs to nobody, and who comes makes a new one: it loses its name, whole, under the lock."""
    if is_gone(directory):
        return True
    with _locked(directory):
        if forget_ended(directory) > most:
            return False
        _remove_shared_homes(directory)
        _remove(socket_path(directory))
        _remove_if_empty(os.path.dirname(socket_path(directory)))
        dissolved = f"{directory}-{os.urandom(4).hex()}{DISSOLVED_SUFFIX}"
        calls.rename(directory, dissolved)
    calls.rmtree(dissolved, ignore_errors=True)
    _remove_if_empty(os.path.dirname(directory))
    return True


def _remove_shared_homes(directory: str) -> None:
    found = registrations(directory)
    if any(each.keeps_what_is_shared for each in found):
        return
    for home in {each.stored_home for each in found if each.is_driver and each.url}:
        _started.append(begin_to_remove_stored_home(home, directory + LEFT_SUFFIX))
    for home in {home for each in found for home in each.shared_homes}:
        try:
            remove_shared_home(home)
        except OSError:
            continue  # its disk is gone, or `sortshuffle clean` removes it


def is_recorded(directory: str, pid: int) -> bool:
    """Whether tasks find this process as the supervisor."""
    found = _recorded(directory)
    return found is not None and found.pid == pid


def is_recorded_by_its_starter(directory: str, pid: int) -> bool:
    """The same, once the starter of the process has told of it, or has ended before."""
    if is_gone(directory):
        return False
    with _locked(directory):
        return is_recorded(directory, pid)


def _remove_left_behind(directory: str) -> None:
    """Dissolve what other applications' supervisors could not, because they were killed."""
    own = os.path.dirname(directory)
    for other in (os.path.join(own, name) for name in _names(own) if not name.endswith(SOCKET_SUFFIX)):
        try:
            if other.endswith(DISSOLVED_SUFFIX):  # whoever did that was killed before it had removed all
                calls.rmtree(other, ignore_errors=True)
            elif other != directory and _running(other) is None and _is_of_this_host(other):
                dissolve(other)
        except (OSError, UsageError):
            continue


def _is_of_this_host(directory: str) -> bool:
    """Hosts and containers may share their temporary directory, and do not see each other's processes."""
    found = _recorded(directory)
    if found is not None and found.namespace != process_namespace():
        return False
    return all(is_this_host(each.owner.host) for each in registrations(directory))


def roots_of(directory: str) -> tuple[str, ...]:
    """The directories in which registered executors have their homes."""
    found = registrations(directory)
    return tuple(dict.fromkeys(root for each in found for root in (*each.roots, *each.shared_roots)))


def application_of(directory: str) -> str:
    """The application whose executors have registered; empty if none has."""
    return next((each.owner.application for each in registrations(directory)), "")


def address_of(directory: str) -> str:
    """Where the service listens for other hosts; empty before it was started."""
    found = _recorded(directory)
    return found.address if found is not None else ""


def last_words(directory: str) -> str:
    """The end of what supervisor and service have to say, in one line. Raises OSError."""
    with calls.open_file(os.path.join(directory, LOG_FILE), "rb") as opened:
        size = opened.seek(0, os.SEEK_END)
        opened.seek(max(0, size - LAST_LINES_BYTES))
        lines = opened.read().decode(errors="replace").split("\n")
    return "; ".join([line.strip() for line in lines if line.strip()][-LAST_LINES:])


def changed_at(directory: str) -> int:
    """When executors last registered or were dropped, ns since 1970; 0 if none ever were."""
    try:
        return calls.stat(os.path.join(directory, ROOTS)).st_mtime_ns
    except FileNotFoundError:
        return 0


# --- what is in the directory ------------------------------------------------------------------------------


def _register(directory: str, registration: Registration) -> None:
    """An executor may come again with further roots. With other settings it is another owner, and has a
    registration beside the first."""
    roots = os.path.join(directory, ROOTS)
    make_private(roots)
    path = os.path.join(roots, registration.owner.home_name)
    before = _as_registration(_read(path))
    _write(path, asdict(registration if before is None else _joined(before, registration)))


def _joined(one: Registration, other: Registration) -> Registration:
    """All that is known of one owner."""
    return Registration(
        one.owner,
        tuple(dict.fromkeys((*one.roots, *other.roots))),
        tuple(dict.fromkeys((*one.shared_roots, *other.shared_roots))),
        other.token or one.token,
        other.url or one.url,
        one.is_driver or other.is_driver,
    )


def _as_registration(fields: object) -> Registration | None:
    try:
        owner = dict(fields["owner"])  # type: ignore[index]
        owner["local_directories"] = tuple(owner["local_directories"])
        roots = tuple(map(str, fields["roots"]))  # type: ignore[index]
        shared_roots = tuple(map(str, fields["shared_roots"]))  # type: ignore[index]
        token, url, is_driver = (fields[name] for name in ("token", "url", "is_driver"))  # type: ignore[index]
        return Registration(Owner(**owner), roots, shared_roots, str(token), str(url), bool(is_driver))
    except (KeyError, TypeError, ValueError):
        return None


def _running(directory: str) -> Supervised | None:
    found = _recorded(directory)
    return found if found is not None and found.is_live() else None


def _recorded(directory: str) -> Supervised | None:
    fields = _read(os.path.join(directory, SERVICE_FILE))
    try:
        return Supervised(**fields)  # type: ignore[arg-type]
    except TypeError:
        return None


def _start(directory: str, host: str, config: ServiceConfig) -> Supervised:
    before = _recorded(directory)
    port = before.port if before is not None else 0
    _make_private(os.path.dirname(socket_path(directory)))
    with listen_at_host(host, port) as listening, listen_on_path(socket_path(directory)) as local:
        process = _supervisor(directory, (listening.fileno(), local.fileno()), config)
        port = listening.getsockname()[1]
    started = process_start(process.pid) or 0
    found = Supervised(host, port, process.pid, started, process_namespace())
    try:
        _write(os.path.join(directory, SERVICE_FILE), asdict(found))
    except BaseException:
        process.kill()  # nobody would find it
        raise
    return found


def _supervisor(directory: str, listening: tuple[int, int], config: ServiceConfig) -> subprocess.Popen[bytes]:
    log = calls.open(os.path.join(directory, LOG_FILE), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        process = calls.Popen(
            [sys.executable, "-m", "sortshuffle.service.host.supervisor", directory, *map(str, listening)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            pass_fds=listening,
            env=environment(),
            start_new_session=True,  # Spark's daemon hangs up its own process group when it ends
            cwd="/",
        )
    finally:
        close_after_reading(log)  # to which only the supervisor writes
    assert process.stdin is not None
    with process.stdin as told:
        told.write(config.pack())
    _started[:] = [each for each in _started if each.poll() is None]
    _started.append(process)
    return process


# --- files -------------------------------------------------------------------------------------------------


@contextmanager
def _locked(directory: str) -> Iterator[None]:
    """The lock of a directory, which is made if it is not there. Raises OSError, `UsageError`."""
    until = time.monotonic() + LOCK_PATIENCE
    path = os.path.join(directory, LOCK_FILE)
    while True:
        try:
            _make_private(os.path.dirname(directory))
            _make_private(directory)
            lock = calls.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            if time.monotonic() >= until:
                raise  # not dissolved meanwhile, which happens once: the temporary directory is gone
            time.sleep(LOOK)
            continue
        try:
            lock_until(lock, path, until, LOOK)
            if _is_still_there(lock, path):
                yield
                return
        finally:
            close_after_reading(lock)


def _is_still_there(lock: int, path: str) -> bool:
    try:
        return os.path.samestat(calls.fstat(lock), calls.lstat(path))
    except FileNotFoundError:
        return False


def _make_private(directory: str) -> None:
    try:
        calls.mkdir(directory, 0o700)
    except FileExistsError:
        pass
    found = calls.lstat(directory)
    others = stat.S_IMODE(found.st_mode) & 0o077
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or others:
        raise UsageError(
            f"{directory} is not a directory of user {os.geteuid()} alone: it could have been put there by"
            " another user. Remove it, or set TMPDIR in the executors' environment (spark.executorEnv.TMPDIR)"
        )


def _write(path: str, fields: object) -> None:
    """A file has one writer, or is written under the lock: so the partial name is free."""
    partial = path + PARTIAL_SUFFIX
    descriptor = calls.open(
        partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
    )
    with calls.open_file(descriptor, "w", encoding="utf-8") as opened:
        json.dump(fields, opened)
    calls.replace(partial, path)


def _read(path: str) -> object:
    """None for a file that is not there, or not as it should be. Raises OSError where it cannot be read."""
    try:
        with calls.open_file(path, encoding="utf-8") as opened:
            return json.load(opened)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None


def _names(directory: str) -> list[str]:
    try:
        return calls.listdir(directory)
    except FileNotFoundError:
        return []


def _remove_if_empty(directory: str) -> None:
    try:
        calls.rmdir(directory)
    except OSError:
        pass  # other applications are there


def _remove(path: str) -> None:
    try:
        calls.unlink(path)
    except FileNotFoundError:
        pass
