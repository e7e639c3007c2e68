"""The `ShuffleRDD` door: PySpark jobs on Python objects, whose shuffles run on sortshuffle.

rdd                              what users call
plan, planner, explain           chains, exchanges, and how they are put into Spark
stages, together, writing        what runs in the workers: one input, several, and where records go
streams, control_rows            what passes between its parts, and between tasks
steps, holding                   what is chained: users' functions, and what holds records
key_selectors, ranges            where pairs go
combining                        pairs before the shuffle: made fewer
aggregations, merging, grouping  values that become one for each key, behind it, in bounded memory
sorting                          order
spilling, heap                   what is put aside in files; what objects take in memory
by_value                         objects of classes that cannot be imported
"""
