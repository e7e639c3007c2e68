"""What operators put into stages: steps, and openings and closings of one operator. Tasks import them;
nothing here plans, and nothing here is imported by `spark.worker`.

selection_steps, with_columns          columns and rows of each batch; columns that are computed
row_steps                              whole rows: the first ones, some by chance, those of a union's input
local_sort                             the rows of one task in order
group_steps                            users' functions of groups and cogroups
aggregate_steps, distinct_steps        aggregates of groups; the first row of each key
shuffled_join, broadcast_join          the two ways of joining
scan, write_parquet                    Parquet files: read, and written
subpartition_sizes                     what the driver asks before it slices large subpartitions

Each module loads what its own steps need, and no more: a worker that only reads an exchange loads none of
them.
"""
