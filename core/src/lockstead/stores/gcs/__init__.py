"""Locks on Google Cloud Storage: `url` names a place, `store` keeps the records there."""
