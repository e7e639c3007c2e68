"""What the shuffle service does for the JVMs of its own host: the engine behind Spark's shuffle manager.

    map task (JVM)     --frames-->  writing  -->  SortMergeResultPartition  -->  files of the application
    reduce task (JVM)  <--bytes---  reading  <--  those files, or the service of another host

Where to find what (docs/manager.md has the protocol and the design):

    greeting        what both ends send first
    protocol        requests and replies, byte for byte
    server          the Unix socket, a thread for each connection
    engine          what all connections share: memory, segments, map outputs
    writing         one map output, from its first frame to its commit
    reading         the answer to one request of a reduce task
    byte_stream     bytes from the socket, in few calls
    shared_frames   frames in memory that JVM and engine share
    small_outputs   small map outputs, which are read and kept whole
    elsewhere       map outputs that are not files of this host: remote (services), stored (stores)
    single_flight   one fetch for all threads that want the same at one time
    lost_blocks     the error that names the blocks that cannot be had
    silent_services services on other hosts that are passed over for a while
    outputs         which map outputs are open, and where new ones go
"""
