"""The shuffle service: map outputs of one host, for consumers on other hosts. Knows nothing of Spark.

    consumer's task                                     host of the map outputs, one process
    InputGate <- RemoteInputChannel                     Server: one loop over all connections
        <- RemoteReader <- ExtentStream                   -> Connection -> ServerChannel: turns, credit
        <- ClientChannel <- ClientConnection  ---TCP---       -> SubpartitionReader <- ReadScheduler -> files

Where to find what:

    between the two         protocol, handshake, address, secret (docs/protocol.md)
    the client              client, client_connection, client_channel, extent_streams, remote_reader,
                            remote_input_channel, credits, backoff
    the server              shuffle_service, server, loop, connection, server_channel, gathered_send,
                            transport, limits
    what it serves          catalog, result_partition_manager, index_view, losses, linger
    who starts it           rendezvous, supervisor, process
    what is seen of it      status, status_json, status_page, metrics_page, http
"""
