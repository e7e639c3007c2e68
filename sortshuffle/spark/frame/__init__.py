"""The `ShuffleFrame` door: the classes that users call.

shuffle_frame     `ShuffleFrame`, `frame`, `broadcast`
grouped_frame     `groupBy`
frame_reader      `read(spark)`
frame_writer      `frame.write`
"""
