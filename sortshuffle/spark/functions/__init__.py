"""Users' functions in a Python worker: given, checked and converted as PySpark's own worker does it.

Between two exchanges the functions of a `ShuffleFrame` run chained, without Spark's operators between them.
One adaptor per PySpark method wraps each function: batches (or the tables of groups) go in, batches of the
declared wire schema come out. The rules are those of PySpark 4.3's worker and of the JVM that reads its
results; pandas conversion is PySpark's own code. The differences are these:

* what crashes Spark's task in the JVM is a `SchemaMismatchError` that names function, column and types;
* other representations of the declared types are converted (see `sortshuffle.spark.schema.conform`),
  also where PySpark wants one of them: text with 64-bit offsets, any time zone's label, any unit of time;
* every field that a function sees is nullable and has no metadata.

Invariants:

* An adaptor is made on the driver, where a bad schema or signature fails at the call, and is pickled to the
  tasks with every setting it needs. It keeps no state, so one adaptor serves any number of tasks.
* What a function raises stays the same object, with a traceback in which our frames above the function are
  gone. What its input raises is never lost, even if the function swallows it.
* Batches without rows are not passed on. One result is held at a time, and small ones of groups until they
  are joined (`compute.groups.gathering`).
* Closing an adaptor's iterator closes the function's, then the input.

    conf           the session's settings that matter to functions
    signatures     what functions are asked about themselves
    declared       what a function is declared to return, and the checks of it
    conversion     Arrow and pandas, by PySpark's own code
    running        calls of users' code, and what becomes of their errors
    maps           mapInArrow, mapInPandas
    grouped        groupBy().applyInArrow and applyInPandas, on whole groups and on iterators
    cogrouped      cogroup().applyInArrow and applyInPandas
"""
