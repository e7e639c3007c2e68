"""The shuffle service: map outputs of one host, for consumers on other hosts. Knows nothing of Spark.

consumer's task                                     host of the map outputs, one process
InputGate <- RemoteInputChannel                     Server: one loop over all connections
    <- RemoteReader <- ExtentStream                   -> Connection -> Conversation -> Channels: turns, credit
    <- ServiceLink, RequestTable                      -> ServerChannel
    <- ClientConnection                   ---TCP---       -> SubpartitionReader <- ReadScheduler -> files

wire      what goes between the two (docs/protocol.md)
client    the consumer's half
server    the service's half, and what it serves
host      who starts the service on a host, and keeps it running
pages     what is seen of it
jvm       what it does for the JVMs of its own host
"""
