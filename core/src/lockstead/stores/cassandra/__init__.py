"""Locks on Cassandra and ScyllaDB: `url` names a place, `store` keeps the records there."""
