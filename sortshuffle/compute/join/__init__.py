"""Joins of two streams of batches by equal keys.

hash_join      one side as a table in memory, the other side batch by batch
build, keys    the rows of that table, and the look-up of keys in it
merge_join     two sorted streams, neither of which fits into memory
"""
