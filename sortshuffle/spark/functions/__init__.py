"""Adaptors that call users' functions in a Python worker the way PySpark's own worker does.

The functions of a `ShuffleFrame` run chained between two exchanges, without Spark's operators between them.
Each PySpark method has an adaptor that wraps the function: the adaptor takes batches (or the tables of
groups) and yields batches of the declared wire schema. It follows the rules of PySpark 4.3's worker and of
the JVM that reads that worker's results. PySpark's own code converts to and from pandas. The differences:

* A wrong result raises a `SchemaMismatchError` here, even one that crashes Spark's task in the JVM. The error
  names the function, and then has PySpark's own words.
* Other representations of the declared types are converted (`spark.conforming.conform`) even where
  PySpark accepts only one: text with 64-bit offsets, any time zone's label, any unit of time.
* Every field that a function receives is nullable and has no metadata.

Invariants:

* An adaptor is made on the driver, where a bad schema or signature fails at the call. It is pickled to the
  tasks with every setting it needs. It keeps no state, so one adaptor serves any number of tasks.
* An error that a function raises stays the same object, but its traceback omits our frames above the
  function. An error in the function's input is raised even if the function swallows it.
* Batches without rows are dropped. One result is held at a time; small results of groups are held until they
  are joined (`compute.groups.gathering`).
* Closing an adaptor's iterator closes the function's iterator, then the input.

    conf           the session's settings that matter to functions
    pickled        a user's function as it was at the call
    signatures     names, arguments and type hints of functions
    result_schema  the declared result of a function, and its checks
    conversion     between Arrow and pandas, by PySpark's own code
    results        returned values, checked and converted to the declared schema
    running        calls of users' functions, and their errors
    maps           mapInArrow, mapInPandas
    grouped        groupBy().applyInArrow and applyInPandas, on whole groups and on iterators
    group_frames   groups as pandas frames, many converted at a time
    cogrouped      cogroup().applyInArrow and applyInPandas
"""
