"""What goes into a buffer: batches, objects, frames, records of a foreign serializer, and events.

    arrow                      Arrow record batches, one message in each buffer
    pickled, frames, spanning  pickled chunks of objects; frames; cutting frames over buffers
    record_bytes, unsafe_row   records of a foreign serializer; decoding Spark's rows
    events                     control records between the data
    compression                compression of single buffers
    ordering, sort_memory      the order of rows by key; the memory that sorting takes
    stable_order               the stable order of int64 values

Used by `writing` to encode and by `reading` to decode. Knows nothing of files or tasks.
"""
