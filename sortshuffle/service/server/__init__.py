"""The service's half: it serves the map outputs that lie on this host's disks.

shuffle_service                               all of it, from the outside
server, loop                                  connections, and the one thread that waits for all of them
connection                                    one client, at its socket
conversation, channels, server_channel        what it says, its requests and their turns, one of them: no I/O
debts, errands, stall                         what it is owed, what is done for it, what its silence costs
transport, gathered_send                      bytes out and in, without waiting
limits, counts                                how much for how many, and how much it was
catalog, result_partition_manager             which map outputs there are, and which are being read
index_view                                    an index file as a channel streams it
losses                                        what is damaged or gone
ended_homes, linger                           what ended executors and applications left
"""
