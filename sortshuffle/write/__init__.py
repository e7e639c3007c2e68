"""The producing side: rows in, one result partition out.

    batches -> ChannelSelector (one id per row) -> encoder (cluster or sort, encode, compress, checksum)
            -> region (one gathered append when the task's memory is full) -> finish

Used by the map stage of a `ShuffleFrame`. Knows nothing of Spark or of any network.
"""
