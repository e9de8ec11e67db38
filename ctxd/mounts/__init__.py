"""Whose path is it: mount mappings, filesystem identity, and where mount tables come from."""
