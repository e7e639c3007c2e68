"""The Spark session and the application of frames and RDDs.

requirements                           checks of settings, and of the workers' Python
unix_sockets                           whether the sockets to Python workers have short enough paths
session_settings                       what frames take from settings, kept until a setting changes
planner                                the protocol of what stages need from Spark's planner
classic_planner, connect_planner       its implementations, with a JVM and for Spark Connect
planner_choice                         chooses the planner of a session
sparks_shuffle                         refuses settings of Spark's shuffle that control rows rule out
control_shuffles                       Spark's shuffle of one exchange, and when it is left to Spark
service, forgotten_exchanges           the application's shuffle services; exchanges that Spark has forgotten
application_end, application_report    what is done when the application ends; its report
progress                               bars for running stages, where nobody would see any
shared_storage                         the application's directory on storage that every host sees
java                                   short ways to the driver's JVM
naming                                 names of stages and RDDs in Spark's UI
"""
