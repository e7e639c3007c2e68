"""The `ShuffleFrame` door: PySpark jobs whose stages are Python, chained in one pass between shuffles.

frame, grouped, reader, writer   what users call
plan                             sources, steps, exchanges: what a frame is made of
stages                           what runs in the workers
control, planner, session        how it is put into Spark: control rows, shared map output, checks
schema, functions                Spark's types and calling conventions on Arrow batches
"""
