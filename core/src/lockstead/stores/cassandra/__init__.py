"""Locks on Cassandra and ScyllaDB: `url` parses the URL, `store` keeps the records."""
