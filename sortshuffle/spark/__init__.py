"""The `ShuffleFrame` door: PySpark jobs whose stages are Python, chained in one pass between shuffles.

frame, grouped, reader, writer   what users call
plan                             chains of steps, and what they know of origins and exchanges
operators                        what the frame's methods do
origins, exchange, schemes       where chains begin, one shuffle, where its rows go
staging                          how a chain becomes a stage in Spark's plan
stages, placements, slices       what runs in the workers
control, planner, session        how it is put into Spark: control rows, shared map output, checks
schema, functions                Spark's types and calling conventions on Arrow batches
"""
