"""Locks on Redis: `url` names a place, `store` keeps the records there."""
