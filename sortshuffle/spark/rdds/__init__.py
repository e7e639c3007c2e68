"""The `ShuffleRDD` door: PySpark jobs on Python objects, whose shuffles run on sortshuffle.

rdd                              the methods that users call
plan, planner, explain           chains and exchanges; how they become RDDs of Spark; what they print
stages, together, writing        stages in the workers: with one input, with several; the writing end
streams, control_rows            records between parts of a stage; rows between tasks
steps, holding                   steps of a chain: users' functions, and steps that hold records
key_selectors, ranges            the subpartition of each pair
combining                        values of a key combined before the shuffle
aggregations, merging, grouping  values of a key combined behind the shuffle, in bounded memory
sorting                          sorting in bounded memory
spilling, heap                   records put aside in files; the memory that objects take
by_value                         objects of classes that cannot be imported
"""
