"""Locks on SQLite: `url` parses the URL, `store` keeps the records."""
