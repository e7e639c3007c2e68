"""Map outputs on disk: writing the pair of files, reading extents back, and how long files live.

Knows nothing of records: it moves sealed buffers and extents. Positioned reads and appends only. The
doors of `writing` and `reading` use it in tasks, the command line uses it on kept files.
"""
