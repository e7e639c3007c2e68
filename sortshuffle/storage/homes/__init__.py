"""Homes: the directories where map outputs lie, each with an owner.

directories                           where a task writes
lifetime, forgotten                   who owns map outputs, and when they may be deleted
janitor                               the process that deletes them
shared_home                           homes of an application and a host, not of an executor
listings, home_listings               what is in homes, looked at again and again
home_failures, loss                   disks that fail, map outputs that are lost
host, environment, private            names of hosts; environments of our processes; private directories
small_files                           JSON that processes leave each other
"""
