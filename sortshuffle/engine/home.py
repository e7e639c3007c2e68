"""`Home`: where map outputs lie on this host, without Spark."""

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
    """Where a job's map outputs lie on this host. ``directory``: the one that a service serves
    (`sortshuffle.serve`). ``application``: the job's name, with random digits. ``path``: of the home itself.

    It belongs to the process that made it: as a context manager, leaving removes it with all that is in it,
    finished or not. What a killed process left removes ``sortshuffle clean DIRECTORY``. Plain data: producers
    get a copy, and only use it.
    """

    directory: str
    application: str
    path: str

    @staticmethod
    def of(directory: str, name: str = "engine") -> Home:
        """A new home below ``directory``, which is made if need be. ``name``: of the job, one step of a path.

        Raises `UsageError` for another name, OSError where the directories cannot be made.
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
        """Delete it with all that is in it, when producers and consumers have ended. May be called again."""
        remove_home(self.path)

    def __enter__(self) -> Home:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()
