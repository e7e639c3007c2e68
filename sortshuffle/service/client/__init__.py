"""The consumer's half of the shuffle service: how a task reads map outputs of other hosts.

remote_input_channel -> remote_reader -> extent_streams     what input gates read from
client, client_settings                                     what a task can ask of services; its settings
service_link, receiver, reconnect_policy                    the channels to one service, and their thread
client_connection, wires, liveness                          one connection: its socket and its progress
request_table                                               requests on a connection: protocol without I/O
client_channel, index_channel, questions                    one request
credits                                                     memory for data ahead of its consumer
backoff, resolution, asking                                 services that are unreachable, slow, or many
shortage                                                    a process without the means to ask
"""
