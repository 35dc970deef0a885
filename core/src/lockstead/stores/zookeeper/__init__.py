"""Locks on ZooKeeper: `url` parses the URL, `store` keeps the records."""
