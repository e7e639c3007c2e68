"""`tools/bench`: when a side has settled, what is looked at beside times, what verifies a case. Its modules
are imported in processes of their own: some are called as modules of these tests are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap

from engine import ENVIRONMENT, ROOT


def told(program: str, *arguments: str, status: int = 0) -> str:
    """What a program that can import the benchmark's modules prints."""
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "tools" / "bench", ROOT / "tools" / "lib")))
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *arguments],
        env={**ENVIRONMENT, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stderr
    return done.stdout


def test_when_a_side_has_settled() -> None:
    cases: list[tuple[list[float], bool]] = [
        ([10.0, 10.0], True),
        ([10.0, 10.4], True),
        ([10.0, 9.6], True),
        ([10.0, 9.0], False),
        ([10.0, 10.0, 30.0], False),  # much slower is not settled either
        ([10.0, 30.0, 10.2], True),  # as the best
        ([9.0, 10.0, 10.1], True),  # as the one before: the best was quick by chance
        ([30.0, 20.0, 10.0], False),
    ]
    program = (
        "import json, sys, rounds; print([rounds.has_settled(each) for each in json.loads(sys.argv[1])])"
    )
    found = told(program, json.dumps([walls for walls, _ in cases]))
    assert found == f"{[has_settled for _, has_settled in cases]}\n"


def test_a_case_that_has_not_settled_is_marked_in_the_table() -> None:
    program = """
        from report import titled
        from rounds import Measured
        one = {"ours": {}}
        for found in (Measured(), Measured(warm_ups=[one]), Measured(warm_ups=[one], settled=True)):
            print(titled("a case", found))
    """
    assert told(program).splitlines() == ["a case", "a case (NOT SETTLED)", "a case"]


def test_a_warm_up_that_never_settles_says_so() -> None:
    program = """
        from types import SimpleNamespace
        import rounds
        seconds = iter([32.0, 16.0, 8.0, 4.0])
        rounds.one_pass = lambda *_: {"ours": {"job": SimpleNamespace(wall=next(seconds), cpu=1.0)}}
        found = rounds.Measured()
        pair = SimpleNamespace(sides=[SimpleNamespace(name="ours")])
        rounds._warm_up(pair, [], rounds.Effort(most_warm_ups=4), found, rounds.Digests())
        print(len(found.warm_ups), found.settled, found.is_unsettled)
    """
    *_, says, figures = told(program).splitlines()
    assert says == "    not settled after 4 passes"
    assert figures == "4 False True"


def test_looks_at_memory_are_counted_and_the_highest_stays() -> None:
    program = """
        import threading
        from collections import Counter
        import process_tree
        process_tree.MEMORY_INTERVAL = 0.001
        sizes, done = iter([5, 9, 3]), threading.Event()
        class Tree:
            def memory(self):
                size = next(sizes, 4)
                if size == 4:
                    done.set()
                return Counter(java=size)
        with process_tree.peak_memory([Tree()]) as peaks:
            assert done.wait(60)
        print(dict(peaks.most[0]), peaks.looks >= 4)
    """
    assert told(program) == "{'java': 9} True\n"


def test_what_looking_at_memory_raised_is_raised() -> None:
    program = """
        import threading
        from collections import Counter
        import process_tree
        process_tree.MEMORY_INTERVAL = 0.001
        sizes, done = iter([5]), threading.Event()
        class Tree:
            def memory(self):
                for size in sizes:
                    return Counter(java=size)
                done.set()
                raise KeyError("gone")
        try:
            with process_tree.peak_memory([Tree()]):
                assert done.wait(60)
        except KeyError as error:
            print(error)
    """
    assert told(program) == "'gone'\n"


def test_a_record_of_a_changed_checkout_is_warned_of() -> None:
    program = """
        import harness, report
        from manager_cases import FIRST
        from rounds import Measured
        harness.recording = False
        for dirty in (False, True):
            report.record_case("manager", FIRST, Measured(), [], {"dirty": dirty}, False)
    """
    warning = "  WARNING: the checkout has been changed since its commit; the record says dirty\n"
    assert told(program) == warning


def test_cases_that_promise_a_place_verify_it() -> None:
    program = """
        import pathlib
        import manager_cases
        manager_cases._tables = lambda scale: pathlib.Path("/none")
        for case in manager_cases.CASES:
            (request, *more) = [*case.verification(True), None]
            print(case.name, bool(request and request.arguments["is_placed"]))
    """
    placed = {name for name, is_placed in map(str.split, told(program).splitlines()) if is_placed == "True"}
    assert placed == {
        "repartition-64", "repartition-1000", "spill", "spill-container", "blocks-200", "blocks-1000",
    }  # fmt: skip


def test_sums_of_pairs_tell_the_partitions_apart() -> None:
    program = """
        from manager_jobs import reduce_by_key
        job = reduce_by_key(None, 8, 2)
        one, other = (1, 2, 3), (4, 5, 6)
        print(job.digest([one, other]) == job.digest([one, other]))
        print(job.digest([one, other]) == job.digest([other, one]))
    """
    assert told(program).split() == ["True", "False"]


def test_sums_of_blocks_tell_the_partitions_apart() -> None:
    """Where the same rows are in other partitions, only these say so."""
    program = """
        from pyspark.sql import SparkSession
        from manager_jobs import blocks
        builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
        spark = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
        for is_placed in (False, True):
            jobs = [blocks(spark, 2, partitions, rows, is_placed) for partitions, rows in ((2, 6), (3, 4))]
            print(len({job.digest(job.run()) for job in jobs}))
        spark.stop()
    """
    assert told(program).split() == ["1", "2"]
