"""Operations on streams of Arrow batches with bounded memory: groups and cogroups of sorted streams,
aggregates, joins, and sorting what may not fit.

groups, aggregate, join     the operations, a room each
external_sort, row_sizes    runs put aside and merged; how many bytes rows take

Used by the steps of `ShuffleFrame`'s stages. Knows nothing of Spark, nor of files but where to put runs.
"""
