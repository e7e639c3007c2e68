"""The protocol between a consumer and the shuffle service of another host (docs/protocol.md).

protocol     packs and unpacks frames
handshake    the greeting of both sides
address      the address of a service, and sockets that listen at one
secret       reads the shared secret from a file
"""
