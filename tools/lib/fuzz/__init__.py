"""Fuzzing of what comes from others: data files, index files, and the frames of both protocols.

    targets     what is fuzzed: a check of some bytes, and bytes to begin with
    run         one target for some time, by atheris or by chance
    __main__    tools/fuzz: each target in a process of its own, and what becomes of a case that is found

What a target finds is kept in tests/fuzz_cases/TARGET, and replayed by tests/test_fuzz_cases.py.
"""
