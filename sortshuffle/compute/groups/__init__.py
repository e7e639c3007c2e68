"""Groups of streams that are sorted by key.

groups       one table, or one iterator of batches, for each key
cogroup      two streams side by side
gathering    small batches joined to larger ones
"""
