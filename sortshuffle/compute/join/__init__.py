"""Joins of two streams of batches by equal keys.

hash_join      one side as a table in memory, the other batch by batch
build, keys    the rows of that table, and how keys are found in it
merge_join     two sorted streams, of which neither fits into memory
"""
