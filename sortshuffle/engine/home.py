"""`Home`: the directory of a job's map outputs on this host, without Spark."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from types import TracebackType

from sortshuffle.errors import UsageError
from sortshuffle.homes.lifetime import remove_home, remove_unowned
from sortshuffle.homes.owner import HOME_ROOT, Owner
from sortshuffle.service.wire.protocol import is_plain_name
from sortshuffle.storage.files.private import make_private


@dataclass(frozen=True, slots=True)
class Home:
    """The directory of a job's map outputs on this host. ``directory``: the root that a service serves
    (`sortshuffle.serve`). ``application``: the job's name with random digits. ``path``: the home itself.

    The process that made a home owns it: leaving it as a context manager deletes it with all map outputs,
    finished or not. ``sortshuffle clean DIRECTORY`` removes the homes of killed processes. A home is plain
    data: producers use a pickled copy, and must not remove it.
    """

    directory: str
    application: str
    path: str

    @staticmethod
    def of(directory: str, name: str = "engine") -> Home:
        """Make a home below ``directory``, which is created if missing. ``name``: the job's name.

        Raises `UsageError` for a name that is not one path component, OSError if a directory cannot be made.
        """
        application = f"{name}-{secrets.token_hex(4)}"
        if not name or not is_plain_name(application):
            raise UsageError(f"{name!r} cannot be the name of a job: it is to be one step of a path")
        root = os.path.abspath(directory)
        owner = Owner.of_process(os.getpid(), application, (), grace=0.0, keep=False)
        path = os.path.join(root, HOME_ROOT, application, owner.home_name)
        try:
            make_private(path)
            owner.write(path)
        except OSError:
            remove_unowned(path)
            raise
        return Home(root, application, path)

    def remove(self) -> None:
        """Delete the home and all in it, once producers and consumers have ended. Safe to call again."""
        remove_home(self.path)

    def __enter__(self) -> Home:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()
