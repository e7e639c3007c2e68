"""PySpark's entry points: `ShuffleFrame`, `ShuffleRDD`, the shuffle manager; how their stages reach Spark.

    frame        the public classes: frames, grouped frames, readers, writers
    operators    the methods of a frame; each makes `Rows` from `Rows`
    plan         chains of steps, their origins, exchanges, and the known sizes of their results
    rdds         frame, operators and plan for `ShuffleRDD`: records instead of rows
    steps        the steps that operators put into a stage; they run in the workers
    worker       a running task: its inputs and outputs, its memory, its reports to the driver
    functions    PySpark's calling conventions of user functions, on Arrow batches
    parquet      Parquet files, found by the driver and scanned by the workers
    session      a Spark session: requirements, settings, planner, shuffle services
    manager      Spark's shuffle manager: the driver's half, and the JVM's in Java

Modules that they share: `control_rows`, `schema` (Spark's types as Arrow types), `conforming`
(batches brought to a schema) and `worker_errors` (errors of tasks, for the driver). `data_source` shows map
outputs as a DataFrame. Tasks import `worker`, `steps` and `functions`, never `plan`, `operators` or `frame`.
"""
