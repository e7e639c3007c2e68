"""What a pair of files holds, whatever state it is in: for `dump`, `verify`, `clean` and tests.

finding         which files make up a pair
contents        what they say
data_check      whether all the data is as they say
open_files      files on this host or in a store
"""
