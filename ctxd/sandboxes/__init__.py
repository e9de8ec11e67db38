"""Sandboxes: registrations, leases, sockets and directories."""
