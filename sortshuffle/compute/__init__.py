"""Operations on streams of Arrow batches with bounded memory: groups and cogroups of sorted streams,
aggregates, joins, and sorting what may not fit.

Used by the steps of `ShuffleFrame`'s stages. Knows nothing of Spark, nor of files but where to put runs.
"""
