"""Process supervision: process trees, signals by identity, the watchdog of `lockstead run`, the reaper of a worker.

`processes` lists and signals processes. `tags` finds the processes that task code started, and `child_processes` is
the `with` block around that code. `reaper` ends them if the worker is killed (`reaper_client` starts it). `watchdog`
supervises the command of `lockstead run`, and `messages` is their protocol. Linux only: on other systems nothing is
found by tag or ended.
"""
