"""Who starts the shuffle service on a host: tasks do, for their application, and it ends after them.

rendezvous    where tasks find the service, or start it
supervisor    the process that holds its port and keeps it running
process       the process of the service itself
jvm_launch    what a JVM runs to find or start it
"""
