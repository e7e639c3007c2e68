"""Rendezvous: where the tasks of an application find the shuffle service of their host, or start it.

    <temporary directory>/sortshuffle-<uid>/<application>-<host>-<digest>/       0700
        lock           held (flock) by a process that starts the service, registers with it, or ends it
        service.json   where the service listens, and which process is its supervisor             0600
        roots/<name>   one for each executor: its process, and where its homes are                0600
        status         the URL of the service's status page                                       0600
        service.log    the log of supervisor and service
    <temporary directory>/sortshuffle-<uid>/<digest>.socket
                       the Unix socket for the JVMs of this host (`service.jvm`)                  0600
    <temporary directory>/sortshuffle-<uid>/<application>-<host>-<digest>.left
                       why the home at a URL could not be removed, if that failed

The first producer task on a host makes these files, binds the listening sockets, and starts a supervisor
(`service.host.supervisor`) that holds them and keeps the service running on them. So the port stays the same
however often the service dies, and early clients wait in the backlog. The task does not wait for the service.

Rules
* A process that reads and then changes these files holds the lock: concurrent producers find one supervisor.
* The service is ended under the lock, too, and not while the application is live here (`ApplicationPhase`).
  service.json goes before the socket: if the rest cannot be removed, the supervisor ends nevertheless, and
  the next task starts another.
* A supervisor that has died is replaced by the next task that looks, on the same port if that is free. A
  supervisor that service.json does not name ends, because no task can find it.
* A process that has found the service only checks that the supervisor still runs, in some 20 us.

Standard library only: the supervisor uses it, too.
"""

from __future__ import annotations

import glob
import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass

from sortshuffle import calls
from sortshuffle.errors import ServiceUnavailableError, UsageError
from sortshuffle.homes.environment import environment
from sortshuffle.homes.host import is_this_host
from sortshuffle.homes.processes import is_running, process_namespace, process_start
from sortshuffle.homes.shared_home import begin_to_remove_stored_home, remove_shared_home
from sortshuffle.homes.small_files import is_partial, replace_json
from sortshuffle.service.host import rendezvous_directory
from sortshuffle.service.host.registration import ApplicationPhase, Registration, phase_of
from sortshuffle.service.host.rendezvous_directory import (
    SOCKET_SUFFIX,
    directory_lock,
    make_own,
    names_in,
    read_json,
    socket_path,
)
from sortshuffle.service.host.service_config import ServiceConfig
from sortshuffle.service.wire.address import join_address, listen_at_host, listen_on_path
from sortshuffle.storage.files.descriptors import close_after_reading
from sortshuffle.storage.files.presence import is_gone
from sortshuffle.storage.files.private import make_private

SERVICE_FILE = "service.json"
LOG_FILE = "service.log"
STATUS_FILE = "status"
ROOTS = "roots"
DISSOLVED_SUFFIX = ".dissolved"  # of a rendezvous that is being removed
LEFT_SUFFIX = ".left"
LAST_LINES = 2  # of the log: the error that a service ended with, and the supervisor's line about its end
LAST_LINES_BYTES = 4096  # more than they take
PRIVATE = 0o600  # mode of files


@dataclass(frozen=True, slots=True)
class ServiceRecord:
    """A service: where it listens, and its supervisor's process. ``namespace``: of the process number."""

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


_found: dict[str, ServiceRecord] = {}  # by directory: the services that this process has found
_registered: set[tuple[str, Registration]] = set()
_started: list[subprocess.Popen[bytes]] = []  # started here; else Python warns of processes still running
# homes at a URL for which a process was started that removes them; it tries for minutes, so one is enough
_removing: set[str] = set()


def status_pages() -> list[str]:
    """Return the status URLs of the running services that this user's tasks have started on this host."""
    paths = calls.glob(os.path.join(glob.escape(rendezvous_directory.own_directory()), "*", STATUS_FILE))
    running = [path for path in sorted(paths) if _running(os.path.dirname(path)) is not None]
    return [str(page) for page in map(read_json, running) if page]


