"""The producing side: rows or records in, one result partition out.

    batches -> ChannelSelector (one id per row) -> RowEncoder (cluster or sort, encode, compress, checksum)
    objects -> RecordWriter (one id per key, pickled together) -> FrameEncoder (into segments)
    records of the JVM, placed by it -> PlacedRecordEncoder (one sort of ids, one gather)
            -> region (gathered appends when no more is to be held) -> finish

record_writer, pickled_sizes                          records, and what they take in memory
result_partition, row_, frame_, placed_partition      one partition of each kind
encoders, clustering, row_slices                      rows in order of their subpartitions
frame_encoder, data_buffer                            frames in segments; encoded buffers that wait
placed_records                                        records of the JVM

Used by the map stages of `ShuffleFrame` and `ShuffleRDD`, and by the shuffle manager's engine. Knows nothing
of Spark or of any network.
"""
