"""Observability: logs, call counts, and the socket of the metrics."""
