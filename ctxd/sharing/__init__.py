"""Several hosts on one XTDB log: ownership of sessions, leases, hand-overs, and branches for late writes."""
