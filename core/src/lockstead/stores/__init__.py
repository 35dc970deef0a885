"""The stores. Each has its own folder and knows no other store; all implement `port`, and `url` finds one by scheme.

In each folder, `url` parses the store's URL and opens `store`; nothing else is imported until then. Redlock's masters
are Redis servers, so Redlock uses two modules of the Redis store: how to connect, and what its errors mean.
"""
