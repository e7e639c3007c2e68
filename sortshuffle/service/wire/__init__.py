"""What goes between a consumer and the shuffle service of another host, byte for byte (docs/protocol.md)."""
