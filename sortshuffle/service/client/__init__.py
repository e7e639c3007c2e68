"""The consumer's half of the shuffle service: how a task reads map outputs of other hosts.

remote_input_channel -> remote_reader -> extent_streams     what gates read from
client, client_settings                                     what a task asks of services, and how
service_link, receiver, trouble                             the channels of one service, and their thread
client_connection, wires, liveness                          one connection: its socket, and whether it gets on
request_table                                               what was asked on it: its protocol, without I/O
client_channel, index_channel, questions                    one request on it
credits                                                     room for data ahead of its consumer
backoff, resolution, asking                                 services that are away, slow, or many
"""
