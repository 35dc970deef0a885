"""Publishes signed APT and YUM repositories into a bucket, from concurrent jobs, under a lock.

Start with README.md; then `pipeline.py`, which is the pipeline itself.
"""
