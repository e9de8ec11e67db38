"""The command `ctx`: a client of the daemon like any other."""
