"""`tools/bench/compare`: what is measured, and which answers are equal. Its modules are imported in
processes of their own, as those of `tools/bench` are."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
import uuid
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from engine import ROOT
from test_bench_tool import told

CONTESTANTS = ROOT / "tools" / "bench" / "systems" / "contestants"
MIB = 1 << 20


@pytest.fixture
def groups() -> None:
    program = "from control_group import why_no_groups; print(why_no_groups())"
    if reason := told(program).strip():
        pytest.skip(f"control groups cannot be made here: {reason}")


@pytest.mark.usefixtures("groups")
def test_a_control_group_counts_and_limits_what_is_in_it(tmp_path: Path) -> None:
    program = """
        import json, os, subprocess, sys
        from pathlib import Path
        from control_group import control_group

        work = '''if True:
            import os, sys
            input()
            block = b"x" * (64 << 20)
            with open(sys.argv[1], "wb") as file:
                file.write(block)
            print("done", flush=True)
            input()
            with open(sys.argv[1], "rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                file.read()
            print("read", flush=True)
            input()
        '''
        directory = Path(sys.argv[1]).parent
        with control_group(256 << 20) as group:
            command = [sys.executable, "-c", work, sys.argv[1]]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            group.add(process.pid)
            before = group.usage(directory)
            with group.watched():
                process.stdin.write("\\n")
                process.stdin.flush()
                process.stdout.readline()
            used = group.usage(directory).since(before)
            process.stdin.write("\\n")
            process.stdin.flush()
            process.stdout.readline()
            total = group.usage(directory).since(before)
            process.communicate("\\n")
            left = group.wait_until_empty()
        after = total.since(used)
        read = [after.disk_read, after.disk_reads]
        shared = [total.foreign, total.stolen]
        print(json.dumps([used.cpu, used.written, *read, group.peak, left, process.returncode, shared]))
    """
    cpu, written, read, reads, peak, left, status, shared = json.loads(told(program, str(tmp_path / "file")))
    device = os.stat(tmp_path).st_dev
    has_disk = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat").exists()
    assert (read is not None) is has_disk  # else the files are in memory, for example
    if has_disk:
        assert read >= 64 * MIB  # of all processes, other tests' as well
        assert 1 <= reads <= read / 512
    assert cpu > 0
    assert min(shared) >= 0
    assert 64 * MIB <= written < 65 * MIB
    assert 64 * MIB < peak < 128 * MIB
    assert (left, status) == ([], 0)


@pytest.mark.usefixtures("groups")
def test_what_takes_more_memory_than_its_control_group_has_is_killed() -> None:
    program = """
        import subprocess, sys
        from control_group import control_group

        work = "import sys; input(); block = b'x' * (int(sys.argv[1]) << 20); print(len(block) >> 20)"

        def run(size):
            with control_group(96 << 20) as group:
                command = [sys.executable, "-c", work, str(size)]
                process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
                group.add(process.pid)
                told, _ = process.communicate("\\n")
                group.wait_until_empty()
                print(told.strip() or "nothing", process.returncode)

        run(32)
        run(192)
    """
    assert told(program) == "32 0\nnothing -9\n"


@pytest.mark.usefixtures("groups")
def test_a_control_group_does_not_pay_for_files_that_were_read_outside(tmp_path: Path) -> None:
    program = """
        import os, subprocess, sys
        from control_group import control_group
        from systems.turn import read_outside

        path = sys.argv[1]
        with open(path, "wb") as file:
            file.write(os.urandom(64 << 20))
            file.flush()
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        read_outside(path)

        work = "import sys; input(); open(sys.argv[1], 'rb', buffering=0).read(); print(flush=True); input()"
        with control_group(256 << 20) as group:
            command = [sys.executable, "-c", work, path]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            group.add(process.pid)
            process.stdin.write("\\n")
            process.stdin.flush()
            process.stdout.readline()
            lines = (group._memory / "memory.stat").read_text().splitlines()
            found = dict(line.split() for line in lines)
            process.communicate("\\n")
            group.wait_until_empty()
        print(found["file" if "file" in found else "total_cache"])
    """
    assert int(told(program, str(tmp_path / "file"))) < 8 * MIB  # of 64


@pytest.mark.usefixtures("groups")
def test_a_control_group_ends_what_does_not_end_itself() -> None:
    program = """
        import json, subprocess, sys
        import control_group
        control_group.PATIENCE = 0.2
        with control_group.control_group(256 << 20) as group:
            process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
            group.add(process.pid)
            killed = group.wait_until_empty()
            print(killed == [process.pid], process.wait())
    """
    assert told(program) == "True -9\n"


@pytest.mark.usefixtures("groups")
def test_what_a_killed_program_has_left_in_its_control_groups_is_ended() -> None:
    """That of another owner goes on."""
    program = """
        import subprocess, sys
        from control_group import ROOT, control_group, kill_left

        killed = '''if True:
            import os, signal, subprocess, sys
            from control_group import control_group
            with control_group(256 << 20, sys.argv[1]) as group:
                quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
                work = subprocess.Popen(["sleep", "60"], **quiet)
                group.add(work.pid)
                print(work.pid, flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
        '''

        def left_by(owner):
            command = [sys.executable, "-c", killed, owner]
            return int(subprocess.run(command, stdout=subprocess.PIPE).stdout)

        def groups(owner):
            return [*ROOT.glob(f"sortshuffle-{owner}-*"), *ROOT.glob(f"*/sortshuffle-{owner}-*")]

        def still_runs(pid):
            try:
                with open(f"/proc/{pid}/stat") as file:
                    return file.read().split()[2] not in "ZX"
            except (FileNotFoundError, ProcessLookupError):
                return False

        ours, other = left_by(sys.argv[1]), left_by(sys.argv[2])
        kill_left(sys.argv[1])
        print(still_runs(ours), groups(sys.argv[1]), still_runs(other), len(groups(sys.argv[2])) > 0)
        kill_left(sys.argv[2])
        print(still_runs(other), groups(sys.argv[2]))
    """
    owners = (f"test-{uuid.uuid4().hex}" for _ in range(2))
    assert told(program, *owners) == "False [] True True\nFalse []\n"


def test_an_answer_may_have_only_a_part_but_not_nothing() -> None:
    program = """
        from systems.rounds import _is_right as right
        expected = {"rows": "3", "v": "1"}
        print(right(expected, expected), right({"rows": "3"}, expected), right([1], [1]))
        wrong = {"rows": "4"}, {}, {"n": "3"}, [1]
        print(*(right(each, expected) for each in wrong))
    """
    assert told(program) == "True True True\nFalse False False False\n"


def test_the_expected_answers_are_those_of_the_input(tmp_path: Path) -> None:
    facts = {"few": [1, 2, 1, 1], "id": [0, 2, 2, 1], "v": [0.5, 1.0, 2.0, 4.0]}
    others = {"id": [2, 0, 1], "w": [10.0, 20.0, 40.0]}
    groups = {"k": [1, 1, 2, 1], "v": [3.0, 7.0, 5.0, 4.0]}
    rows = {"v": [1.5, 2.0], "w": [0.25, 1.0], "s": ["four", "fives"]}
    for name, columns in (("facts", facts), ("others", others), ("groups", groups), ("rows", rows)):
        pq.write_table(pa.table(columns), tmp_path / f"{name}.parquet")
    program = """
        import sys
        from systems import expected

        facts, others, groups, rows = ([f"{sys.argv[1]}/{name}.parquet"] for name in sys.argv[2:])
        print(expected._aggregate(facts, "few"), expected._join(facts, others), expected._groups(groups))
        print(expected._exchange(rows + rows, 4))
    """
    found = told(program, str(tmp_path), "facts", "others", "groups", "rows").splitlines()
    # 0.5 with 20, 1 and 2 with 10, 4 with 40
    assert found[0] == "[2, 4, '7.5'] [4, '7.5', '80'] [2, '4']"
    assert found[1] == "{'rows': '4', 'letters': '18', 'v': '7', 'w': '2.5'}"


@pytest.fixture
def contestant(tmp_path: Path) -> Path:
    """A contestant that starts with a word to its standard error. Its `writes` is a case that fills its
    output, and gives the directory and what the directory and those before it had in them."""
    program = """
        import os, sys
        from contextlib import contextmanager

        sys.path.insert(0, sys.argv[2])
        from turn import take_part

        @contextmanager
        def start(limits):
            print("started", file=sys.stderr)
            yield []

        def writes(outputs, word, output):
            before = [os.listdir(path) for path in (*outputs, output) if os.path.exists(path)]
            with open(f"{output}/{word}", "w") as file:
                file.write(word)
            outputs.append(output)
            return [len(set(outputs)), before, output]

        def counts(outputs, word):
            return word

        take_part(start, {"writes": writes, "counts": counts}, ())
    """
    path = tmp_path / "contestant.py"
    path.write_text(textwrap.dedent(program))
    return path


def takes_part(contestant: Path, case: str, lines: str) -> subprocess.CompletedProcess[str]:
    """Run a contestant with two warm-ups in a directory `turn` beside it."""
    directory = contestant.parent / "turn"
    directory.mkdir()
    config = {"case": case, "arguments": {"word": "w"}, "cores": 1, "memory": MIB, "warm_ups": 2}
    return subprocess.run(
        [sys.executable, contestant, json.dumps({**config, "directory": str(directory)}), CONTESTANTS],
        input=lines,
        capture_output=True,
        text=True,
        check=True,
    )


def test_each_run_gets_an_empty_directory_and_the_files_of_the_last_run_stay(contestant: Path) -> None:
    done = takes_part(contestant, "writes", "\n\n")
    ready, run = map(json.loads, done.stdout.splitlines())
    runs, before, output = run["answer"]
    assert len(ready["warm_ups"]) == 2
    assert (runs, before) == (3, [[]])  # those of the warm-ups are gone, the third is empty
    left = [str(path) for path in (contestant.parent / "turn").rglob("*")]
    assert left == [output, f"{output}/w"]  # for the one who asks


def test_a_contestant_that_is_not_asked_does_not_start(contestant: Path) -> None:
    done = takes_part(contestant, "writes", "")
    assert (done.stdout, done.stderr) == ("", "")


def test_a_contestant_that_is_not_asked_again_ends_without_another_run(contestant: Path) -> None:
    done = takes_part(contestant, "writes", "\n")
    (ready,) = map(json.loads, done.stdout.splitlines())
    assert (len(ready["warm_ups"]), done.stderr) == (2, "started\n")
    assert [path.name for path in (contestant.parent / "turn").rglob("w")] == []


def test_a_case_that_writes_no_files_gets_no_directory_for_them(contestant: Path) -> None:
    done = takes_part(contestant, "counts", "\n\n")
    assert json.loads(done.stdout.splitlines()[1])["answer"] == "w"


def test_a_sort_is_read_in_the_order_that_is_told(tmp_path: Path) -> None:
    keys = [bytes([at]) * 10 for at in range(6)]
    for name, part in (("a", keys[3:]), ("b", keys[:3])):
        table = pa.table({"key": part, "payload": [b"p" * 90] * 3})
        pq.write_table(table, tmp_path / f"{name}.parquet")
    program = """
        import sys
        from systems.work import WORKS
        (sort,) = (work for work in WORKS if work.name == "sort")
        files = [f"{sys.argv[1]}/{name}.parquet" for name in "ab"]
        print(sort.check(files[::-1])[0])
        try:
            sort.check(files)
        except ValueError as error:
            print("not in order" if "is not in order" in str(error) else error)
    """
    assert told(program, str(tmp_path)) == "6\nnot in order\n"


def test_lines_of_code_are_those_that_a_user_writes() -> None:
    program = """
        import sys
        sys.path.insert(0, sys.argv[1])
        import pyspark_jobs, turn
        print(turn._lines_of(pyspark_jobs.exchange), turn._lines_of(pyspark_jobs.groups))
    """
    assert told(program, str(CONTESTANTS)) == "3 4\n"


def test_sparks_own_shuffle_is_not_measured_in_place_of_ours(tmp_path: Path) -> None:
    """A checkout may lack the manager's jar. Then plain jobs of a session would use Spark's shuffle."""
    program = """
        import sys
        sys.path.insert(0, sys.argv[1])
        import on_sortshuffle
        from sortshuffle.errors import UsageError
        from sortshuffle.spark.manager import jar
        from turn import Limits

        jar.JAR_NAME = "no.jar"
        try:
            with on_sortshuffle.start(Limits(2, 1 << 30, sys.argv[2], "exchange")):
                print("it has started")
        except UsageError as error:
            print("no.jar" in str(error))
    """
    assert told(program, str(CONTESTANTS), str(tmp_path)) == "True\n"


def test_every_case_is_known_to_the_systems_that_take_part() -> None:
    """The names of cases, without loading the systems."""
    for path in CONTESTANTS.glob("on_*.py"):
        text = path.read_text()
        names = (
            ["exchange"] if path.stem == "on_flink" else ["exchange", "sort", "groups", "aggregate", "join"]
        )
        if "pyspark_jobs" in text:
            continue
        assert [name for name in names if f"def {name}(" not in text] == [], path.name


def test_the_jar_is_built_for_this_package_alone_and_each_system_does_what_it_can(tmp_path: Path) -> None:
    program = """
        import sys
        from pathlib import Path
        import harness
        import systems.__main__ as command
        from systems.rounds import Outcome

        def compared(work, able, rounds, quick):
            print(work.name, rounds, *able)
            return Outcome()

        command.compare = compared
        command.why_no_groups = str
        command.python_of = lambda name: name
        command.write_record = lambda work, turns, failures, commit: commit == "commit"
        command.print_table = lambda *_: None
        command.DATA = Path(sys.argv[1])
        harness.commit = lambda: print("commit") or "commit"
        harness.build_jar = lambda: print("jar")
        for line in sys.argv[2:]:
            print(">", line)
            try:
                command.main(line.split(), standalone_mode=False)
            except SystemExit as ended:
                print(ended.code)
    """
    lines = (
        "--case exchange --case join --system dask --system flink",
        "--case join --rounds 3",
        "--quick --case exchange",
        "--quick --peers --case exchange",
        "--quick --case exchange --system frames",
    )
    peers = "dask ray flink duckdb polars"
    joined = "dask ray duckdb polars"
    expected = [
        f"> {lines[0]}",
        "commit",
        "\nexchange: exchange of 10 M rows (0.7 GB), 64 partitions",
        "exchange 5 dask flink",
        "\njoin: join of 30 M with 7.5 M rows",
        "join 5 dask",
        "False",
        f"> {lines[1]}",
        "commit",
        "jar",
        "\njoin: join of 30 M with 7.5 M rows",
        f"join 3 sortshuffle frames spark {joined}",
        "False",
    ]
    for line, able in zip(
        lines[2:], ("sortshuffle frames spark", f"sortshuffle frames spark {peers}", "frames"), strict=True
    ):
        fewer = "\nexchange: exchange of 10 M rows (0.7 GB), 64 partitions, but 500 times fewer rows"
        expected += [f"> {line}", "commit", "jar", fewer, f"exchange 1 {able}", "False"]
    assert told(program, str(tmp_path), *lines) == "\n".join(expected) + "\n"


def test_after_a_case_in_which_the_checkout_was_changed_no_other_is_compared(tmp_path: Path) -> None:
    program = """
        import sys
        from pathlib import Path
        import harness
        import systems.__main__ as command
        from systems.rounds import Outcome

        command.compare = lambda *_: Outcome()
        command.why_no_groups = str
        command.python_of = lambda name: name
        command.write_record = lambda *_: False
        command.print_table = lambda *_: None
        command.DATA = Path(sys.argv[1])
        try:
            command.main(["--case", "exchange", "--case", "join", "--system", "dask"], standalone_mode=False)
        except SystemExit as ended:
            print(ended.code)
    """
    shown = told(program, str(tmp_path))
    assert shown.startswith("\nexchange: ")
    assert "join" not in shown
    assert "the checkout was changed" in shown


def test_what_a_killed_comparison_has_left_is_deleted_and_two_at_once_are_not_run(tmp_path: Path) -> None:
    (tmp_path / "turn-killed" / "files").mkdir(parents=True)
    (tmp_path / "compare-input").mkdir()
    program = """
        import os, sys
        from pathlib import Path
        from systems.turn import alone

        data = Path(sys.argv[1])
        with alone(data):
            print(*sorted(os.listdir(data)))
            try:
                with alone(data):
                    print("two at once")
            except SystemExit as ended:
                print(ended.code)
        with alone(data):
            print("the next one")
    """
    expected = "compare-input lock\nanother comparison runs in this checkout\nthe next one\n"
    assert told(program, str(tmp_path)) == expected


def test_turns_of_a_checkout_that_was_changed_meanwhile_do_not_count(tmp_path: Path) -> None:
    program = """
        import json, sys
        from pathlib import Path
        import harness
        from systems.results import write_record
        from systems.work import WORKS

        harness.RESULTS = Path(sys.argv[1])
        harness.commit = lambda: {"commit": "new", "dirty": False}
        for commit in ("old", "new"):
            print(write_record(WORKS[0], {}, {}, {"commit": commit, "dirty": False}))
        for record in map(json.loads, harness.RESULTS.read_text().splitlines()):
            print(record["commit"], record["dirty"])
    """
    assert told(program, str(tmp_path / "results.jsonl")) == "False\nTrue\nold True\nnew False\n"


def test_a_record_of_a_failure_does_not_say_where_the_checkout_is(tmp_path: Path) -> None:
    program = """
        import json, sys
        from pathlib import Path
        import harness
        from systems.results import write_record
        from systems.work import WORKS

        harness.RESULTS = Path(sys.argv[1])
        harness.commit = lambda: {"commit": "one", "dirty": False}
        words = f"in {harness.ROOT}/tools/bench/a.py and {harness.ROOT}/b.py"
        write_record(WORKS[0], {}, {"dask": words}, harness.commit())
        print(json.loads(harness.RESULTS.read_text())["failures"])
    """
    assert told(program, str(tmp_path / "results.jsonl")) == "{'dask': 'in tools/bench/a.py and b.py'}\n"


def test_what_cannot_be_installed_ends_the_run_before_it_begins(tmp_path: Path) -> None:
    program = """
        import sys
        from pathlib import Path
        import systems.__main__ as command
        from systems.environments import InstallError

        def fails(name):
            raise InstallError(f"pip install {name} failed")

        command.why_no_groups = str
        command.python_of = fails
        command.compare = print
        command.DATA = Path(sys.argv[1])
        try:
            command.main(["--case", "join", "--system", "dask"], standalone_mode=False)
        except SystemExit as ended:
            print(ended.code)
    """
    assert (
        told(program, str(tmp_path))
        == "pip install dask failed\nCompare without it: name the others by --system\n"
    )


def test_a_record_counts_for_the_page_if_all_systems_that_can_took_part() -> None:
    program = """
        import json
        from systems.page import records
        from systems.work import WORKS

        (join,) = (work for work in WORKS if work.name == "join")

        def line(commit, systems, failures=(), turns=5, **more):
            record = {"case": "compare join", "commit": commit, "dirty": False, **more}
            record["systems"] = {name: [{}] * turns for name in systems}
            return json.dumps(record | {"failures": dict.fromkeys(failures)})

        every = [name for name in join.systems if name != "ray"]
        first = line("complete", every, ["ray"])
        others = [line("two", ["dask", "frames"]), line("none", [], join.systems), line("no ray", every)]
        others += [line("turns", every, ["ray"], turns=2), line("dirty", every, ["ray"], dirty=True)]
        others += [line("case", every, ["ray"], case="manager join")]
        for lines in ([first], [first, *others], [*others, first], others):
            print(*(found["commit"] for found in records(lines).values()))
    """
    assert told(program).split("\n") == ["complete", "complete", "complete", "", ""]


def test_the_origin_tells_what_differed_between_systems_and_what_went_to_others() -> None:
    program = """
        from systems.page import section_of

        def turn(seconds, foreign, **versions):
            usage = {"cpu": 1.0, "written": 0, "foreign": foreign, "stolen": 0.5}
            others = {"usage": usage, "peak": 0, "files": 0, "lines": 1, "versions": versions}
            return {"seconds": seconds, **others}

        shared = {"pyarrow": "26", "pandas": "2"}
        systems = {
            "frames": [turn(10.0, 0.0, pyspark="4", **shared), turn(5.0, 0.5, pyspark="4", **shared)],
            "dask": [turn(20.0, 1.0, dask="7", pyarrow="26", pandas="3")],
            "flink": [turn(20.0, 1.0, **{"apache-flink": "8"})],
        }
        about = {"about": "a case", "time": "2026-01-02T03", "commit": "c" * 40, "machine": "M"}
        record = {**about, "python": "3", "systems": systems, "failures": {"ray": "it ended"}}
        print(section_of("a", record).splitlines()[-1])
    """
    origin = "PySpark 4, pyarrow 26, pandas 2, Dask 7 (pandas 3), Flink 8."
    others = "Others took at most 10.0% of the cores' time in a timed run. Failed: ray."
    assert told(program) == f"2026-01-02, commit ccccccc, 1 turns each; M; Python 3, {origin} {others}\n"


def test_the_page_has_the_tables_and_plots_of_the_records(tmp_path: Path) -> None:
    """They are not edited by hand, and no later record is left out."""
    page = ROOT / "docs" / "comparison.md"
    (tmp_path / "comparison.md").write_text(page.read_text())
    program = """
        import sys
        from pathlib import Path
        from systems.page import write_page
        print(*write_page(Path(sys.argv[1])))
    """
    cases = told(program, str(tmp_path / "comparison.md")).split()
    assert {"exchange", "aggregate-few"} <= set(cases)
    assert (tmp_path / "comparison.md").read_text() == page.read_text()
    for case in cases:
        drawn, kept = ((path / "comparison" / f"{case}.svg").read_text() for path in (tmp_path, page.parent))
        texts = re.findall(r">([^<>\n]+)</text>", drawn)
        assert {"sortshuffle", "frames", "spark"} <= set(texts)
        assert re.findall(r">([^<>\n]+)</text>", kept) == texts
