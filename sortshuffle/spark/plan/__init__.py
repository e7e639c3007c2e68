"""The plan of a frame, as values on the driver. Nothing runs before a frame's rows are needed.

chain                                  a chain: an origin and steps; rows: a chain and its layout
origins                                the beginnings of chains
exchange, fanout, schemes              one shuffle; several of the same rows in one pass; placement of rows
sampling                               bounds of ranges, from a sample of the keys
estimated_sizes, measured_sizes, skew  bytes of chains; bytes of subpartitions; large subpartitions divided
hints                                  what Spark's planner is told about a frame: layout, order and size
coalescing                             fewer partitions for an action
spark_cache                            rows that are in Spark's cache
staging                                puts a chain into Spark's plan as a stage
explain                                a plan and its figures as text
once                                   a value computed on first use
"""
