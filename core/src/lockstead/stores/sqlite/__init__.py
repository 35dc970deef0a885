"""Locks on SQLite: `url` names a place, `store` keeps the records there."""
