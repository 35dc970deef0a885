"""Locks on PostgreSQL: `url` names a place, `store` keeps the records there."""
