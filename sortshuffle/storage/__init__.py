"""Map outputs on disk: writes the pair of files, and reads extents back.

    writer        appends a result partition's regions and index to a new pair
    files         pairs on this host: their names, new pairs, verified reads
    stored        pairs in a store that every host sees, through fsspec
    inspection    shows what a pair holds, whatever state it is in

The package moves sealed buffers and extents by positioned reads and appends. It knows nothing of records,
owners or Spark (`homes`). `writing` and `reading` use it in tasks, the command line on kept files.
"""
