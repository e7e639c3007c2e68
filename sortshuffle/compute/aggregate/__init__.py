"""Aggregates in two passes: before a shuffle rows become states, behind it states become results.

aggregation              both passes
partial, results         each of them
functions                aggregate functions as states that can be put together
choices, decimals        of these: the least, the first and their like; exact sums
columns, segments        columns of rows and states; rows in groups
"""
