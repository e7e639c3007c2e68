"""Operations on streams of Arrow batches with bounded memory. Here: cutting a sorted stream into groups.

Used by the result stages of grouped functions. Knows nothing of Spark or of files.
"""
