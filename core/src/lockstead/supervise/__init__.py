"""Process supervision: process trees, signals by identity, the watchdog of `lockstead run`, the reaper beside a worker.

`processes` looks and signals; `marks` finds what task code started, and `offspring` is the block around it; `reaper`
ends it if the worker is killed (`reaper_start` starts that); `watchdog` guards the command of `lockstead run`, and
`messages` is what the two exchange. Linux; on other systems nothing is found by marks, and nothing ended.
"""
