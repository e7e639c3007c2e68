"""Who starts the shuffle service on a host: tasks do, for their application, and it ends after them.

rendezvous              where tasks find the service, or start it
rendezvous_directory    the directory of that: its name, its lock, its small files
registration            the executors that have map outputs there, and what they say of their application
service_config          the settings of a service
supervisor              the process that holds the service's port and keeps it running
process                 the process of the service itself
jvm_launch              what a JVM runs to find or start it
"""
