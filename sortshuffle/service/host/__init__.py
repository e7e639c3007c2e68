"""How tasks start the shuffle service of their host for their application, and how it ends after them.

rendezvous              where tasks find the service, or start it
rendezvous_directory    the directory of a rendezvous: its name, its lock, its small files
registration            the executors with map outputs on a host, and what they say of their application
service_config          the settings of a service
supervisor              the process that holds the service's port and keeps it running
process                 the process of the service itself
jvm_launch              the command by which a JVM finds the service, or starts it
"""
