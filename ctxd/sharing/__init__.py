"""Several hosts on one XTDB log: ownership of sessions, leases, moves between hosts, and forks for late writes."""
