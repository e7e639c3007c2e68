"""What users call.

shuffle_frame     `ShuffleFrame`, `frame`, `broadcast`
grouped_frame     what `groupBy` gives
frame_reader      `read(spark)`
frame_writer      `frame.write`
"""
