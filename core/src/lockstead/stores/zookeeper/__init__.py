"""Locks on ZooKeeper: `url` names a place, `store` keeps the records there."""
