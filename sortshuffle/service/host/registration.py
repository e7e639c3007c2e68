"""`Registration`: an executor with map outputs on a host, as its rendezvous remembers it; and
`ApplicationPhase`: what the registrations say of the application.

Rules
* The shared homes of the application (`homes.shared_home`) are removed with the rendezvous. So an executor
  that registered one is remembered after its end. The rendezvous stays while its application may live.
* If Spark's external shuffle service serves an ended executor's shuffle files, and its homes exist, other
  hosts may still read there. Then the executor stays remembered and counts as live. It counts as over once
  Spark (the standalone Worker, YARN's NodeManager) has removed the application's directories, which it does
  when the application ends. There is no other time limit: a notebook may be left overnight without an
  executor.
* The home at a URL is removed with the driver's rendezvous. So only the driver is remembered for it.
* An application that waits for executors is over if its driver ran on this host and has ended: only a driver
  can get new ones. The driver is known because it registered, or because an executor named its process. A
  driver that was only named counts when it has ended, but not as a sign of life while it runs: the
  application may have ended long ago.

Standard library only: the supervisor uses it, too.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

from sortshuffle.homes.owner import HOME_ROOT, Owner
from sortshuffle.homes.processes import is_running
from sortshuffle.homes.shared_home import shared_home, stored_home
from sortshuffle.storage.files.presence import is_gone


class ApplicationPhase(IntEnum):
    """What is known of an application on this host. Of several executors the largest counts.

    ``OVER``: it has no executor here, and its service need not wait for another. ``WAITING``: it has none,
    and may get one again. ``LIVE``: it has one, or other hosts may read what an ended one has left to Spark.
    """

    OVER = 0
    WAITING = 1
    LIVE = 2


@dataclass(frozen=True, slots=True)
class Registration:
    """An executor that registered. ``roots``: directories with its own homes. ``shared_roots``: those with
    the homes that the application's executors on this host share. ``url``: instead of these, the URL of the
    home that all hosts share. ``token``: in the names of shared homes; empty if there are none.
    ``is_driver``: whether the executor is the application's driver. ``driver_pid``, ``driver_started``: the
    driver's process, as in `Owner`, if the executor knows it to be on this host; else ``driver_pid`` is 0."""

    owner: Owner
    roots: tuple[str, ...]
    shared_roots: tuple[str, ...] = ()
    token: str = ""
    url: str = ""
    is_driver: bool = False
    driver_pid: int = 0
    driver_started: int = 0

    @staticmethod
    def unpack(fields: object) -> Registration | None:
        """Parse a registration from the JSON of its `asdict`; None if the JSON is something else."""
        try:
            owner = dict(fields["owner"])  # type: ignore[index]
            owner["local_directories"] = tuple(owner["local_directories"])
            roots = tuple(map(str, fields["roots"]))  # type: ignore[index]
            shared_roots = tuple(map(str, fields["shared_roots"]))  # type: ignore[index]
            token, url, is_driver = (fields[name] for name in ("token", "url", "is_driver"))  # type: ignore[index]
            # a registration of an earlier release has none
            driver = (int(fields.get(name, 0)) for name in ("driver_pid", "driver_started"))  # type: ignore[attr-defined]
            others = (str(token), str(url), bool(is_driver))
            return Registration(Owner(**owner), roots, shared_roots, *others, *driver)
        except (KeyError, TypeError, ValueError):
            return None

    def joined(self, later: Registration) -> Registration:
        """Return this registration combined with a later one of the same owner."""
        return Registration(
            self.owner,
            tuple(dict.fromkeys((*self.roots, *later.roots))),
            tuple(dict.fromkeys((*self.shared_roots, *later.shared_roots))),
            later.token or self.token,
            later.url or self.url,
            self.is_driver or later.is_driver,
            *(later if later.driver_pid else self)._driver,
        )

    @property
    def _driver(self) -> tuple[int, int]:
        return self.driver_pid, self.driver_started

    @property
    def shared_homes(self) -> tuple[str, ...]:
        """The homes that the application's executors on this host share."""
        owner = self.owner
        return tuple(
            shared_home(root, owner.application, owner.boot, self.token) for root in self.shared_roots
        )

    @property
    def homes_of_spark(self) -> tuple[str, ...]:
        """The shared homes below directories that Spark makes, and removes when the application ends."""
        if not self.owner.outlived:
            return ()
        above = {os.path.dirname(directory) for directory in self.owner.local_directories}
        pairs = zip(self.shared_roots, self.shared_homes, strict=True)
        return tuple(home for root, home in pairs if root in above)

    @property
    def spark_directories(self) -> tuple[str, ...]:
        """Spark's local directories of the executor. If Spark serves its files when it has ended, also those
        above, which Spark makes for all executors of the application: others may have ended, too."""
        own = self.owner.local_directories
        return (*own, *map(os.path.dirname, own)) if self.owner.served_by_spark else own

    @property
    def stored_home(self) -> str:
        """The home that all hosts of the application share; empty if there is none."""
        return stored_home(self.url, self.owner.application, self.token) if self.url else ""

    @property
    def keeps_shared_homes(self) -> bool:
        """Whether its shared homes stay when the application ends. False, without effect, if it has none."""
        return self.owner.keep and bool(self.shared_roots or self.url)

    @property
    def has_homes_to_remove(self) -> bool:
        """Whether it names homes that are removed with the rendezvous."""
        return bool(self.shared_roots) or (bool(self.url) and self.is_driver)

    def is_read_after_end(self) -> bool:
        """Return whether the executor has ended and other hosts may read its map outputs: Spark's shuffle
        service serves its files, and its homes exist. Homes that are kept are read as well. Host and boot are
        not checked: only executors of this host and this boot register here."""
        if not replace(self.owner, keep=False).leaves_outputs_to_spark or self.owner.is_live():
            return False
        below = (HOME_ROOT, self.owner.application, self.owner.home_name)
        return not all(is_gone(os.path.join(root, *below)) for root in self.roots)

    def driver_has_ended(self) -> bool:
        """Return whether the application's driver is known to have been here and to have ended."""
        if self.is_driver:
            return not self.owner.is_live()
        return bool(self.driver_pid) and not is_running(self.driver_pid, self.driver_started)

    def is_needed(self) -> bool:
        """Return whether the rendezvous must remember it."""
        return self.has_homes_to_remove or self.owner.is_live() or self.is_read_after_end()

    def phase(self) -> ApplicationPhase:
        """Return what the registration says of its application."""
        owner = self.owner
        if owner.is_live():
            return ApplicationPhase.LIVE
        if owner.application_has_ended():
            return ApplicationPhase.OVER
        if self.is_read_after_end():
            return ApplicationPhase.LIVE
        return ApplicationPhase.WAITING if self.shared_roots and owner.outlived else ApplicationPhase.OVER


def phase_of(registrations: Sequence[Registration]) -> ApplicationPhase:
    """Return what an application's registrations say of it together."""
    phase = max((each.phase() for each in registrations), default=ApplicationPhase.OVER)
    if phase is ApplicationPhase.WAITING and any(each.driver_has_ended() for each in registrations):
        return ApplicationPhase.OVER
    return phase
