"""The pair of files as objects of a store that every host sees, by its URL.

stored_pair        the two new objects, written
stored_reader      extents of a finished pair, by ranges
stored_listing     what lies at a URL
stored_cleaning    what applications have left there, and its removal
"""
