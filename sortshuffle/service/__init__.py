"""The shuffle service: map outputs of one host, for consumers on other hosts.

    connections -> ResultPartitionManager -> ReadScheduler (one per map output that is being read) -> files

One long-lived process per host with many partitions and readers. Knows nothing of Spark.
"""
