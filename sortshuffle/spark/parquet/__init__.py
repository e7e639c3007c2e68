"""Parquet files scanned in Python, found and understood as Spark's own reader does.

    settings        what a reader was told, by options and by the session
    file_systems    which file system paths are on, and how it travels to the workers
    globs           Hadoop's patterns
    finding         the files that paths mean
    partitions      columns from directories named ``column=value``; partition_values: their types
    file_schema     the schema of one file, in Spark's types
    merging         one schema of several
    fitting         a file's columns as the types that are wanted; conversions: which there are
    files           all of that together: what the driver knows of a scan
    pruning         what conditions exclude
    footers         which row groups are scanned, and how large they are
    packing         row groups dealt to tasks
    scanning        what a worker does

Spark's rules were taken from its documentation, its messages and its behaviour on generated files; the tests
compare each with Spark itself.
"""
