"""The methods of `ShuffleFrame`, as functions that take and return `Rows`.

layouts, sorting               placement and order of rows, for all operators; sort and sortWithinPartitions
partition_counts               how many partitions, where the user gives no number
selection, columns, rows       columns by position; withColumn and renaming; limit, sample, union and coalesce
aggregates, aggregate_calls    agg, distinct and dropDuplicates; the meaning of agg's arguments
joins, broadcast               joins by exchanges of both sides, or by a broadcast of one side
cogroups                       cogroup
parquet_scan, scan_reasons     a DataFrame that is only a scan of files, by the workers; why Spark has to scan
dataframe_facts                what a frame needs to know of the DataFrame that it is made of
plan_json, file_relation       what Spark's analysed plan says, and what the JVM knows of a relation's files
expressions, key_checks, twin  a Column as plain values; which columns may be keys; Spark's analysis of a call
translation                    Spark's filters and selections as Arrow expressions
catalyst, catalyst_types       expressions as Spark analysed them; their types and constants as Arrow's
"""
