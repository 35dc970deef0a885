"""Locks on Google Cloud Storage: `url` parses the URL, `store` keeps the records."""
