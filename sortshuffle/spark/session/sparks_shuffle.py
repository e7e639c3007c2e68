"""Refuses settings of Spark's shuffle with which frames and RDDs do not work.

A map output on local disks lives as long as Spark's shuffle files with its control rows. The executor that
wrote the map output has these files, with the number of the task attempt in their names (`homes.lifetime`).
If the map output is lost, removing these files makes Spark run its producer again (`homes.loss`). A setting
that keeps control rows elsewhere is refused on the driver, before anything runs. Otherwise map outputs that
are still needed would be deleted, or a lost one would fail the job for good.

Spark's external shuffle service is allowed, because it serves these very files. On storage that every host
sees nothing is deleted while the application lives, so every setting is allowed there.
"""

from __future__ import annotations

from collections.abc import Mapping

from sortshuffle.errors import UnsupportedError
from sortshuffle.options import Options
from sortshuffle.spark.manager.settings import (
    MANAGER_CLASS,
    PUSH,
    SHUFFLE_MANAGER,
    SPARKS_OWN,
    SPARKS_SERVICE,
    is_true,
)

LOCAL_FILES = ("", "sort", "tungsten-sort", SPARKS_OWN, MANAGER_CLASS)
"""Shuffle managers whose shuffle files are those of Spark's sort shuffle."""

OLD_PROTOCOL = "spark.shuffle.useOldFetchProtocol"
PLUG_IN = "spark.shuffle.sort.io.plugin.class"
LOCAL_PLUG_INS = (
    "",
    "org.apache.spark.shuffle.sort.io.LocalDiskShuffleDataIO",
    "org.sortshuffle.Storage",  # also keeps local files
)
DECOMMISSION = "spark.decommission.enabled"
MIGRATION = "spark.storage.decommission.enabled"
SHUFFLE_MIGRATION = "spark.storage.decommission.shuffleBlocks.enabled"
"""Spark moves shuffle files only if all three are true. The last is true by default."""

_ELSEWHERE = "or let spark.sortshuffle.dir name storage that every host sees"


def check_sparks_shuffle(settings: Mapping[str, str], options: Options) -> None:
    """Raise `UnsupportedError` if control rows would not be kept together with map outputs. ``settings``: of
    the SparkContext."""
    reason = "" if options.storage_url else _why_not(settings)
    if reason:
        raise UnsupportedError(f"frames and RDDs of sortshuffle do not work with {reason}, {_ELSEWHERE}")


def _why_not(settings: Mapping[str, str]) -> str:
    """Return the setting that is refused, with the remedy; empty if there is none."""
    manager = settings.get(SHUFFLE_MANAGER, "")
    if manager not in LOCAL_FILES and manager.lower() not in LOCAL_FILES:
        return (
            f"{SHUFFLE_MANAGER}={manager}: their control rows must be in files of Spark's own shuffle. Leave"
            " that setting out"
        )
    plug_in = settings.get(PLUG_IN, "")
    if plug_in not in LOCAL_PLUG_INS:
        return (
            f"{PLUG_IN}={plug_in}: their control rows must be in Spark's files on the executors' disks. Leave"
            " that setting out"
        )
    if is_true(settings, OLD_PROTOCOL):
        return (
            f"{OLD_PROTOCOL}=true: Spark's shuffle files then do not tell which task attempt wrote them. Set"
            " it to false"
        )
    if is_true(settings, PUSH) and is_true(settings, SPARKS_SERVICE):
        return (
            f"{PUSH}=true: Spark then has copies of their control rows, which outlive lost map outputs. Set"
            " it to false"
        )
    if _moves_shuffle_files(settings):
        return (
            f"{SHUFFLE_MIGRATION}=true, its default: a decommissioned executor's control rows would be moved,"
            f" and its map outputs not. Set it to false: what such an executor had written is written again"
        )
    return ""


def _moves_shuffle_files(settings: Mapping[str, str]) -> bool:
    effective = {SHUFFLE_MIGRATION: "true", **settings}
    return all(is_true(effective, key) for key in (DECOMMISSION, MIGRATION, SHUFFLE_MIGRATION))
