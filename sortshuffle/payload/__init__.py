"""What goes into a buffer: here, Arrow record batch messages, and how their rows are ordered by key.

Used by `write` to encode and by `read` to decode. Knows nothing of files or tasks.
"""
