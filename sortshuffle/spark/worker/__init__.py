"""Runs stages as tasks in a Python worker. This package imports nothing that plans.

task, task_files                       the task: its identity, its memory, its files
stages, multi_input                    one stage: an opening, steps, a closing; several inputs in one stage
map_output, placements                 map outputs written by a task, and the selectors that place their rows
slices, numbered, key_samples          parts of large subpartitions; numbers of partitions; samples of keys
reach                                  access to map outputs: on the host's disks, by a service, in a store
adoption, silence                      reuse of an earlier attempt's map outputs; services that do not answer
daemon                                 the process that forks Python workers, with a local master
reports                                reports of tasks to the driver and to the log
"""
