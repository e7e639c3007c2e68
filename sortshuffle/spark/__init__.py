"""PySpark's doors: `ShuffleFrame`, `ShuffleRDD` and the shuffle manager, and how their stages get into Spark.

    frame        what users call: frames, grouped frames, readers, writers
    operators    what the methods of a frame do: `Rows` of `Rows`
    plan         chains of steps, where they begin, exchanges, and what is known of their sizes
    rdds         the same for `ShuffleRDD`: records instead of rows
    steps        what operators put into a stage, and run in the workers
    worker       a running task: where it reads and writes, what it holds, what it tells the driver
    functions    PySpark's calling conventions of user functions, on Arrow batches
    parquet      Parquet files, found by the driver and scanned by the workers
    session      what is asked of a Spark session: settings, its planner, its shuffle services
    manager      Spark's shuffle manager: the driver's half, and the JVM's in Java

`control` and `schema` serve all of them: control rows, and Spark's types in Arrow's. `data_source` shows map
outputs as a DataFrame. Tasks import `worker`, `steps` and `functions`, never `plan`, `operators` or `frame`.
"""
