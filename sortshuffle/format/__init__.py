"""The file format as pure functions on bytes; `docs/format.md` is its specification.

    header          the 56 bytes that open both files
    buffer          header, payload, padding and checksum of one buffer
    extent_run      many small extents, sealed at once
    index           the index file
    checksum        XXH3-64
    encryption      encryption of payloads, bound to their place
    malformed       the exceptions for wrong bytes

No module here opens a file, starts a thread or allocates more than it returns. Wrong bytes raise
`Malformed`, with the offset *within those bytes*. The storage layer, which knows the file, adds the place.
"""
