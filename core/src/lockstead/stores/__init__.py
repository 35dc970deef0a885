"""The stores: a folder for each, none knows another. All implement `port`; `url` finds the one that is named.

In each folder `url` reads an address and opens `store`, and is all that is imported until then. Redlock's masters are
Redis servers, so it has two modules of the Redis store: how one is reached, and what its errors mean.
"""
