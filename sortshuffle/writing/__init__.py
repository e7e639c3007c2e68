"""The producing side: turns a task's rows or records into one result partition.

    Arrow batches -> ChannelSelector (one id per row) -> RowEncoder (cluster or sort, encode, compress)
    Python objects -> RecordWriter (one id per key, pickled in chunks) -> FrameEncoder (into segments)
    JVM records, with their ids -> PlacedRecordEncoder (one sort of ids, one gather)
        each encoder -> a region (gathered writes) when the memory is full -> finish

record_writer, pickled_sizes                          objects, and estimates of their size in memory
result_partition                                      what the result partitions share
row_partition, frame_partition, placed_partition      each kind of them
encoders, clustering, row_slices                      rows, ordered by subpartition
frame_encoder, data_buffer                            frames in segments; encoded buffers waiting for a region
placed_records                                        records of the JVM

Used by the map stages of `ShuffleFrame` and `ShuffleRDD`, and by the shuffle manager's engine. This package
knows nothing of Spark or of any network.
"""
