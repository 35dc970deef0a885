"""The lock protocol. Pure: no clock, thread, socket, random numbers or logging.

Every operation on a store is a script: a generator that yields commands and is sent replies. Drivers run scripts.
"""
