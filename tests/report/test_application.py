"""`ApplicationRun`: reads what the driver sends; and the part of the page that is made of it."""

from __future__ import annotations

from typing import Any
from xml.etree.ElementTree import Element

import pytest

from sortshuffle.report.application import ApplicationRun
from sortshuffle.report.application_section import add_run
from sortshuffle.report.plots import MOST_STAGES, longest

STARTED = 1_796_092_372.834  # 2026-12-01T02:32:52.834GMT
NOW = STARTED + 100


def spark_stage(number: int, **changed: Any) -> dict[str, Any]:
    return {
        "stageId": number,
        "attemptId": 0,
        "name": f"collect at job.py:{number}",
        "status": "COMPLETE",
        "numTasks": 4,
        "numFailedTasks": 0,
        "submissionTime": "2026-12-01T02:33:02.834GMT",
        "completionTime": "2026-12-01T02:33:05.334GMT",
        "executorRunTime": 6500,
        "inputBytes": 1 << 20,
        "shuffleReadBytes": 2 << 20,
        "outputBytes": 4 << 20,
        "shuffleWriteBytes": 8 << 20,
        "diskBytesSpilled": 0,
        **changed,
    }


def document(*stages: dict[str, Any], **more: Any) -> dict[str, Any]:
    attempts = [{"startTimeEpoch": round(STARTED * 1000), "appSparkVersion": "4.3.0"}]
    return {"application": {"id": "app-1", "name": "job", "attempts": attempts}, "stages": stages, **more}


PYTHON_STAGE = {
    "stage": 5,
    "tasks": 3,
    "wall": 7.5,
    "counts": {"rows_in": 100, "rows_out": 90, "bytes_read": 1024, "memory_peak": 2048},
    "seconds": {"user": 3.0, "wait": 1.0},
    "outputs": {"7": {"counts": {"rows_written": 90, "bytes_written": 512, "regions": 3}, "seconds": {}}},
}


def of(*stages: dict[str, Any], **more: Any) -> ApplicationRun:
    return ApplicationRun.of(document(*stages, **more), NOW)


def body_of(run: ApplicationRun) -> Element:
    body = Element("body")
    add_run(body, run)
    return body


def cells_of(body: Element) -> list[list[str]]:
    return [["".join(cell.itertext()) for cell in row] for row in body.iter("tr")]


def test_a_stage_of_spark() -> None:
    run = of(spark_stage(3))
    (stage,) = run.stages
    assert (run.identifier, run.name, run.seconds) == ("app-1", "job", pytest.approx(100))
    assert (stage.begin, stage.end) == (pytest.approx(10.0), pytest.approx(12.5))
    assert (stage.task_seconds, stage.read_bytes, stage.written_bytes) == (6.5, 3 << 20, 12 << 20)
    assert (stage.label, stage.status, stage.is_own) == ("3", "complete", False)


def test_a_stage_that_did_not_end_lasts_until_the_report() -> None:
    (stage,) = of(spark_stage(3, completionTime=None, status="ACTIVE")).stages
    assert stage.end == pytest.approx(100)


def test_skipped_stages_are_counted() -> None:
    run = of(spark_stage(3), spark_stage(2, submissionTime=None, completionTime=None, status="SKIPPED"))
    assert ([stage.number for stage in run.stages], run.skipped) == ([3], 1)


def test_stages_are_in_the_order_in_which_they_began() -> None:
    later = {"submissionTime": "2026-12-01T02:33:03.000GMT"}
    run = of(spark_stage(4, **later), spark_stage(6), spark_stage(5, attemptId=1), spark_stage(5))
    assert [stage.label for stage in run.stages] == ["5", "5, attempt 2", "6", "4"]


def test_stages_of_this_package_are_known_by_their_names() -> None:
    (stage,) = of(spark_stage(3, name="sortshuffle exchange 3: hash(k) into 8 subpartitions")).stages
    assert stage.is_own


@pytest.mark.parametrize("wrong", [{}, {"application": {}}, document({"stageId": 1, "submissionTime": "x"})])
def test_another_document_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        ApplicationRun.of(wrong, NOW)


def test_the_longest_stages_are_shown_in_their_order() -> None:
    stages = [
        spark_stage(number, completionTime=f"2026-12-01T02:34:{number % 60:02}.000GMT")
        for number in range(MOST_STAGES + 5)
    ]
    run = of(*stages)
    assert [stage.number for stage in longest(run.stages)] == list(range(5, MOST_STAGES + 5))
    captions = ["".join(each.itertext()) for each in body_of(run).iter("figcaption")]
    assert captions[0] == f"{MOST_STAGES + 5} stages in 1 min; the {MOST_STAGES} that took longest are shown"


def test_the_figures_of_stages_are_on_the_page() -> None:
    failed = {"numFailedTasks": 2, "status": "FAILED", "diskBytesSpilled": 1 << 30}
    body = body_of(of(spark_stage(3), spark_stage(4, **failed)))
    assert cells_of(body)[1:] == [
        ["3: collect at job.py:3", "10 s", "2.5 s", "4", "6.5 s", "3.0 MiB", "12.0 MiB", "0 B", "complete"],
        [
            "4: collect at job.py:4",
            "10 s",
            "2.5 s",
            "4, 2 failed",
            "6.5 s",
            "3.0 MiB",
            "12.0 MiB",
            "1.0 GiB",
            "failed",
        ],
    ]
    assert [row.get("class") for row in body.iter("tr")] == [None, None, "warn"]


def test_the_figures_of_python_stages_are_on_the_page() -> None:
    crossing = "mapInArrow(): rows go to Python: the function works on Arrow batches"
    body = body_of(of(spark_stage(3), python_stages=[PYTHON_STAGE], crossings=[crossing]))
    rows = cells_of(body)
    steps = "user 3.0 s, wait 1.0 s"
    assert ["5", "3", "7.5 s", "100", "90", "1.0 KiB", "0 B", "2.0 KiB", steps] in rows
    assert ["7", "5", "90", "512 B", "0 B", "3", "0 times"] in rows
    assert [item.text for item in body.iter("li")] == [crossing]
    captions = ["".join(each.itertext()) for each in body.iter("figcaption")]
    assert captions[1] == "4.0 s in all, of which user took 75%"


def test_an_application_without_stages() -> None:
    body = body_of(of())
    assert [each.text for each in body.iter("p")] == ["No stage ran."]
