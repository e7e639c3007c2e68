"""Shows what a pair of files holds, whatever state it is in: for `dump`, `verify`, `clean` and tests.

finding         finds the files that make up a pair
contents        reads the index and both headers
data_check      checks all the data against them
open_files      opens files on this host or in a store
"""
