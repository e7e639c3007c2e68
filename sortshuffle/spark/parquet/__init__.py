"""Scans Parquet files in Python, finding and interpreting them as Spark's own reader does.

    paths           how paths are spelled
    settings        the options of a reader and the settings of its session
    file_systems    the file system of the paths, in a form that travels to the workers
    listing         what a directory holds, links followed
    globs           Hadoop's path patterns
    finding         the files that paths stand for
    partitions      columns from directories named ``column=value``; partition_values: their types
    file_schema     the schema of one file, in Spark's types
    merging         one schema made from several
    fitting         a file's columns converted to the requested types; conversions: which are allowed
    files           the driver's side of a scan, built on the other modules
    pruning         the directories and row groups that a condition excludes
    footers         which row groups are scanned, and their sizes
    packing         row groups divided among tasks
    scanning        the worker's side of a scan

Spark's rules were derived from its documentation, its messages and its behaviour on generated files. The
tests compare each rule with Spark itself.
"""