def write_status_page(directory: str, url: str) -> None:
    """Record the URL of the status page of this rendezvous's service."""
    replace_json(os.path.join(directory, STATUS_FILE), url, PRIVATE)


def ensure(directory: str, host: str, config: ServiceConfig, registration: Registration) -> str:
    """Return the address of this host's service, which serves the executor's roots from now on. Starts the
    service if it is not running. ``host``: the name or address by which other hosts reach this one.

    Raises `ServiceUnavailableError` if it cannot be started, `UsageError` for a directory that another user
    could have put there.
    """
    found = _found.get(directory)
    if found is not None and (directory, registration) in _registered and found.is_live():
        return found.address
    try:
        with directory_lock(directory):
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
    """Return the registrations of all executors. Files of another kind are skipped. Raises OSError."""
    roots = os.path.join(directory, ROOTS)
    names = (name for name in sorted(names_in(roots)) if not is_partial(name))
    unpacked = (Registration.unpack(read_json(os.path.join(roots, name))) for name in names)
    return [registration for registration in unpacked if registration is not None]


def forget_ended(directory: str) -> ApplicationPhase:
    """Drop registrations that are no longer needed. Returns what all of them said of the application. Takes
    the lock only if there is one to drop, and does not wait for it: if another process has the lock, the next
    call drops them. Raises OSError, `UsageError`."""
    found = registrations(directory)
    if all(each.is_needed() for each in found):
        return phase_of(found)
    try:
        with directory_lock(directory, patience=0.0):
            return _forget_ended(directory)
    except TimeoutError:  # another process has it
        return phase_of(found)


def _forget_ended(directory: str) -> ApplicationPhase:
    """Do the same under the lock, which the caller holds."""
    found = registrations(directory)
    for each in found:
        if not each.is_needed():
            _remove(os.path.join(directory, ROOTS, each.owner.home_name))
    return phase_of(found)


def dissolve(directory: str, most: ApplicationPhase = ApplicationPhase.OVER) -> bool:
    """Remove the rendezvous and the shared homes, unless the application's phase is above ``most``. Returns
    whether the rendezvous is gone. It is renamed as a whole under the lock: a later task makes a new one."""
    if is_gone(directory):
        return True
    with directory_lock(directory):
        if _forget_ended(directory) > most:
            return False
        _remove_shared_homes(directory)  # first: without service.json, this supervisor does not try again
        _remove(os.path.join(directory, SERVICE_FILE))  # from here on nobody finds this supervisor
        _remove(socket_path(directory))
        _remove_if_empty(os.path.dirname(socket_path(directory)))
        dissolved = f"{directory}-{os.urandom(4).hex()}{DISSOLVED_SUFFIX}"
        calls.rename(directory, dissolved)
    calls.rmtree(dissolved, ignore_errors=True)
    _remove_if_empty(os.path.dirname(directory))
    return True


def _remove_shared_homes(directory: str) -> None:
    found = registrations(directory)
    if any(each.keeps_shared_homes for each in found):
        return
    for home in {each.stored_home for each in found if each.is_driver and each.url} - _removing:
        _started.append(begin_to_remove_stored_home(home, directory + LEFT_SUFFIX))
        _removing.add(home)
    for home in {home for each in found for home in each.shared_homes}:
        try:
            remove_shared_home(home)
        except OSError:
            continue  # its disk is gone, or `sortshuffle clean` removes it


def is_recorded(directory: str, pid: int) -> bool:
    """Return whether service.json names this process as the supervisor."""
    found = _recorded(directory)
    return found is not None and found.pid == pid


def is_recorded_by_its_starter(directory: str, pid: int) -> bool:
    """Return the same after the process's starter has written service.json, or has ended."""
    if is_gone(directory):
        return False
    with directory_lock(directory):
        return is_recorded(directory, pid)


