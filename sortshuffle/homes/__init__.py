"""Homes: the directories where executors keep their map outputs, each with an owner.

owner, processes                      who owns map outputs, and whether that process still runs
lifetime, forgotten                   when map outputs may be deleted
directories                           where a task writes
janitor                               the process that deletes what is dead
shared_home                           homes of an application and a host, not of an executor
listings, home_listings               what is in homes, looked at again and again
home_failures, loss                   disks that fail, map outputs that are lost
host, environment, small_files        names of hosts; environments of our processes; JSON for each other

What this package knows of Spark stands here alone: how Spark names its shuffle files and its local
directories, and what it removes when. `storage` below knows files; `service` and `spark` above ask here.
"""
