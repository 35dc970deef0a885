"""What a worker's body starts: marked, found again by the mark, and ended, also if the worker itself is killed.

`marks` finds and ends, `beside` starts a process that does so when the worker is gone, `main` is that process.
`processes` is shared with the watchdog of `lockstead run`. Linux; on other systems nothing is found and nothing ended.
"""