def _remove_left_behind(directory: str) -> None:
    """Dissolve the rendezvous of other applications whose supervisors were killed."""
    own = os.path.dirname(directory)
    for other in (os.path.join(own, name) for name in names_in(own) if not name.endswith(SOCKET_SUFFIX)):
        try:
            if other.endswith(DISSOLVED_SUFFIX):  # its supervisor was killed while removing it
                calls.rmtree(other, ignore_errors=True)
            elif other != directory and _running(other) is None and _is_of_this_host(other):
                dissolve(other)
        except (OSError, UsageError):
            continue


def _is_of_this_host(directory: str) -> bool:
    """Return whether the rendezvous is of this host and this container. Others may share the temporary
    directory, and their processes cannot be seen here."""
    found = _recorded(directory)
    if found is not None and found.namespace != process_namespace():
        return False
    return all(is_this_host(each.owner.host) for each in registrations(directory))


def roots_of(directory: str) -> tuple[str, ...]:
    """Return the directories in which registered executors have their homes."""
    found = registrations(directory)
    return tuple(dict.fromkeys(root for each in found for root in (*each.roots, *each.shared_roots)))


def application_of(directory: str) -> str:
    """Return the application whose executors have registered; empty if none has."""
    return next((each.owner.application for each in registrations(directory)), "")


def address_of(directory: str) -> str:
    """Return where the service listens for other hosts; empty before it was started."""
    found = _recorded(directory)
    return found.address if found is not None else ""


def last_words(directory: str) -> str:
    """Return the end of the log, in one line. Raises OSError."""
    with calls.open_file(os.path.join(directory, LOG_FILE), "rb") as opened:
        size = opened.seek(0, os.SEEK_END)
        opened.seek(max(0, size - LAST_LINES_BYTES))
        lines = opened.read().decode(errors="replace").split("\n")
    return "; ".join([line.strip() for line in lines if line.strip()][-LAST_LINES:])


def changed_at(directory: str) -> int:
    """Return when a registration was last written or dropped, in ns since 1970; 0 if there never were any."""
    try:
        return calls.stat(os.path.join(directory, ROOTS)).st_mtime_ns
    except FileNotFoundError:
        return 0


def _register(directory: str, registration: Registration) -> None:
    """Write the registration, combined with an earlier one of the same owner: an executor may register again
    with further roots. With other settings it is another owner, and has a second registration."""
    roots = os.path.join(directory, ROOTS)
    make_private(roots)
    path = os.path.join(roots, registration.owner.home_name)
    before = Registration.unpack(read_json(path))
    replace_json(path, asdict(before.joined(registration) if before else registration), PRIVATE)


def _running(directory: str) -> ServiceRecord | None:
    found = _recorded(directory)
    return found if found is not None and found.is_live() else None


def _recorded(directory: str) -> ServiceRecord | None:
    fields = read_json(os.path.join(directory, SERVICE_FILE))
    try:
        return ServiceRecord(**fields)  # type: ignore[arg-type]
    except TypeError:
        return None


def _start(directory: str, host: str, config: ServiceConfig) -> ServiceRecord:
    before = _recorded(directory)
    port = before.port if before is not None else 0
    make_own(os.path.dirname(socket_path(directory)))
    with listen_at_host(host, port) as listening, listen_on_path(socket_path(directory)) as local:
        process = _supervisor(directory, (listening.fileno(), local.fileno()), config)
        port = listening.getsockname()[1]
    started = process_start(process.pid) or 0
    found = ServiceRecord(host, port, process.pid, started, process_namespace())
    try:
        replace_json(os.path.join(directory, SERVICE_FILE), asdict(found), PRIVATE)
    except BaseException:
        process.kill()  # no task would find it
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
        close_after_reading(log)  # only the supervisor writes to it
    assert process.stdin is not None
    with process.stdin as pipe:
        pipe.write(config.pack())
    _started[:] = [each for each in _started if each.poll() is None]
    _started.append(process)
    return process


def _remove_if_empty(directory: str) -> None:
    with suppress(OSError):  # other applications are there
        calls.rmdir(directory)


def _remove(path: str) -> None:
    with suppress(FileNotFoundError):
        calls.unlink(path)
