"""The pair of files of one result partition, on a disk of this host or in a mounted directory.

partitioned_file       the names of the files
local_pair             a new pair: appended to, then committed or removed
spare_files            dead data files, which new ones are written over
reader, extents        find, read and verify extents
grouping               neighbours in groups up to a size
ranges                 where the bytes of subpartitions lie
urls                   meaning of URLs, errors of stores, retries
presence               whether a file is there, and whether it is still being written
private                directories that only one user may enter
descriptors            helpers for open files
"""
