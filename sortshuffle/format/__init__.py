"""The file format as pure functions on bytes; `docs/format.md` is its specification.

No module here opens a file, starts a thread or allocates more than it returns. What is wrong with
given bytes is reported as `Malformed`, with the offset *within those bytes*; the storage layer, which
knows the file, turns that into an error with a place.
"""
