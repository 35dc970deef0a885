"""The lock protocol: pure. No clock, no thread, no socket, no dice, no logging.

Every conversation with a store is a generator that yields commands and is sent replies; drivers run it.
"""
