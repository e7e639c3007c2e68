"""The consuming side: reads one subpartition of every map output, as batches or records in a fixed order.
This package knows nothing of Spark or of any network.

    PartitionedFileReader -> LocalInputChannel, one per map output -> Fetcher: read-ahead threads
        -> InputGate | RecordGate

For consumers in tasks: the result stages of `ShuffleFrame` (rows) and `ShuffleRDD` (records)

    gate, records              the gates of a consumer
    channel, stored_channel    one map output: files of this host, or storage that every host sees
    fetcher, read_ahead        fetches within a budget, in threads, delivered in order
    merge, multi_pass          merge sorted runs: in one pass, or in several
    run_memory, spill          the memory of a run in a merge; runs on disk between passes
    stream_ahead               runs in a store: threads fetch the next part while one is used

For the shuffle service, where a map output has many consumers

    scheduler, batch_reader, swept_file    read one partition for all consumers, in the order of the file
    index_cache                            indexes of what was read last, for the readers that come next
    sweep, segment_batch, read_shares      the plan of the reads; memory of one run; memory of all readers
    subpartition_reader                    the view of one consumer
    submission                             work for threads that may refuse it
"""
