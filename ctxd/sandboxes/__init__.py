"""Sandboxes: who has a socket of their own, for how long, and what is in its directory."""
