"""The consumer's half of the shuffle service: how a task reads map outputs of other hosts.

remote_input_channel -> remote_reader -> extent_streams     what gates read from
client                                                      the services that a task reads through
client_connection, client_channel                           one connection, one request on it
credits                                                     room for data ahead of its consumer
backoff, resolution, asking                                 services that are away, slow, or many
"""
