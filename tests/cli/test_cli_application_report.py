"""The program that writes the report on an application: where it looks, and what it writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from built_outputs import build
from engine import ENVIRONMENT

from sortshuffle.cli import report_files
from sortshuffle.cli.application_report import FAILED, directories_of, write
from sortshuffle.cli.exchanges import listing_of
from sortshuffle.cli.unseen import PassedOver
from sortshuffle.options import PREFIX, Options

NOW = 1_796_092_472.0
TOKEN = "0" * 32


def document(reports: Path, local: Path, **more: Any) -> dict[str, Any]:
    attempts = [{"startTimeEpoch": round((NOW - 100) * 1000)}]
    return {
        "application": {"id": "app-1", "name": "nightly", "attempts": attempts},
        "stages": [],
        "local_directories": [str(local / "blockmgr-1")],
        "settings": {f"{PREFIX}report": str(reports)},
        **more,
    }


def home(root: Path, name: str = "host-1") -> Path:
    directory = root / "sortshuffle" / "app-1" / name
    directory.mkdir(parents=True)
    return directory


def found(document: dict[str, Any], **settings: str) -> list[str]:
    options = Options.of({f"{PREFIX}{name}": value for name, value in settings.items()})
    return directories_of("app-1", options, document)


def test_map_outputs_lie_in_sparks_directories_or_the_one_above(tmp_path: Path) -> None:
    inner, outer = home(tmp_path / "blockmgr-1"), home(tmp_path)
    expected = [str(inner.parent), str(outer.parent)]
    assert found(document(tmp_path, tmp_path)) == sorted(expected)


def test_map_outputs_lie_where_the_option_says(tmp_path: Path) -> None:
    directory = home(tmp_path / "chosen")
    assert found(document(tmp_path, tmp_path), dir=str(tmp_path / "chosen")) == [str(directory.parent)]


def test_map_outputs_lie_where_tasks_report_them(tmp_path: Path) -> None:
    one, two, gone = home(tmp_path / "a"), home(tmp_path / "blockmgr-1"), str(tmp_path / "gone")
    document_ = document(tmp_path, tmp_path, directories=[str(one), str(two), gone, "s3://bucket/app-1"])
    assert found(document_) == [*sorted([str(one), str(two.parent)]), "s3://bucket/app-1"]


def test_a_directory_within_another_is_looked_at_once(tmp_path: Path) -> None:
    for name in ("a/b", "a-b", "a/b-c"):
        (tmp_path / name).mkdir(parents=True)
    every = [str(tmp_path / name) for name in ("a", "a-b", "a/b", "a/b-c")]
    assert found(document(tmp_path, tmp_path, directories=every)) == [f"{tmp_path}/a", f"{tmp_path}/a-b"]


def test_map_outputs_lie_at_the_url(tmp_path: Path) -> None:
    local = home(tmp_path / "blockmgr-1")
    for name in (f"app-1-{TOKEN}", f"app-10-{TOKEN}"):
        (tmp_path / "stored" / name).mkdir(parents=True)
    url = f"file://{tmp_path}/stored"
    expected = [str(local.parent), f"{tmp_path}/stored/app-1-{TOKEN}"]
    reported = [f"{url}/app-1-{TOKEN}"]
    assert found(document(tmp_path, tmp_path), dir=url) == expected
    assert found(document(tmp_path, tmp_path, directories=reported)) == expected


def test_the_page_has_what_is_there(tmp_path: Path) -> None:
    build(home(tmp_path))
    reports = tmp_path / "made" / "reports"
    path = write(document(reports, tmp_path), NOW)
    assert path == str(reports / "app-1.html")
    page = Path(path).read_text()
    assert "nightly (app-1)" in page
    assert "Exchange 3 of app-1" in page
    assert "No stage ran." in page
    assert os.stat(path).st_mode & 0o777 == 0o600


def test_rows_of_the_largest_exchanges_alone_are_sampled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_files, "MOST_EXCHANGES", 1)
    build(tmp_path, exchange=3, count=10)
    build(tmp_path, exchange=4, count=100)
    small, large = report_files.findings_on(listing_of(str(tmp_path), None, PassedOver()), None)
    assert (small.files.number, small.refusal) == (3, "only those of the largest exchanges are")
    assert (large.files.number, large.refusal) == (4, "")
    assert large.columns


def run(text: bytes, directory: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "sortshuffle.cli.application_report"],
        input=text,
        env={**ENVIRONMENT, **environment},
        cwd=directory,
        capture_output=True,
        timeout=120,
        check=False,
    )
    return subprocess.CompletedProcess(
        done.args, done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode()
    )


def test_names_are_utf_8_and_the_users_backend_does_not_matter(tmp_path: Path) -> None:
    build(home(tmp_path))
    text = json.dumps(document(tmp_path / "é", tmp_path), ensure_ascii=False).encode()
    done = run(text, tmp_path, PYTHONIOENCODING="latin-1", MPLBACKEND="nonsense", PYTHONUTF8="1")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "é" / "app-1.html").is_file()


def test_a_failure_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = run(json.dumps(document(tmp_path / "file", tmp_path)).encode(), tmp_path)
    assert done.returncode == FAILED
    (line,) = done.stderr.splitlines()
    assert line.startswith("the page cannot be written: ")
