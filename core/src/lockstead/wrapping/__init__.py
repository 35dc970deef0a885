"""What wrappers of orchestrators share: `spec` (arguments of a lock), `messages`, `locks` (what a wrapper does to one).

Must not know any orchestrator. Cheap to import, since DAG files are parsed all day.
"""
