"""The service's half: it serves the map outputs that lie on this host's disks.

shuffle_service                               all of it, from the outside
server, loop                                  connections, and the one thread that waits for all of them
connection, server_channel                    one client, and one of its requests
transport, gathered_send                      bytes out and in, without waiting
limits                                        how much for how many
catalog, result_partition_manager             which map outputs there are, and which are being read
index_view                                    an index file as a channel streams it
losses                                        what is damaged or gone
ended_homes, linger                           what ended executors and applications left
"""
