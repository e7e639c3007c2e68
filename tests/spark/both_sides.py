"""The same session twice, with the shuffle manager and without it, and how both are compared.

Where the sessions run can be told by the environment, for the runs that take too long for each time
(`tools/manager_matrix`).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from served_session import ON_EXECUTORS, PATIENCE, Answer, Session

from sortshuffle.format.header import DATA_MAGIC, FileHeader

MASTER = os.environ.get("SORTSHUFFLE_MATRIX_MASTER", "local[2]")
ONE_HOST = MASTER.startswith("local[")
CONTROL = "control rows of sortshuffle's own frames and RDDs"


CODEC_JOBS = ("aggregate", "big_rows", "reduce_by_key", "java_group_by_key", "kryo")


class Sides:
    """The same session twice."""

    def __init__(self, directory: Path, settings: dict[str, str], plain: Session | None = None) -> None:
        """``plain``: another's session without the manager, for settings that mean nothing to it."""
        here, environment = place()
        chosen = {**here, **settings}
        self.ours = Session(directory / "ours", True, chosen, environment)
        self.plain = plain or Session(directory / "plain", False, chosen, environment)
        self._made = [self.ours] if plain else [self.ours, self.plain]

    def equal(self, job: str, control: int = 0, **arguments: Any) -> Answer:
        """Run a job on both sides. What it gives is equal, and all its shuffles are the manager's but for so
        many of ``control`` rows. Returns the manager's answer."""
        ours, plain = (side.start(job, **arguments) for side in (self.ours, self.plain))
        expected, found = plain.result(PATIENCE), ours.result(PATIENCE)
        assert found.value == expected.value
        assert found.shuffles == expected.shuffles > 0
        decisions = {"sortshuffle": found.shuffles - control, CONTROL: control}
        assert found.decisions == {decision: count for decision, count in decisions.items() if count}
        return found

    def both(self, job: str, **arguments: Any) -> None:
        """Run a job on both sides that only makes something ready."""
        waiting = [side.start(job, **arguments) for side in (self.ours, self.plain)]
        for each in waiting:
            each.result(PATIENCE)

    def writes(self, codec: str) -> None:
        """Data of all kinds goes through map outputs of this codec."""
        for job in CODEC_JOBS:
            self.equal(job)
        kept = self.ours.run("hold_rows", name="kept").value["shuffle"]
        headers = [FileHeader.unpack(path.read_bytes(), DATA_MAGIC) for path in self.ours.outputs_of(kept)]
        self.ours.run("forget_held", name="kept")
        assert {header.codec.name.lower() for header in headers} == {codec}

    def kill(self) -> None:
        for session in self._made:
            session.kill()


def place() -> tuple[dict[str, str], dict[str, str]]:
    """Settings and variables of sessions at `MASTER`."""
    settings = {"spark.master": MASTER}
    if ONE_HOST:
        return settings, {}
    settings |= {**ON_EXECUTORS, "spark.executor.memory": "768m"}
    if MASTER.startswith("local"):
        return settings, {}
    # a core on each host for each side
    return {**settings, "spark.cores.max": "3", "spark.locality.wait": "0s"}, {"SPARK_LOCAL_IP": "127.0.0.1"}
