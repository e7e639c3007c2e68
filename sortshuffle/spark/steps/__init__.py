"""The steps that operators put into stages, and the openings and closings that serve one operator. Tasks
import these modules; no module here plans, and `spark.worker` imports none of them.

selection_steps, with_columns          some columns and rows of each batch; computed columns
row_steps                              whole rows: limits, samples, the inputs of a union
local_sort                             sorting the rows of one task
group_steps                            users' functions of groups and cogroups
aggregate_steps, distinct_steps        aggregates of groups; the first row of each key
shuffled_join, broadcast_join          the two ways of joining
scan, write_parquet                    reading and writing Parquet files
subpartition_sizes                     sizes that the driver needs to slice large subpartitions

Each module loads only what its own steps need. A worker that only reads an exchange loads none of them.
"""
