"""The entry point `ShuffleRDD`: PySpark jobs on Python objects, whose shuffles run on sortshuffle.

rdd                              the methods that users call
plan, planner, explain           chains and exchanges; their RDDs in Spark; the text of `explain()`
stages, multi_input, writing     stages in the workers: with one input, with several; writing an exchange
failures                         failures that no user's function may hide
streams, control_rows            records between the parts of a stage; rows between tasks
steps, holding_steps             the steps of a chain: users' functions, and steps that hold records
key_selectors, ranges            selectors: the subpartition of each pair
combining                        combining the values of a key before the shuffle
aggregations, merging, grouping  combining the values of a key after the shuffle, in bounded memory
sorting                          sorting in bounded memory
spilling, heap                   records spilled to files; estimates of the memory that objects take
by_value                         pickling objects whose classes cannot be imported
"""
