"""What goes into a buffer: Arrow record batch messages, and how their rows are ordered by key; pickled
chunks of objects and opaque frames, cut over buffers; events.

Used by `writing` to encode and by `reading` to decode. Knows nothing of files or tasks.
"""
