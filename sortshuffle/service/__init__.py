"""The shuffle service: serves the map outputs of one host to consumers on other hosts. Independent of Spark.

consumer's task                                     host of the map outputs, one process
InputGate <- RemoteInputChannel                     Server: one loop over all connections
    <- RemoteReader <- ExtentStream                   -> Connection -> Conversation -> Channels: turns, credit
    <- ServiceLink, RequestTable                      -> ServerChannel
    <- ClientConnection                   ---TCP---       -> SubpartitionReader <- ReadScheduler -> files

wire      the protocol between the two (docs/protocol.md)
client    the consumer's half
server    the service's half, and the map outputs that it serves
host      starts the service on a host, and keeps it running
pages     the service's figures, for people and monitoring
jvm       the engine behind Spark's shuffle manager, for the JVMs of the same host
"""
