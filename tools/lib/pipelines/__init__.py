"""Random pipelines: chains of DataFrame calls, in a session of `sortshuffle.session` and in plain PySpark.

functions    the functions and the tables that pipelines use
actions      the actions that end pipelines
draw         draws a pipeline from a seed, as PySpark code
compare      runs a pipeline on both sides, and shortens one that differs

`tools/soak --pipelines` runs thousands, tests/spark/test_random_pipelines.py some dozens.
"""
