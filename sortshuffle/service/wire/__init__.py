"""What goes between a consumer and the shuffle service of another host (docs/protocol.md).

protocol     frames, byte for byte
handshake    how the two greet each other
address      where a service listens, and by which hosts it is reached
secret       the secret that both know, where it stands in a file
"""
