"""Homes: the directories where executors keep their map outputs, each with an owner.

owner, processes                      who owns map outputs, and whether that process still runs
lifetime, forgotten_exchanges         when map outputs may be deleted
directories                           where a task writes
janitor                               the process that deletes dead files
shared_home                           homes of an application and a host, not of an executor
listings, home_listings               what is in homes, for repeated sweeps
home_failures, loss                   disks that fail, map outputs that are lost
host, environment, small_files        names of hosts; environments of our processes; small JSON files

Only this package knows how Spark names its shuffle files and its local directories, and when Spark removes
them. `storage` below knows files; `service` and `spark` above use this package.
"""
