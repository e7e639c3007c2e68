"""Map outputs on disk: writing the pair of files, reading extents back, and how long files live.

    files         the pair of files: written, and read in verified extents
    stored        the same in a store that every host sees, by fsspec
    homes         where pairs lie, who owns them, and when they are deleted
    inspection    what a pair holds, whatever state it is in

It moves sealed buffers and extents, and knows nothing of records. Positioned reads and appends only. The
doors of `writing` and `reading` use it in tasks, the command line uses it on kept files.
"""
