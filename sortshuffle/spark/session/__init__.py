"""A Spark session and its application, as frames and RDDs use them.

requirements                           settings, and workers that can run a stage
planner                                the protocol of what stages need of Spark's planner
classic_planner, connect_planner       for sessions with a JVM; for Spark Connect
planner_choice                         which of the two a session has
sparks_shuffle                         settings of Spark's own shuffle that control rows rule out
service, forgotten                     the application's shuffle services; exchanges that Spark has forgotten
shared_storage                         the application's directory on storage that every host sees
naming                                 names of stages and RDDs in Spark's UI
"""
