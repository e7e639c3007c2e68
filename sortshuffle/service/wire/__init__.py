"""The protocol between a consumer and the shuffle service of another host (docs/protocol.md).

protocol     frames, byte for byte
handshake    the greeting of both sides
address      the address of a service, and sockets that listen at one
secret       the shared secret, read from a file
"""
