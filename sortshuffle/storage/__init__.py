"""Map outputs on disk: writing the pair of files, and reading extents back.

    writer        a result partition's regions and index, appended to a new pair
    files         pairs on this host: their names, new ones, verified reads
    stored        pairs in a store that every host sees, by fsspec
    inspection    what a pair holds, whatever state it is in

It moves sealed buffers and extents by positioned reads and appends. It knows nothing of records, owners or
Spark (`homes`). `writing` and `reading` use it in tasks, the command line on kept files.
"""
