"""Memory of a task: counted against one budget, whoever allocated it.

Used by `write` (rows and encoded buffers that wait for their region) and `read` (extents read ahead).
Knows nothing of files or records.
"""
