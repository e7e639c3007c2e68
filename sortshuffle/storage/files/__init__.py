"""The pair of files of one result partition, on disks of this host.

partitioned_file       their names
writer, local_pair     regions appended, entries kept, both files made final
reader, extents        extents found, read and verified
ranges                 where the bytes of subpartitions lie
descriptors            open files and locks
"""
