"""Memory: one counted budget in a task, segments and pools of them where bytes move in fixed pieces.

* `budget`, `limit`: what a task may hold, whoever allocated it. Used by `writing` (rows and encoded buffers
  that wait for their region) and `reading` (extents read ahead).
* `segment`, `buffer`: one piece of memory, its use by reference count.
* `network_buffer_pool`, `local_buffer_pool` (with `segment_store`): the segments of a process, shared out.
  `read_buffer_pool`: those that scheduled reads fill. `handover`: what all three wait and lock with.
* `leaks`: the debug mode.

Knows nothing of files or records. Lock order: factory lock, segment lock.
"""
