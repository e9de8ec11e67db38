"""Content-addressed bytes on disk, for content too large for the database."""
