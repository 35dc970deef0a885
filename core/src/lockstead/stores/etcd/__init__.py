"""Locks on etcd: `url` names a place, `store` keeps the records there."""
