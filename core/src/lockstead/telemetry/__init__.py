"""Metrics and traces of this process, from the events of its clients: `prometheus`, `otel`, and what they share."""
