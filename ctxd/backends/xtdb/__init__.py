"""The backend that keeps versions in an XTDB 1.x node, over HTTP."""
