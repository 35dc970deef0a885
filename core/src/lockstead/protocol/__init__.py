"""The lock protocol. Pure: no clock, thread, socket, random numbers or logging.

Every conversation with a store is a generator that yields commands and is sent replies; drivers run it.
"""
