"""The producing side: rows or records in, one result partition out.

    batches -> ChannelSelector (one id per row) -> RowEncoder (cluster or sort, encode, compress, checksum)
    records -> RecordWriter (one id per key, objects pickled together) -> FrameEncoder (into segments)
            -> region (gathered appends when no more is to be held) -> finish

Used by the map stages of `ShuffleFrame` and `ShuffleRDD`, and by the shuffle manager's door. Knows nothing of
Spark or of any network.
"""
