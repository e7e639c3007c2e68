"""Serves the JVMs of this host: the part of the shuffle service that works for Spark's shuffle manager.

    map task (JVM)     --frames-->  map_output_writer  -->  SortMergeResultPartition  -->  files
    reduce task (JVM)  <--bytes---  block_reader       <--  those files, or the service of another host

Where to find what (docs/manager.md describes the protocol and the design):

    greeting           the first bytes that both ends send
    protocol           requests and replies, byte for byte
    server             the Unix socket, with a thread for each connection
    engine             state that all connections share: memory, segments, map outputs
    map_output_writer  one map output, from its first frame to its commit
    block_reader       the answer to one request of a reduce task
    byte_stream        bytes from and to the socket, in few system calls
    shared_frames      frames in memory that the JVM and the engine share
    small_outputs      small map outputs, which are read and kept whole
    index_part         what a request holds of a map output's index
    nonlocal_blocks    map outputs that are not files of this host: remote (services), stored (stores)
    single_flight      one fetch for all threads that want the same data at the same time
    lost_blocks        the error that names the blocks that cannot be read
    silent_services    services on other hosts that are skipped for a while
    outputs            the map outputs that are open, and the directories that new ones go to
"""
