"""`Registration`: an executor that has map outputs on a host, as its rendezvous remembers it; and `Life`,
what the registrations say of the application.

Rules
* The shared homes of the application (`homes.shared_home`) go with the rendezvous. So an executor that has
  ended is remembered if it registered one. The rendezvous stays while its application may live.
* An executor that has ended is also remembered while Spark's external shuffle service serves its shuffle
  files and its homes are there: other hosts still read its map outputs. It counts as live for as long, but at
  most until its application's directories are gone.
* The home at a URL goes with the driver's rendezvous. So the driver is remembered, and other executors are
  not: their service may end with them.
* An application whose driver registered here and has ended is over: nobody else brings executors back.

Standard library only: the supervisor uses it, too.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

from sortshuffle.homes.owner import HOME_ROOT, Owner
from sortshuffle.homes.shared_home import shared_home, stored_home
from sortshuffle.storage.files.presence import is_gone


class Life(IntEnum):
    """What is known of an application on this host. Of several executors the largest counts.

    ``OVER``: it has no executor here, and has ended. ``WAITING``: it has none, and may get one again.
    ``LIVE``: it has one, or other hosts read what one has left to Spark.
    """

    OVER = 0
    WAITING = 1
    LIVE = 2


@dataclass(frozen=True, slots=True)
class Registration:
    """``roots``: the directories with the executor's own homes. ``shared_roots``: the directories with the
    homes that the application's executors on this host share. ``url``: in place of these, the URL of the home
    that all its hosts share. ``token``: in the names of shared homes; empty if there are none.
    ``is_driver``: the executor is the application's driver."""

    owner: Owner
    roots: tuple[str, ...]
    shared_roots: tuple[str, ...] = ()
    token: str = ""
    url: str = ""
    is_driver: bool = False

    @staticmethod
    def unpack(fields: object) -> Registration | None:
        """Of what `asdict` made of one, as JSON; None for anything else."""
        try:
            owner = dict(fields["owner"])  # type: ignore[index]
            owner["local_directories"] = tuple(owner["local_directories"])
            roots = tuple(map(str, fields["roots"]))  # type: ignore[index]
            shared_roots = tuple(map(str, fields["shared_roots"]))  # type: ignore[index]
            token, url, is_driver = (fields[name] for name in ("token", "url", "is_driver"))  # type: ignore[index]
            return Registration(Owner(**owner), roots, shared_roots, str(token), str(url), bool(is_driver))
        except (KeyError, TypeError, ValueError):
            return None

    def joined(self, later: Registration) -> Registration:
        """What this and a later registration of the same owner say together."""
        return Registration(
            self.owner,
            tuple(dict.fromkeys((*self.roots, *later.roots))),
            tuple(dict.fromkeys((*self.shared_roots, *later.shared_roots))),
            later.token or self.token,
            later.url or self.url,
            self.is_driver or later.is_driver,
        )

    @property
    def shared_homes(self) -> tuple[str, ...]:
        """The homes that the application's executors on this host share."""
        owner = self.owner
        return tuple(
            shared_home(root, owner.application, owner.boot, self.token) for root in self.shared_roots
        )

    @property
    def homes_of_spark(self) -> tuple[str, ...]:
        """The shared homes below directories that Spark makes, and removes with the application."""
        if not self.owner.outlived:
            return ()
        above = {os.path.dirname(directory) for directory in self.owner.local_directories}
        pairs = zip(self.shared_roots, self.shared_homes, strict=True)
        return tuple(home for root, home in pairs if root in above)

    @property
    def stored_home(self) -> str:
        """The home that all hosts of the application share; empty if there is none."""
        return stored_home(self.url, self.owner.application, self.token) if self.url else ""

    @property
    def keeps_shared_homes(self) -> bool:
        """Whether its shared homes are to stay. False where it has none: then it has no say."""
        return self.owner.keep and bool(self.shared_roots or self.url)

    @property
    def has_homes_to_remove(self) -> bool:
        """Whether it names homes that go with the rendezvous."""
        return bool(self.shared_roots) or (bool(self.url) and self.is_driver)

    def is_read_after_end(self) -> bool:
        """Whether the executor has ended and other hosts may read its map outputs: Spark's shuffle service
        serves its files, and its homes are there. Homes that are to be kept are read as well. Host and boot
        are not checked: only executors of this host and this boot register here."""
        if not replace(self.owner, keep=False).leaves_outputs_to_spark or self.owner.is_live():
            return False
        below = (HOME_ROOT, self.owner.application, self.owner.home_name)
        return not all(is_gone(os.path.join(root, *below)) for root in self.roots)

    def is_needed(self) -> bool:
        """Whether the rendezvous has to remember it."""
        return self.has_homes_to_remove or self.owner.is_live() or self.is_read_after_end()

    def life(self) -> Life:
        """What it says of its application."""
        owner = self.owner
        if owner.is_live():
            return Life.LIVE
        if owner.application_has_ended():
            return Life.OVER
        if self.is_read_after_end():
            return Life.LIVE
        return Life.WAITING if self.shared_roots and owner.outlived else Life.OVER


def life_of(registrations: Sequence[Registration]) -> Life:
    """What they say of their application together."""
    life = max((each.life() for each in registrations), default=Life.OVER)
    driver_has_ended = any(each.is_driver and not each.owner.is_live() for each in registrations)
    return Life.OVER if life is Life.WAITING and driver_has_ended else life
