"""The examples run as their pages say, give what a plain computation gives, and leave no files behind."""

from __future__ import annotations

import importlib
import random
import re
import subprocess
import sys
from collections import Counter, defaultdict
from math import fsum
from pathlib import Path

import pytest
from engine import ENVIRONMENT, ROOT, names

from sortshuffle.engine import Home

EXAMPLES = ROOT / "examples" / "engine"


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    """Where the example puts its temporary files."""
    directory = tmp_path / "scratch"
    directory.mkdir()
    return directory


def output_of(example: str, scratch: Path, *arguments: Path) -> list[str]:
    """The lines that it prints."""
    done = run(example, scratch, *arguments)
    assert done.stderr == ""
    assert done.returncode == 0
    return done.stdout.splitlines()


def run(example: str, scratch: Path, *arguments: Path) -> subprocess.CompletedProcess[str]:
    """What comes of it. It is alone in its temporary directory, and leaves nothing there."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / example), *map(str, arguments)],
        env=ENVIRONMENT | {"TMPDIR": str(scratch)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert names(scratch) == []
    return done


def files_of(directory: Path, texts: list[str]) -> list[Path]:
    paths = [directory / f"{number}.txt" for number in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    return paths


# ---- word count -----------------------------------------------------------------------------------------

WORDS = 3_000
STOP_WORDS = {"a", "an", "and", "in", "is", "it", "its", "no", "not", "of", "on", "or", "the", "to"}


def counted(texts: list[str]) -> list[str]:
    words = Counter(word for text in texts for word in re.findall("[a-z]+", text.lower()))
    return [f"{word} {words[word]}" for word in sorted(words) if word not in STOP_WORDS]


def some_texts() -> list[str]:
    chosen = random.Random(1)
    letters = "abcdefghijklmnopqrstuvwxyz"
    known = ["".join(chosen.choices(letters, k=chosen.randint(1, 12))) for _ in range(WORDS)] + ["The", "to"]
    return [" ".join(chosen.choices(known, k=20_000)) for _ in range(5)]


def test_words_are_counted(tmp_path: Path, scratch: Path) -> None:
    texts = some_texts()
    found = output_of("word_count.py", scratch, *files_of(tmp_path, texts))
    assert found == counted(texts)


def test_reducers_read_ranges_of_the_subpartitions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several reducers, of which some read several subpartitions; else the test above tests less."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    example = importlib.import_module("word_count")
    files = [str(file) for file in files_of(tmp_path, some_texts())]
    with Home.of(str(tmp_path)) as home:
        dictionary = example.send_dictionary(home)
        outputs = [example.count_words(home, dictionary, files, n) for n in range(example.MAPPERS)]
        assert 1 < example.reducers_for(outputs) < example.SUBPARTITIONS


def test_by_default_words_of_the_documents_are_counted(scratch: Path) -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    assert output_of("word_count.py", scratch) == counted([page.read_text() for page in pages])


# ---- PageRank -------------------------------------------------------------------------------------------


def ranked(edges: list[tuple[int, int]], rounds: int = 20) -> list[str]:
    """What the example prints, computed without a shuffle."""
    vertices = {vertex for edge in edges for vertex in edge}
    points_to: dict[int, list[int]] = {vertex: [] for vertex in vertices}
    for source, target in edges:
        points_to[source].append(target)
    ranks = dict.fromkeys(vertices, 1 / len(vertices))
    lines = []
    for number in range(1, rounds + 1):
        shares = defaultdict(list)
        for vertex, targets in points_to.items():
            for target in targets:
                shares[target].append(ranks[vertex] / len(targets))
        nowhere = fsum(ranks[vertex] for vertex, targets in points_to.items() if not targets)
        to_all = (1 - 0.85 + 0.85 * nowhere) / len(vertices)
        new = {vertex: to_all + 0.85 * fsum(shares[vertex]) for vertex in vertices}
        moved = max(abs(new[vertex] - ranks[vertex]) for vertex in vertices)
        lines.append(f"round {number}: moved by {moved!r}")
        ranks = new
    assert fsum(ranks.values()) == pytest.approx(1)
    highest = sorted(ranks, key=lambda vertex: (-ranks[vertex], vertex))[:5]
    return lines + [f"vertex {vertex}: {ranks[vertex]!r}" for vertex in highest]


def test_pages_are_ranked(tmp_path: Path, scratch: Path) -> None:
    chosen = random.Random(2)
    # vertices from 80 on point nowhere
    edges = [(chosen.randrange(80), chosen.randrange(100)) for _ in range(600)]
    (file,) = files_of(tmp_path, ["".join(f"{source} {target}\n" for source, target in edges)])
    assert output_of("pagerank.py", scratch, file) == ranked(edges)


def test_by_default_a_small_graph_is_ranked(scratch: Path) -> None:
    edges = [(v, (v * step + step) % 200) for v in range(200) if v % 7 for step in (2, 3, v % 5)]
    assert output_of("pagerank.py", scratch) == ranked(edges)


def test_workers_that_fail_leave_nothing_either(tmp_path: Path, scratch: Path) -> None:
    (file,) = files_of(tmp_path, [f"0 {2**63}\n"])  # no int64
    done = run("pagerank.py", scratch, file)
    assert (done.returncode, done.stdout) == (1, "")
    assert "EOFError" in done.stderr.splitlines()[-1]


# ---- snapshots ------------------------------------------------------------------------------------------


def test_by_default_snapshots_of_two_branches_are_taken(scratch: Path) -> None:
    *snapshots, sent = output_of("snapshots.py", scratch)
    assert snapshots == [
        "snapshot 1: alice 500, bob 300, carol 700",
        "snapshot 2: alice 650, bob 300, carol 500",
        "snapshot 3: alice 650, bob 325, carol 600",
    ]
    assert int(sent.removesuffix(" bytes came through the service")) > 0


def test_snapshots_are_balances_at_the_end_of_a_day(tmp_path: Path, scratch: Path) -> None:
    chosen = random.Random(3)
    units = {"cent": 1, "euro": 100}
    balances: Counter[str] = Counter()
    at_end: dict[int, str] = {}
    texts = ["unit cent\n", "unit euro\n", "unit cent\n"]
    for day in range(1, 31):
        for branch, unit in enumerate(("cent", "euro", "cent")):
            for _ in range(chosen.randint(1, 40)):
                account, amount = f"account-{chosen.randrange(9)}", chosen.randint(-500, 500)
                texts[branch] += f"{day} {account} {amount}\n"
                balances[account] += units[unit] * amount
        told = ", ".join(f"{account} {balances[account]}" for account in sorted(balances))
        at_end[day] = f"snapshot {day}: {told}"
    *found, sent = output_of("snapshots.py", scratch, *files_of(tmp_path, texts))
    assert found == list(at_end.values())
    assert int(sent.removesuffix(" bytes came through the service")) > 0
