"""The consuming side: one subpartition of every map output, as batches in a fixed order.

    InputGate <- LocalInputChannel (one per map output) <- read-ahead threads <- PartitionedFileReader

Used by the result stage of a `ShuffleFrame`. Knows nothing of Spark or of any network.
"""
