"""The pair of files as objects of a store that every host sees, named by its URL.

stored_pair        writes the two new objects
stored_reader      reads extents of a finished pair, by ranges
stored_listing     lists what lies at a URL
stored_cleaning    finds and removes what applications have left there
"""
