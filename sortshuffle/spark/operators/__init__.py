"""What `ShuffleFrame`'s methods do: functions that take and give `Rows`.

layouts, sorting               repartition and its kind; sort, and sortWithinPartitions
selection, columns, rows       select and filter; withColumn and its kind; limit, sample, union
aggregates, aggregate_calls    agg, distinct and dropDuplicates; what agg's calls mean
joins, broadcast               joins by an exchange of both sides, or of one side for all
cogroups                       cogroup
expressions, key_checks, twin  a Column as plain values; which columns may be keys; what Spark says of a call
"""
