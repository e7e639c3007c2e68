"""Settings of Spark's shuffle with which control rows would not stay with map outputs are refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest
from job_process import run_job

from sortshuffle.errors import UnsupportedError
from sortshuffle.options import Options
from sortshuffle.spark.session.sparks_shuffle import check_sparks_shuffle

JOBS = Path(__file__).parents[1] / "jobs"
DECOMMISSION = {"spark.decommission.enabled": "true", "spark.storage.decommission.enabled": "true"}
PUSH = {"spark.shuffle.push.enabled": "true", "spark.shuffle.service.enabled": "true"}


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"spark.shuffle.useOldFetchProtocol": "true"}, "spark.shuffle.useOldFetchProtocol=true"),
        ({"spark.shuffle.manager": "org.other.Manager"}, "spark.shuffle.manager=org.other.Manager"),
        (
            {"spark.shuffle.sort.io.plugin.class": "org.other.IO"},
            "spark.shuffle.sort.io.plugin.class=org.other.IO",
        ),
        (PUSH, "spark.shuffle.push.enabled=true"),
        (DECOMMISSION, "spark.storage.decommission.shuffleBlocks.enabled=true"),
    ],
    ids=["protocol", "manager", "plug-in", "push", "decommission"],
)
def test_what_does_not_go_together_is_refused_by_name(settings: dict[str, str], named: str) -> None:
    with pytest.raises(UnsupportedError, match="sortshuffle do not work with") as refused:
        check_sparks_shuffle(settings, Options())
    assert named in str(refused.value)
    at_url = Options.of({"spark.sortshuffle.dir": "s3://bucket/prefix"})
    check_sparks_shuffle(settings, at_url)  # where nothing is deleted with Spark's files


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"spark.shuffle.manager": "SORT"},
        {"spark.shuffle.manager": "org.sortshuffle.SortMergeShuffleManager"},
        {"spark.shuffle.sort.io.plugin.class": "org.sortshuffle.Storage"},
        {"spark.shuffle.useOldFetchProtocol": "false"},
        {"spark.shuffle.push.enabled": "true"},  # without Spark's service it does nothing
        {"spark.shuffle.service.enabled": "true"},
        {**DECOMMISSION, "spark.storage.decommission.shuffleBlocks.enabled": "false"},
        {**DECOMMISSION, "spark.decommission.enabled": "false"},
        {"spark.storage.decommission.shuffleBlocks.enabled": "true"},
    ],
)
def test_what_goes_together_is_not(settings: dict[str, str]) -> None:
    check_sparks_shuffle(settings, Options())


def test_both_doors_ask_the_sparkcontext() -> None:
    """What a session beside it says has no effect."""
    found = run_job(JOBS / "old_protocol.py")
    refused, taken = ["UnsupportedError"] * 2, ["nothing"] * 2
    assert found == {
        "true": {"alone": refused, "beside": refused},
        "false": {"alone": taken, "beside": taken},
    }
