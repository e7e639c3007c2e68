"""What is asked of a Spark session, and of the application behind it.

requirements                           settings, and workers that can run a stage
planner                                what stages need of Spark's planner: the protocol
classic_planner, plain_planner         for sessions with a JVM in reach; for Spark Connect
planner_choice                         which of the two a session has
sparks_shuffle                         what Spark's own shuffle must be like for control rows
service, forgotten                     the application's shuffle services, and what the driver tells them
shared_storage                         the application's directory on storage that every host sees
naming                                 what Spark's UI calls stages and RDDs that are made here
"""
