"""Locks on Redlock: `url` names a place, `store` keeps the records there."""
