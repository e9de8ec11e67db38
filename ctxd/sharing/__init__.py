"""Several hosts on one XTDB log: ownership of sessions, leases, hand-overs, and branches of late writes."""
