"""A running task in a Python worker. This package loads nothing that plans.

task, task_files                       who the task is, what it may hold, where it writes
stages, several                        one stage: an opening, steps, a closing; several inputs in one stage
map_output, placements                 map outputs written by a task, and the selectors that place their rows
slices, key_samples                    parts of large subpartitions; samples of keys
reach                                  how a task gets at a map output: its host's disk, a service, a store
adoption, silence                      map outputs that an earlier attempt left; services that do not answer
reports                                what tasks tell the driver and the log
"""
