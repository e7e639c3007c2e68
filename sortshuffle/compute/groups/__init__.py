"""Groups of rows in streams that are sorted by key.

groups       one table, or one iterator of batches, for each key
cogroup      the groups of two streams, paired by key
gathering    joining small batches to larger ones
"""
