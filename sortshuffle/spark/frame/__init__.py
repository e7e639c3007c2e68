"""The entry point `ShuffleFrame`: the classes that users call.

two_sided         where a frame's rows are, Spark's side or Python's, and how they cross
crossings         rows that go from side to side, and functions left to Spark, for `explain()` and the log
sides             which side makes a call
shuffle_frame     `ShuffleFrame`: the operators of Python's side
shadow            what Spark analyses in place of a frame, with its columns
classic_shadow    the same in sessions with a JVM
connect_shadow    the same over Spark Connect
classic_frame     frames of sessions with a JVM
connect_frame     frames of Spark Connect
frames            `frame`, `broadcast`
grouped_frame     `groupBy`, `cogroup`
frame_writer      `frame.write`
parquet_job       Parquet files written by the Python workers
frame_reader      `read(spark)`
shuffle_session   `session`, whose DataFrames are frames
connect_session   the same over Spark Connect
delegation        makes PySpark's own methods return objects of ours
"""
