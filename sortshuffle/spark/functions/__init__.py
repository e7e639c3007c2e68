"""Users' functions in a Python worker, called as PySpark's own worker calls them.

Between two exchanges the functions of a `ShuffleFrame` run chained, without Spark's operators between them.
Each PySpark method has an adaptor, which wraps the function: batches (or the tables of groups) go in, batches
of the declared wire schema come out. The rules are those of PySpark 4.3's worker, and of the JVM that reads
its results. Pandas conversion is PySpark's own code. The differences:

* A result that crashes Spark's task in the JVM is a `SchemaMismatchError` here, which names function, column
  and types.
* Other representations of the declared types are converted (`sortshuffle.spark.schema.conform`), also where
  PySpark accepts only one: text with 64-bit offsets, any time zone's label, any unit of time.
* Every field that a function gets is nullable and has no metadata.

Invariants:

* An adaptor is made on the driver, where a bad schema or signature fails at the call. It is pickled to the
  tasks with every setting it needs. It keeps no state, so one adaptor serves any number of tasks.
* A function's error stays the same object; its traceback lacks our frames above the function. An error of the
  function's input is raised even if the function swallows it.
* Batches without rows are not passed on. One result is held at a time, and small ones of groups until they
  are joined (`compute.groups.gathering`).
* Closing an adaptor's iterator closes the function's, then the input.

    conf           the session's settings that matter to functions
    signatures     names, arguments and type hints of functions
    declared       the declared result of a function, and its checks
    conversion     between Arrow and pandas, by PySpark's own code
    running        calls of users' functions, and their errors
    maps           mapInArrow, mapInPandas
    grouped        groupBy().applyInArrow and applyInPandas, on whole groups and on iterators
    group_frames   groups as pandas frames, many converted at a time
    cogrouped      cogroup().applyInArrow and applyInPandas
"""
