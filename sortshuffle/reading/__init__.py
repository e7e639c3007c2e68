"""The consuming side: one subpartition of every map output, as batches or records in a fixed order.

    InputGate | RecordGate <- LocalInputChannel (one per map output) <- read-ahead threads
        <- PartitionedFileReader

Used by the result stages of `ShuffleFrame` (rows) and `ShuffleRDD` (records). For the shuffle service, whose
consumers are many: `ReadScheduler` reads one partition for many `SubpartitionReader`s in file order. Knows
nothing of Spark or of any network.
"""
