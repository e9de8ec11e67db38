"""Content-addressed bytes on disk, for text too long for the database."""
