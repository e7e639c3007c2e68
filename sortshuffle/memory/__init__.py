"""Memory: one counted budget in a task, segments and pools of them where bytes move in fixed pieces.

* `budget`, `limit`: what a task may hold, whoever allocated it. Used by `writing` (rows and encoded buffers
  that wait for their region) and `reading` (extents read ahead). `shared_budget`: one budget for many tasks.
* `segment`, `buffer`: one piece of memory; references to it, which are counted.
* `network_buffer_pool`, `local_buffer_pool` (with `segment_store`): the segments of a process, shared out.
  `read_buffer_pool`: those that scheduled reads fill. `handover`: the lock and the waiting of all three.
* `leaks`: the debug mode.

Knows nothing of files or records. Lock order: factory lock, segment lock.
"""
