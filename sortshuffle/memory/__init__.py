"""Memory accounting: one byte budget per task, and pools of segments of fixed size.

* `budget`, `limit`: how many bytes a task may hold, whoever allocates them. Used by `writing` (rows and
  buffers that wait for a region) and `reading` (extents read ahead). `shared_budget`: one for many tasks.
* `segment`, `buffer`: one piece of memory, and counted references to it.
* `network_buffer_pool`, `local_buffer_pool` (with `segment_store`): the segments of a process, shared out.
* `read_buffer_pool`: the segments that scheduled reads fill.
* `handover`: how these three pools lock and wait. `leaks`: the debug mode.

This package knows nothing of files or records. Lock order: factory lock, segment lock.
"""
