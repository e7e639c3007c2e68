"""The service's half: it serves the map outputs that lie on this host's disks.

shuffle_service                               the whole service, as its users see it
server, loop                                  accepts connections; the one thread that waits for all of them
connection                                    one client, at its socket
conversation, channels, server_channel        its frames, its channels and their turns, one channel; no I/O
pending_work, disk_jobs, stall                its pending answers, its work in the background, its stalls
transport, gathered_send                      non-blocking I/O on a socket
limits, counts                                the bounds of a service, and its counters
catalog, result_partition_manager             which map outputs exist, and which are being read
index_view                                    streams an index file to a channel
losses                                        map outputs that are damaged or gone
ended_homes, linger                           what ended executors and applications left on the disks
"""
