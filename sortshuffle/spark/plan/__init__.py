"""What is to be done, as values on the driver. Nothing runs before a frame's rows are wanted.

chain                                  a chain: an origin and steps; rows: a chain and its layout
origins                                where a chain begins
exchange, fanout, schemes              one shuffle; several of the same rows in one pass; where its rows go
sampling                               bounds of ranges, from a sample of the keys
estimated_sizes, measured_sizes, skew  bytes of chains and of subpartitions; large ones divided
hints                                  which side of a join is broadcast
staging                                a chain becomes a stage in Spark's plan
explain                                a plan and its figures as text
once                                   a value computed when it is first asked for
"""
