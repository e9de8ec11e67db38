"""The embedded bitemporal backend over SQLite."""
