"""The pair of files of one result partition, on a disk of this host or mounted on it.

partitioned_file       their names
local_pair             a new pair: appended to, then made final or removed
reader, extents        extents found, read and verified
ranges                 where the bytes of subpartitions lie
urls                   what a URL means, errors of stores, trying again
presence               whether something is there, and whether it is still written
private                directories that one user alone may enter
descriptors            open files
"""
