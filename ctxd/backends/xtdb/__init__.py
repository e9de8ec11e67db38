"""The backend that keeps versions in an XTDB 1.x node, spoken to over HTTP."""
