"""`Owner`: the executor that a home belongs to, as the home's ``owner.json`` says.

Homes lie in ``<local directory>/sortshuffle/<application>/<host>-<pid>-<digest>/``. ``pid`` is the process of
the executor's JVM; the digest covers the whole ``owner.json`` (`Owner.home_name`). So no two executors share
a home, whatever containers they are in, and the rules for a home's files never change.

Only the standard library is imported here: the janitor process (`homes.janitor`) must stay small.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass

from sortshuffle import calls
from sortshuffle.homes.host import host_name, is_this_host
from sortshuffle.homes.processes import boot_id, is_running, process_namespace, process_start
from sortshuffle.homes.small_files import replace_json
from sortshuffle.storage.files.presence import is_gone

HOME_ROOT = "sortshuffle"
OWNER_FILE = "owner.json"
SILENT_FILE = "silent.json"  # which services did not answer an executor's workers (`spark.worker.silence`)
NAME_DIGEST_BYTES = 6  # distinguish the few executors and settings with the same host and pid


@dataclass(frozen=True, slots=True)
class Owner:
    """The executor that a home belongs to.

    ``pid`` and ``started``: its JVM and that process's start time in clock ticks since boot, so that a later
    process with the same pid is not mistaken for it. ``namespace``: of process numbers; empty if unknown.
    ``local_directories``: Spark's; empty if unknown. ``keep``: finished files stay where they are.
    ``outlived``: finished files outlive the executor, because the host's shuffle service serves them until it
    sweeps (`sortshuffle serve`). ``served_by_spark``: Spark's own shuffle files outlive the executor, because
    Spark's external shuffle service serves them.
    """

    application: str
    host: str
    boot: str
    pid: int
    started: int
    local_directories: tuple[str, ...]
    grace: float
    keep: bool
    outlived: bool = False
    namespace: str = ""
    served_by_spark: bool = False

    @staticmethod
    def of_process(
        pid: int,
        application: str,
        local_directories: tuple[str, ...],
        grace: float,
        keep: bool,
        outlived: bool = False,
        served_by_spark: bool = False,
    ) -> Owner:
        """Return a process as an owner. It must be visible from here; if it has ended it is not live."""
        return Owner(
            application,
            host_name(),
            boot_id(),
            pid,
            process_start(pid) or 0,
            local_directories,
            grace,
            keep,
            outlived,
            process_namespace(),
            served_by_spark,
        )

    @property
    def home_name(self) -> str:
        """The name of this owner's homes."""
        from hashlib import blake2b  # 4 MB, which the janitor does without

        digest = blake2b(json.dumps(asdict(self)).encode(), digest_size=NAME_DIGEST_BYTES).hexdigest()
        return f"{self.host}-{self.pid}-{digest}"

    def write(self, home: str) -> None:
        replace_json(os.path.join(home, OWNER_FILE), asdict(self))

    @staticmethod
    def read(home: str) -> Owner | None:
        """Return the owner of a home; None if the file is missing, malformed or cannot be read."""
        try:
            return Owner.load(home)
        except OSError:
            return None

    @staticmethod
    def load(home: str) -> Owner | None:
        """Return the same, but raise OSError if the system cannot read the file for the moment."""
        try:
            with calls.open_file(os.path.join(home, OWNER_FILE), encoding="utf-8") as opened:
                found = json.load(opened)
            found["local_directories"] = tuple(found["local_directories"])
            return Owner(**found)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None
        except (ValueError, TypeError, KeyError):
            return None

    @property
    def is_visible(self) -> bool:
        """Whether its process is visible from here, and not in another container. Only for this host."""
        return self.namespace in ("", process_namespace())

    @property
    def is_host_known(self) -> bool:
        """Whether this process can tell if the owner is on this host: it knows its own boot id and namespace
        if it knows the owner's."""
        return bool(boot_id() or not self.boot) and bool(process_namespace() or not self.namespace)

    def on_this_host(self) -> bool:
        return self.boot == boot_id() and is_this_host(self.host)

    def is_live(self) -> bool:
        """Return whether the executor still runs and still has its local directories. Only for this host. An
        executor in an unknown state counts as live, because a deletion cannot be undone."""
        if not self.is_visible:
            return True
        if not is_running(self.pid, self.started):
            return False
        return not self.local_directories or not all(map(is_gone, self.local_directories))

    @property
    def leaves_outputs_to_spark(self) -> bool:
        """Whether finished files stay after the executor's end, as long as Spark keeps its shuffle files."""
        return self.served_by_spark and bool(self.local_directories) and not (self.outlived or self.keep)

    def has_ended(self) -> bool:
        """Return whether the executor is known to have ended. Only its own host knows."""
        return self.on_this_host() and not self.is_live()

    def application_has_ended(self) -> bool:
        """Return whether the application is known to have ended: Spark (standalone, YARN) removes directories
        above the executors' local ones with the application, not with an executor. Only for this host."""
        above = {os.path.dirname(directory) for directory in self.local_directories}
        return bool(above) and all(map(is_gone, above))
