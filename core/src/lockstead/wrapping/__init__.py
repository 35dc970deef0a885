"""Code shared by the orchestrator wrappers: `spec` (a lock's arguments), `messages`, `locks` (helpers for a lock).

Must not know any orchestrator. Must be cheap to import, since DAG files are parsed continuously.
"""
