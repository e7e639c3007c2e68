"""What an executor's workers tell each other of services that do not answer."""

from __future__ import annotations

from pathlib import Path

from sortshuffle.spark.worker.silence import SILENT_FOR, Silence


def test_what_is_silent_is_asked_again_after_a_while(tmp_path: Path) -> None:
    now = 100.0
    first, second = (Silence(str(tmp_path), lambda: now) for _ in range(2))
    first.note(["a:1"])
    assert second.others(["a:1", "b:1"]) == ["b:1"]
    now += SILENT_FOR - 1
    second.note(["b:1"])
    now += 1
    assert first.others(["a:1", "b:1"]) == ["a:1"]
    (tmp_path / "silent.json").write_text("[1")
    assert first.others(["a:1", "b:1"]) == ["a:1", "b:1"]
    Silence(str(tmp_path / "gone")).note(["a:1"])
