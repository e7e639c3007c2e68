"""Aggregation in two passes: before a shuffle rows become states, after it states become results.

aggregation              what both passes share: the aggregation, and the reducers that make states
partial, results         the first pass; the second pass
functions                aggregate functions, as states that can be combined
value_functions, decimals  functions such as the least or the first value; exact sums of decimals
columns, segments        columns of rows and states; the groups of rows
"""
