"""Mount mappings, filesystem identity, and the sources of mount tables."""
