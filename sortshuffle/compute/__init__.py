"""Operations on streams of Arrow batches in bounded memory: groups and cogroups of sorted streams,
aggregates, joins, and sorts of more rows than fit.

groups, aggregate, join     the operations, one subpackage each
external_sort, row_sizes    sorting by spilling and merging runs; the bytes that rows take

Used by the steps of `ShuffleFrame`'s stages. Knows nothing of Spark, and uses files only for sorted runs.
"""
